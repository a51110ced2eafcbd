"""What can be set, and how a process ends.

    config             settings of a delay server
    config_file        from TOML and options
    config_reference   the commented reference
    errors             errors that end the process

Imported by membership, admin and the server.
"""
