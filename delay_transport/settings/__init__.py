"""Settings from files and options.

    sections             sections that every server has
    settings_file        TOML and --set to checked values
    settings_reference   the commented reference of all settings

Imported by delay_server, meta_server and delaywheel.
"""
