"""Good neighbours beside bad peers.

    answers      how long answers take beside 3,000 hostile connections
    neighbours   a good producer beside thousands of bad peers of one kind
    peers        the bad peers, a process of their own

Used by `python -m benchmarks neighbours hostile`.
"""
