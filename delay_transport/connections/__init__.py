"""Frames over sockets.

    connection       one accepted connection within its limits
    door             where connections of bad reputation wait
    limits           every bound of a connection, by name
    listener         accepts connections
    reputation       addresses whose connections come to nothing
    request_client   the asking side, many requests in flight
    sources          open connections by source address, and which to evict

Imported by http and meta, and by delay_server, meta_server and sender.
"""
