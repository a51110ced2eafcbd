"""Committed messages into the schedule_log, and back into memory.

    checkpoints        write checkpoints, and delete what is old        of every node
    filer              files what is committed by due time              of every node
    schedule_access    calls of the schedule_log, in order              of every node
    loader             splits, loads into the wheel, evicts             of a mastership

Imported by accepting, sending and dead.
"""
