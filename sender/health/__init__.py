"""How well a broker group does. Pure.

    circuit            closed, open or half-open
    refused_lanes      lanes of which a group takes nothing
    refused_subjects   whether a group refuses whatever it gets
    weight             the share of a group
    window             requests in flight, and items a request

Imported by groups.
"""
