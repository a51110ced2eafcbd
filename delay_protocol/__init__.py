"""QMQ's wire protocol without I/O: frames, message items, typed requests and answers, codes.

Everything here is a function of bytes. It knows no socket, no clock and no task; delay_transport
moves the bytes.

    meta       What clients and brokers ask a meta server
    messages   What producers send and brokers get
    nodes      What a delay server and its meta server say to each other
    wire       The unit that crosses a socket
    basics     What every other part of the protocol needs

Each part imports only from parts below it.
"""
