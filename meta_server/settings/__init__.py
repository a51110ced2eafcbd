"""Settings of a meta server.

    config             settings of a meta server
    config_file        from TOML and options
    config_reference   the commented reference
    exposure           warns of an open listener

Imported by wire, admin and the server.
"""
