"""Commands that ask the servers of a cluster.

    masters       the masters of all delay groups, asked the same
    node_client   options: which node, or meta server, a command asks
    rules         the rules that a meta server keeps for all nodes
    status        `delaywheel status`
    topology      `delaywheel topology`

Imported by node and admin.
"""
