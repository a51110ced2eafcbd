"""The logs on disk. Knows no socket and no event loop; all file work goes through a Disk.

    tools      Work on a directory of a stopped node
    node       One data directory, opened
    readers    Reading a directory that may belong to a running node
    schedule   Messages by the time they are due
    logs       Numbered logs: appended, fsynced, recovered
    state      Small files beside the logs, each written whole
    batch      The bytes of a log: batches of columns. docs/formats draws them
    disk       The file system as the logs see it
    limits     What an operator, or a test, may set of all these

Each part imports only from parts below it.
"""
