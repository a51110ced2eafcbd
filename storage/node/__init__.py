"""One data directory, opened.

    retention   which files may be deleted
    store       opens, recovers, checkpoints and closes all logs

Imported by delay_server, and by tools.
"""
