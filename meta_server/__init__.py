"""Knows who is alive, who is master of what, and which broker groups a subject has.

    process    The process around a server: signals, limits of files, HTTP over sockets
    server     Puts the parts together, and serves
    admin      What operators see and change
    wire       Requests over TCP
    settings   What can be set
    groups     Broker groups and delay groups. Pure, but for held_requests
    sql        Rows in a database
    known      All rows, in memory, and how they change

Each part imports only from parts below it.
"""
