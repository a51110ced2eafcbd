"""Numbered logs: appended, fsynced, recovered.

    dispatch_log           the journal of facts
    message_log            accepted messages, in their order
    message_log_recovery   which end of it is kept, which is cut
    numbered_log           a walk over the files of a log

Imported by schedule, node and readers.
"""
