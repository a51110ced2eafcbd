"""The world outside the program, and what bounds its flow.

    backoff        waiting before a retry
    constants      limits of a part that are no settings
    errors         transport errors
    leaky_bucket   a rate with a burst
    newcomers      how many names may be new at a time
    outbox         bytes to send, put without waiting
    process        signals, open files, garbage collector
    read_turns     sockets that are read, some in each turn of the loop
    runtime        Clock, Network, Executor, chance
    trouble        few lines in the log about what lasts

Imported by every other part, and by all servers.
"""
