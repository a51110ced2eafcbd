"""Entries that wait in memory.

    bulk_turns   one group makes a large request at a time
    lanes        queues that take turns
    parcels      arrays of entries
    places       where an entry is, by name
    put_off      entries that wait for a time

Imported by outcomes and groups.
"""
