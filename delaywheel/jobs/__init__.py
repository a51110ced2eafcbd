"""The Spark commands as plain files, for spark-submit.

    hours       `delaywheel spark hours`
    reconcile   `delaywheel spark reconcile`
    repair      `delaywheel spark repair`

Imported by nobody.
"""
