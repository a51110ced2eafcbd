"""A first look at the logs of delay servers with Spark: what was sent, what left, and how late.

python examples/spark/first_look.py                    makes some logs and looks at them
python examples/spark/first_look.py DATA_DIR ...       looks at those of your nodes
spark-submit examples/spark/first_look.py DATA_DIR ...

A DATA_DIR may be a URI (s3://bucket/node1) as well; see docs/spark.md.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

try:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql import functions as f
except ModuleNotFoundError:
    sys.exit("pyspark is missing: in a checkout make install brings it")

from examples.departures.processes import NotReadyError
from examples.spark.day import make_day
from spark_tools.files.errors import SparkFailedError
from spark_tools.files.java import why_no_java
from spark_tools.spark.session import spark_session

MESSAGE = ["cluster", "group", "sequence"]
"""What names a message."""
SUBJECTS_MAX = 8
"""Columns that fit on a terminal: the first by name."""
ZONE = {"spark.sql.session.timeZone": "UTC"}
"""Of the times that are shown, wherever it runs."""
SMALL = {
    **ZONE,
    "spark.sql.shuffle.partitions": "2",
    # Starts sooner, and computes slower: not for much data.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Settings for a few thousand messages on one machine."""


def look_at(spark: SparkSession, roots: list[str]) -> None:
    """Print a few small tables."""

    def read(kind: str, **options: str) -> DataFrame:
        reader = spark.read.format("delaywheel").option("roots", json.dumps(roots))
        return reader.option("kind", kind).options(**options).load()

    columns = ",".join([*MESSAGE, "subject", "message_id", "due_ms", "filed_minute"])
    # The schedule_log has what is filed by due time. What was accepted a moment ago is in the
    # message_log only: `unfiled` leaves out what is in both.
    filed = read("schedule", columns=columns)
    messages = filed.unionByName(read("message", columns=columns, unfiled="true")).cache()
    facts = read("dispatch").cache()

    subjects = sorted(row["subject"] for row in messages.select("subject").distinct().collect())
    hours = by_hour(messages, subjects)
    show("messages by the hour in which they are due, and by subject", hours)
    # What was sent when its due minute had passed is filed in a later minute: it has no lateness.
    in_time = messages.where(f.col("filed_minute") * 60_000 <= f.col("due_ms"))
    delivered = in_time.join(facts.where("outcome = 'delivered'"), MESSAGE)
    delivered = delivered.withColumn("late_ms", f.col("at_ms") - f.col("due_ms"))
    show("how late they were delivered", lateness(delivered), rows=10)
    show("the latest of them", latest(delivered), rows=5)
    waiting = messages.join(facts, MESSAGE, "left_anti")
    show("what nobody has delivered yet", by_hour(waiting, subjects))
    show("the next of them", waiting.orderBy("due_ms", "message_id").select(due(), *MORE), rows=5)


MORE = ["subject", "message_id"]


def due() -> Column:
    """Return when a message is due."""
    return f.timestamp_millis("due_ms").alias("due")


def by_hour(messages: DataFrame, subjects: list[str]) -> DataFrame:
    """Count messages: a row for each hour, a column for each subject."""
    hour = f.date_trunc("hour", f.timestamp_millis("due_ms")).alias("hour")
    return (
        messages.groupBy(hour)
        .pivot("subject", [*subjects[:SUBJECTS_MAX]])
        .count()
        .na.fill(0)
        .orderBy("hour")
    )


def lateness(delivered: DataFrame) -> DataFrame:
    """Return quantiles of lateness for each subject and broker group."""
    return (
        delivered.groupBy("subject", "target")
        .agg(
            f.count("*").alias("messages"),
            *(
                f.percentile_approx("late_ms", part).alias(f"p{part * 100:g}_ms")
                for part in (0.5, 0.9, 0.99)
            ),
            f.max("late_ms").alias("max_ms"),
        )
        .orderBy("subject", "target")
    )


def latest(delivered: DataFrame) -> DataFrame:
    """Return what was delivered last after it was due: schedule_log and dispatch_log, joined."""
    ordered = delivered.orderBy(f.desc("late_ms"), "message_id")
    return ordered.select(due(), *MORE, "target", "late_ms")


def show(title: str, table: DataFrame, *, rows: int = 48) -> None:
    """Print a table."""
    print(f"\n{title}")
    table.show(rows, truncate=False)


def main(roots: list[str]) -> None:
    """Look at what is there, or make something to look at."""
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    problem = None if is_submitted else why_no_java(os.environ)
    if problem is not None:
        sys.exit(problem)
    with tempfile.TemporaryDirectory(prefix="delaywheel-") as directory:
        if not roots:
            print("a day of departures goes through a delay server: ten seconds", flush=True)
            try:
                roots = [str(make_day(Path(directory)))]
            except NotReadyError as error:
                sys.exit(f"cannot make anything to look at: {error}")
        # Under spark-submit master and settings are what that was told. Otherwise what Spark says
        # while it starts is kept back, and shown if it fails.
        try:
            with spark_session(
                master=None, conf=ZONE if is_submitted else SMALL, log=None
            ) as spark:
                spark.sparkContext.setLogLevel("ERROR")
                look_at(spark, roots)
        except SparkFailedError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
