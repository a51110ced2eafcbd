"""The unit that crosses a socket.

    frames   header, encoder, incremental decoder
    hello    HELLO: node id, epoch and log uuid of a sender

Imported by delay_transport, and by who speaks to a broker.
"""
