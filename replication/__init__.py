"""From one log to its copies on other nodes.

core    what follows from what; knows no clock, no socket and no disk
"""
