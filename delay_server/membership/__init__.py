"""The node in its group.

    permission     what the node may do
    registration   NODE_REGISTER and NODE_WATCH

Imported by admin and the server.
"""
