"""What copies on other nodes cost, as processes on one machine.

    group      the processes: a meta server and nodes
    rates      ingest, answers, both at once, a burst and lateness, with slaves in sync

Used by `python -m benchmarks replicas`. Producer, brokers and all nodes share the machine, so a
rate with copies is as much of one node's as the cores are left for; beside every figure is the CPU
of each process.
"""
