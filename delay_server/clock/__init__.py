"""Time that may be followed.

    clock_guard   holds a wall clock that jumped
    pace          the time of the guard, for all parts

Imported by every part that waits for a due time.
"""
