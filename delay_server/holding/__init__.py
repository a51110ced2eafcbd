"""Messages in memory until they are due.

    sorted_runs   entries in exact order
    wheel         the timing wheel

Imported by filing, sending and dead.
"""
