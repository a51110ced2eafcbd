"""What every other part of the protocol needs.

    addresses   host:port, checked
    codes       commands, answers and item codes of QMQ
    errors      protocol errors, by blame and remedy
    printable   foreign text made safe to show
    strings     the string encoding of QMQ
    subjects    legal subjects, and the real subject of a retry

Imported by all packages.
"""
