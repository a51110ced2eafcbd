"""Messages by the time they are due.

    dead_index     dead letters in memory
    loading        rows of due minutes become entries
    owed           bytes that accepted messages will still take
    schedule_log   files, splits, loads and seals segments
    seals          what became of complete segments
    segment        rows and facts of one unsealed segment

Imported by node and readers.
"""
