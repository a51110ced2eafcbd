"""Requests over TCP.

    broker_registration   brokers say who and how they are
    client_answers        groups, online state and timestamp of a client
    client_registration   clients ask for the groups of a subject
    clients               who uses which subject
    credentials           proof of the shared secret
    group_admission       whether a new group may come into being
    handlers              hands each request to what answers it
    node_registration     delay servers prove who they are
    pushes                changed routes to connected clients
    refusals              counts and logs of refusals
    replies               refusals, and answers once the store has a change
    silence               notices who has fallen silent
    speakers              on which connection a delay server was registered
    timestamps            timestamps that never decrease

Imported by admin and the server.
"""
