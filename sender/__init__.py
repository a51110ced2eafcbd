"""Delivers due messages to broker groups: batches, retries, and nobody waits for a dead broker.

    groups     One broker group, and the choice between several
    outcomes   What became of entries
    health     How well a broker group does. Pure
    queues     Entries that wait in memory
    settings   What can be set, and what can fail

Each part imports only from parts below it.
"""
