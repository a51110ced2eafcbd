"""Dead letters.

    dead_letters   list, requeue, drop
    reason         why a message was given up
    recorder       records messages that were given up
    wanted         which dead letters are meant

Imported by settings, admin and the server.
"""
