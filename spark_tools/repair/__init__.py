"""Finds and checks the messages that a repair sends.

    repair      lost messages, read again and checked

Imported by delaywheel.
"""
