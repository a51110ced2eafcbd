"""The node in its group.

    permission     what the node may do
    registration   NODE_REGISTER and BROKER_REGISTER

Imported by admin and the server.
"""
