"""Messages on their way, without I/O.

    batches     items of one request
    circuits    servers that failed
    discovery   finding the meta server
    exchange    the state machine of all of it
    links       connections, without their sockets
    meta_link   the connection to the meta server
    pending     messages that are on no connection
    routing     servers of a subject

Imported by receiving and shells.
"""
