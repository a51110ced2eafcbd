"""Work on a directory of a stopped node.

    inspect   dump and verify
    salvage   what is whole in damaged files

Imported by delaywheel only.
"""
