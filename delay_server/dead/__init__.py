"""Dead letters.

    dead_letters   list, requeue, drop
    reason         why a message was given up
    recorder       records messages that were given up

Imported by admin and the server.
"""
