"""The node in its group.

    permission     what the node may do
    planned_stop   drain, wait, stop
    registration   NODE_REGISTER and BROKER_REGISTER

Imported by admin and the server.
"""
