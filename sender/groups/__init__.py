"""One broker group, and the choice between several.

    connection     one connection to a group
    connector      how a connection is made, and the HELLO on it
    group_rules    pause and rate limit of a group
    group          queue, connection and requests in flight
    group_health   how a group does: circuit, window, weight and refusals
    group_queue    what waits for a group, and what its next request takes
    group_status   the state of a group, as values
    group_set      the groups of a sender: which there are, and which a lane may use
    intake         what a group may be given
    members        receivers under a name, and the one that has a message alone
    requests       what requests are built of, and what their answers settle
    routing        which group gets which entries

Imported by sender.sender.
"""
