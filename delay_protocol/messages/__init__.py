"""What producers send and brokers get.

    changes        CHANGE and its answer
    items          codec of one message item, and the scan of many
    origin         what an item's attributes tell of its past
    repeats        decides if an item is another one again
    send_message   SEND_MESSAGE and its answer

Imported by delay_client, delay_server, sender.
"""
