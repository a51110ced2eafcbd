"""Requests over TCP.

    admission          which new groups may come into being
    brokers            brokers register, and ask which group they have
    clients            clients ask for the groups of a subject
    dispatch           decides, answers, stores and refuses requests
    group_changes      when elections begin and end
    handlers           the families of requests
    nodes              delay servers prove who they are, and report
    pushes             changed routes to connected clients
    receivers          receivers learn where to attach
    refusals           counts and logs of refusals
    sessions           what is known of each connected peer
    silence            notices who has fallen silent
    timestamps         timestamps that never decrease
    votes              news for delay servers, votes, and what masters want

Imported by admin and the server.
"""
