"""`spark-submit [OPTIONS] hours.py ...`: what `delaywheel spark hours ...` does.

With the same options and exit codes; it works where its option `--engine` says.
"""

from delaywheel.spark.hours import hours

if __name__ == "__main__":
    hours(prog_name="hours.py")
