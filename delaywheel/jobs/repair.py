"""`spark-submit [OPTIONS] repair.py ...`: what `delaywheel spark repair ...` does.

With the same options and exit codes. It reads and sends from the driver: no executor takes part, as
one process keeps the audit, and the rate.
"""

from delaywheel.spark.repair import repair

if __name__ == "__main__":
    repair(prog_name="repair.py")
