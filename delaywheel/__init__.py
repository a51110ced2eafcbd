"""The command `delaywheel`: one click group, a module per subcommand, no logic of its own.

`delaywheel.main` is the group.

    admin     `delaywheel admin`: what a meta server knows
    node      Commands for a delay server
    cluster   What the servers of a cluster say of themselves
    log       `delaywheel log`: files of a data directory
    servers   Commands that are a server, and their settings
    spark     `delaywheel spark`: reconciling, repairing
    shared    What several commands need

Each part imports only from parts below it.
"""
