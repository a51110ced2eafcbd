"""What clients and brokers ask a meta server.

    requests   CLIENT_REGISTER, BROKER_REGISTER, BROKER_ACQUIRE_META
    session    a client's side of that talk, as a pure state machine

Imported by delay_client, delay_transport, meta_server.
"""
