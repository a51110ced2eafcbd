"""Receiving, without I/O.

    attachment   a connection to a delay server: messages come, verdicts go
    errors       what handlers raise, and what ends a receiver
    message      messages that were received
    reception    all of it: which servers, which messages come next
    settings     settings of a receiver
    tracebacks   which tracebacks of handlers were logged lately

Imported by shells.
"""
