"""`delaywheel admin`: what a meta server knows.

    commands   the group
    rows       get, set and remove of each kind of row, and the actions
    fields     options and values of the API's structs
    showing    tables of rows
    waiting    waits for the next master
    tokens     the token file
    transfer   all rows of a store as JSON lines, and back

Imported by main.
"""
