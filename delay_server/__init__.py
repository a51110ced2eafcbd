"""The delay server process: takes messages, keeps them, and delivers them when they are due.

`delay_server.server` is its composition root, `delay_server.config` what can be set of it. Nothing
is imported here, so that the pure parts (the wheel, admission) can be had without an event loop.
"""
