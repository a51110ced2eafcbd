"""From a request to its answer.

    admission     checks the items of a request
    commits       the one writer of the log: append, fsync, and on to filing once committed
    disk_budget   free disk that accepted messages need
    duplicates    finds what a producer sends again
    ingest        holds, admits and answers requests
    intake        accepted items until their commit
    settling      builds the records that settle rows

Imported by dead, settings and the server.
"""
