"""One task, and the sum of many.

    account            counts of tasks, added in any order
    digests            digests that know no order
    findings           what is wrong, as a table
    hour_counts        counts by hour and name
    lateness           buckets of lateness
    log_index          digests of the message_log by hour
    message_log        records against rows
    payload            reads and checks message bodies
    segment_parts      cuts of a large segment
    segments           rows against facts
    sequences          sets of sequences
    tasks              pieces of a run
    unfiled_tail       ends of logs that no checkpoint has filed

Imported by every part above.
"""
