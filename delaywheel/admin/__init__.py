"""`delaywheel admin`: what a meta server knows.

    commands   a command for each operation
    tokens     the token file

Imported by main.
"""
