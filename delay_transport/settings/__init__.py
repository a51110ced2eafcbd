"""Settings from files and options.

    file_limit           settings lowered to the system's limit of open files
    http_port            the section of an HTTP port
    sections             sections that every server has
    settings_file        TOML and --set to checked values
    settings_reference   the commented reference of all settings

Imported by delay_server, meta_server and delaywheel.
"""
