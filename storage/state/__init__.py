"""Small files beside the logs, each written whole.

    audit_file      JSON lines with a CRC each
    checkpoint      the manifest of what is derived from the message_log
    controls_file   the document of pauses and limits
    durable_end     how far a log is known to be durable
    identity        whose directory it is

Imported by logs, schedule, node and readers.
"""
