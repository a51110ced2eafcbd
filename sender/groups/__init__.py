"""One broker group, and the choice between several.

    connection     one connection to a group
    gates          pause and rate limit of a group
    group          queue, connection and requests in flight
    group_status   the state of a group, as values
    routing        which group gets which entries

Imported by sender.sender.
"""
