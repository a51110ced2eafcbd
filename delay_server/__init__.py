"""The delay server process: takes messages, keeps them, and delivers them when they are due.

Nothing is imported here, so that the pure parts can be had without an event loop.

    process      The process: signals, files, the HTTP port
    admin        What operators see and change
    server       One running server: listener, node, mastership; `serve` reads top to bottom
    mastership   What the master has besides: it takes, loads, sends
    target_groups  To which broker groups it delivers
    node         What every node has: its directory, opened, and what looks after it
    membership   The node in its group
    settings     What can be set, and how a process ends
    dead         Dead letters
    accepting    From a request to its answer
    sending      From a due message to its outcome
    filing       Committed messages into the schedule_log, and back into memory
    clock        Time that may be followed
    controls     What an operator has paused and limited
    holding      Messages in memory until they are due
    lanes        Which queue of the sender a subject's messages go to
    duty         What a node may do now, and why
    distribution How long something takes: histograms

Each part imports only from parts below it.
"""
