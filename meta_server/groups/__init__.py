"""Broker groups and delay groups. Pure, but for controls_push.

    broker_groups    what registrations lead to
    controls_push    pauses and limits to delay servers
    liveness         who was heard, who fell silent
    roles            master and slave of delay groups
    routing          broker groups of a subject
    waiting_groups   groups that an operator has to let in

Imported by settings, wire and admin.
"""
