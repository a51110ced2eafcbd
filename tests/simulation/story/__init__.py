"""Stories of several real servers: what exists, what strikes, and who judges (docs/reliability.md).

history     what peers, faults and stores saw, in order
judges      one function for each promise, over a history and the disks
group       a group of delay servers, a meta server, producers, a broker and an operator
"""
