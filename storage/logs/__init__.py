"""Numbered logs: appended, fsynced, recovered.

    message_log            accepted messages and what became of them, in their order
    log_tail               what is written behind its end
    message_log_recovery   which end of it is kept, which is cut
    numbered_log           a walk over the files of a log
    raw_batches            batches as they are on disk: copied, and cut
    recent_ids             recent records of a message, by a hash
    sparse_index           where batches begin

Imported by schedule, node and readers.
"""
