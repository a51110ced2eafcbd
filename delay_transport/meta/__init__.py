"""A server's connection to its meta server.

    address    GET /meta/address
    requests   requests of brokers and nodes
    routes     routes of subjects, kept up to date

Imported by delay_server and bridges.
"""
