"""Small files beside the logs, each written whole.

    checkpoint      the manifest of what is derived from the message_log
    document_file   a document that counts as a whole
    controls_file   the document of pauses and limits
    promise_file    the document of what was promised as a voter
    durable_end     how far a log is known to be durable
    identity        whose directory it is

Imported by logs, schedule, node and readers.
"""
