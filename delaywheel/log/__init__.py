"""`delaywheel log`: files of a data directory.

    commands   dump and verify
    manifest   the manifest
    salvage    whole messages out of damaged files

Imported by main.
"""
