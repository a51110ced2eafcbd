"""Broker groups and delay groups. Pure, but for held_requests.

    broker_groups    what registrations lead to
    current_controls rules of operators, as delay servers are sent them
    liveness         who was heard, who fell silent
    roles            master and slave of delay groups
    routing          broker groups of a subject

Imported by settings, wire and admin.
"""
