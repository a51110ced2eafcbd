"""Files and values that know no log.

    columns       arrays of rows, facts and records
    errors        what ends a run before its verdict
    java          whether Spark can run
    markup        HTML with everything escaped
    outputs       result files, whole or not at all
    remote_disk   a data directory in an object store
    roots         paths and URIs of directories
    times         minutes as options give them

Imported by every other part.
"""
