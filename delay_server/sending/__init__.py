"""From a due message to its outcome.

    backlog_reader   loads lanes that wait on disk
    dispatch         takes due messages out of the wheel
    fact_recorder    has outcomes committed
    outlet           pauses and limits before the sender
    undeliverable    counts what is damaged

Imported by the server.
"""
