"""Settings of a meta server.

    config             settings of a meta server
    config_reference   the commented reference
    exposure           warns of an open listener

Imported by wire, admin and the server.
"""
