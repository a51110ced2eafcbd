"""Committed messages into the schedule_log, and back into memory.

    filer   files, loads, evicts and checkpoints

Imported by accepting, sending and dead.
"""
