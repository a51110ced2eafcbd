"""Reading a directory that may belong to a running node.

    arrow            batches as Arrow tables
    dead_reader      items of dead letters
    find_row         the row of a message that waits
    item_reader      items of due messages
    manifest         what a directory commits at one moment
    manifest_check   manifests that no directory can have made

Imported by delay_server, spark_tools and delaywheel.
"""
