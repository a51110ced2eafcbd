"""The one trio shell of the protocol, and the seams to clock, network, threads and chance.

    http          The HTTP port of a server
    meta          A server's connection to its meta server
    connections   Frames over sockets
    settings      Settings from files and options
    seams         The world outside the program, and what bounds its flow

Each part imports only from parts below it.
"""
