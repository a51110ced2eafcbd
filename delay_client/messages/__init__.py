"""Messages, receipts, settings and errors: the types of the client's callers.

    cancel_tokens  what a receipt's token says
    changed        what became of a cancel or a move
    clock          the wall clock
    config         settings of a client
    envelope       bodies and headers as attributes
    errors         why a message was not accepted
    identity       the client's id
    item_encoder   messages to items
    message        messages, receipts, outcomes
    message_ids    ULIDs
    verdicts       item codes to errors

Imported by exchange, receiving and shells.
"""
