"""What a delay server and its meta server say to each other.

    auth                proof that both have the same secret
    controls            pauses, rate limits and weights, as one document
    controls_exchange   NODE_CONTROLS: the newest document
    registration        NODE_REGISTER: storage, epoch and role of a node

Imported by delay_server and meta_server.
"""
