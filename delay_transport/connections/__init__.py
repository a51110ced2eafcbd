"""Frames over sockets.

    connection       one accepted connection within its limits
    limits           every bound of a connection, by name
    listener         accepts connections
    request_client   the asking side, many requests in flight
    sources          open connections by source address, and which to evict

Imported by http and meta, and by delay_server, meta_server and sender.
"""
