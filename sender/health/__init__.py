"""How well a broker group does. Pure.

    circuit       closed, open or half-open
    refusal_run   whether a group refuses for good whatever it gets
    weight        the share of a group
    window        requests in flight, and items a request

Imported by groups.
"""
