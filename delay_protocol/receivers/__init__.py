"""What receivers and their servers say to each other. Ours, not QMQ's.

    attaching   ATTACH, FLOW: a receiver attaches to a delay server, and says what it takes
    delivering  DELIVER, SETTLE: messages, and what became of each
    masters     RECEIVER_REGISTER: a receiver asks a meta server where to attach

Imports basics and nodes.
"""
