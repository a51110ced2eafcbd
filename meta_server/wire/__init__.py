"""Requests over TCP.

    clients       who uses which subject
    credentials   proof of the shared secret
    handlers      registrations of clients, brokers and nodes
    pushes        changed routes to connected clients
    refusals      counts and logs of refusals
    timestamps    timestamps that never decrease

Imported by admin and the server.
"""
