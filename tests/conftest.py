"""What holds for all tests, and one Spark session for those of a process."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Machines on which tests run are busy: how long one example took says nothing.
settings.register_profile("delaywheel", deadline=None)
settings.load_profile("delaywheel")

SPARK_CONF = {
    # Tests are short: what is compiled well comes too late for them.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
}


@pytest.fixture(scope="session")
def java() -> None:
    """Skip what needs a Java for Spark where there is none; fail there if it must be."""
    from spark_tools.java import why_no_java  # noqa: PLC0415 (where Spark is wanted)

    reason = why_no_java(os.environ)
    if reason is not None and os.environ.get("DELAYWHEEL_TESTS_NEED_SPARK"):
        pytest.fail(reason)
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def spark(java: None) -> Iterator["SparkSession"]:  # noqa: ARG001 (has looked for it)
    from spark_tools.session import spark_session  # noqa: PLC0415 (where Spark is wanted)

    with spark_session(master="local[2]", conf=SPARK_CONF, log=None) as session:
        yield session
