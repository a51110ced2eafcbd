"""What became of entries.

    answers    the answer to SEND_MESSAGE, item by item
    dead       items that are given up
    in_doubt   items that may have been taken
    outcomes   the report of one entry

Imported by groups, and by delay_server.
"""
