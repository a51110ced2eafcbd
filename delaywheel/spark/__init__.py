"""`delaywheel spark`: reconciling, repairing.

    commands   `delaywheel spark reconcile`
    engines    Spark, or processes of this machine
    hours      each closed hour once
    page       the page of a run
    repair     lost messages, sent again
    sources    options of what is read
    verdicts   exit codes that are verdicts

Imported by main.
"""
