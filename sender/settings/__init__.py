"""What can be set, and what can fail.

    config   settings of section sender
    errors   sender errors

Imported by every other part.
"""
