"""What a repair sends.

    repair      lost messages, read again and checked

Imported by delaywheel.
"""
