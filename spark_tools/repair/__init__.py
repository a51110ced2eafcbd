"""Lost messages, sent again.

    repair      what is sent
    resending   sends it, and writes the audit

Imported by delaywheel.
"""
