"""Reading a directory that may belong to a running node.

    arrow            batches as Arrow tables
    dead_reader      items of dead letters
    item_reader      items of due messages
    looking          pages and counts of what is pending, and the rows of one message
    manifest         what a directory commits at one moment

Imported by delay_server, spark_tools and delaywheel.
"""
