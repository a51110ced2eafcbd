"""Reconciling the logs of a cluster: what was accepted with what became of it.

Needs the extra `spark` (pyarrow). `spark_tools/plan.py` cuts the work into tasks,
`spark_tools/segments.py` does one of them, `spark_tools/account.py` adds them up; an engine
(`spark_tools/local.py`) runs them. `spark_tools/by_hour.py` does each hour once, as it closes.
"""
