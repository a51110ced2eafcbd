"""`spark-submit [OPTIONS] reconcile.py ...`: what `delaywheel spark reconcile ...` does.

It runs on the master that spark-submit was given, with the same options and exit codes. delaywheel
must be installed where the driver runs and where executors do, with its extra `spark`.
"""

from delaywheel.spark.commands import reconcile

if __name__ == "__main__":
    reconcile(prog_name="reconcile.py")
