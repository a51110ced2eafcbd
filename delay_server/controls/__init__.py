"""What an operator has paused and limited.

    controls_store   the document, durable
    meta_sync        documents of the meta server, taken or kept out
    rules_file       the rules of a node without a meta server

Imported by sending and membership.
"""
