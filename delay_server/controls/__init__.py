"""What an operator has paused and limited.

    controls_store   the document, durable, with its audit
    meta_sync        documents of the meta server, taken or kept out

Imported by sending and membership.
"""
