"""What makes Spark know `spark.read.format("delaywheel")`: it looks for packages of such names.

Spark imports this whenever a session first asks for a data source; the rest is in `spark_tools`.
"""

from spark_tools.source.source import DelaywheelSource as DefaultSource

__all__ = ["DefaultSource"]
