"""Nodes and a meta server as values under a schedule of events: the protocol of replication alone.

The core that is tried is the real one (`replication/core`, `meta_server/groups/elections.py`). Log,
disk, network and clock are models: a log is a list, a message is a number. So a minute of a group
takes some milliseconds, and a night tries what a year of clusters would not meet.
"""
