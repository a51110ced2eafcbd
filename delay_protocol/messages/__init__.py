"""What producers send and brokers get.

    changes        CHANGE and its answer
    items          codec of one message item, and the scan of many
    origin         what an item's attributes tell of its past
    send_message   SEND_MESSAGE and its answer

Imported by delay_client, delay_server, sender.
"""
