"""Commands that ask the servers of a cluster.

    node_client   asks a node, or all of a cluster
    status        `delaywheel status`
    topology      `delaywheel topology`

Imported by node and admin.
"""
