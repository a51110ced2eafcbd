"""Lost messages, sent again.

    repair      what is sent
    resender    sends it, and writes the audit

Imported by delaywheel.
"""
