"""Messages in memory until they are due.

    read_retries   due messages whose bytes cannot be read now
    sorted_runs    entries in exact order
    wheel          the timing wheel

Imported by filing, sending and dead.
"""
