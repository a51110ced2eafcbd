"""What became of entries.

    answers    the answer to SEND_MESSAGE, item by item
    dead       items that are given up
    history    what is known of entries from earlier tries
    outcomes   the report of one entry

Imported by groups, and by delay_server.
"""
