"""Reconciling the logs of a cluster: what was accepted with what became of it.

Needs the extra `spark` (pyarrow). `run/plan.py` cuts the work into tasks, `judge/segments.py` does
one of them, `judge/account.py` adds them up; an engine (`run/local.py`, `spark/engine.py`) runs
them. `hours/by_hour.py` does each hour once, as it closes.

    hours      Each hour once, as it closes
    page       The HTML page of a run
    repair     Lost messages, sent again
    source     The data source of Spark
    spark      Spark itself
    run        A run from manifests to its verdict
    repaired   What was sent again
    judge      One task, and the sum of many
    files      Files and values that know no log

Each part imports only from parts below it.
"""
