"""What a delay server, its meta server and the other nodes of its group say to each other.

    auth            proof that both have the same secret
    controls        pauses, rate limits and weights, as one document
    following       FOLLOW, BATCHES, ACK, LEAVE: a slave copies the log of its master
    group_changes   NODE_WATCH, GROUP_CHANGE: news of a group, its controls, votes and proposals
    packed          bodies that are one msgpack map
    registration    NODE_REGISTER: storage, epoch and role of a node

Imported by delay_server and meta_server.
"""
