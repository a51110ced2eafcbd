"""What holds for all tests; one Spark session and one PostgreSQL for those of a process."""

import os
import time
from collections.abc import Iterator
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests import seeds
from tests.kit.virtual_time import run_in_virtual_time

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.meta_server.private_postgresql import PrivatePostgresql
    from tests.spark_tools.s3_server import Store

HERE = Path(__file__).parent

# Machines on which tests run are busy: how long one example took says nothing.
settings.register_profile("quick", deadline=None, max_examples=seeds.QUICK_EXAMPLES)
settings.register_profile("long", deadline=None, max_examples=seeds.LONG_EXAMPLES)
settings.load_profile("long" if seeds.is_long() else "quick")

# Before workers start, so that all have the same seeds.
seeds.day()

SPARK_CONF = {
    # Tests are short: what is compiled well comes too late for them.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
}


IN_VIRTUAL_TIME = (
    "bridges/test_registration.py",
    "delay_server",
    "delay_transport/connections",
    "delay_transport/http/test_api.py",
    "delay_transport/http/test_openapi.py",
    "delay_transport/meta",
    "delay_transport/seams/test_outbox.py",
    "delivery",
    "failover",
    "meta_server",
    "sender",
    "simulation/test_changing.py",
)
"""Where async tests run by a clock that jumps whenever no task can run, but for those marked."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what needs Spark first: one worker gets all of it, and starts one session."""
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)
    for item in items:
        is_async = isinstance(item, pytest.Function) and iscoroutinefunction(item.obj)
        is_there = item.path.relative_to(HERE).as_posix().startswith(IN_VIRTUAL_TIME)
        if is_async and is_there and item.get_closest_marker("real_time") is None:
            # The first marker decides; pytest-trio itself puts one that runs in real time.
            item.add_marker(pytest.mark.trio(run=run_in_virtual_time), append=False)


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    """Give the process its umask back: a server that a test runs in it sets its own."""
    mask = os.umask(0o022)
    os.umask(mask)
    yield
    os.umask(mask)


@pytest.fixture(scope="session")
def postgresql() -> Iterator["PrivatePostgresql"]:
    """Run a PostgreSQL; skip what needs it where there is none, or fail there if it must be."""
    from tests.meta_server.private_postgresql import (  # noqa: PLC0415 (where it is wanted)
        binaries,
        private_postgresql,
    )

    programs = binaries()
    if programs is None:
        reason = "no PostgreSQL server here: install the package postgresql"
        if os.environ.get("DELAYWHEEL_TESTS_NEED_POSTGRESQL"):
            pytest.fail(reason)
        pytest.skip(reason)
    with private_postgresql(programs) as server:
        yield server


@pytest.fixture(scope="session")
def java() -> None:
    """Skip what needs a Java for Spark where there is none; fail there if it must be."""
    from spark_tools.files.java import why_no_java  # noqa: PLC0415 (where Spark is wanted)

    reason = why_no_java(os.environ)
    if reason is not None and os.environ.get("DELAYWHEEL_TESTS_NEED_SPARK"):
        pytest.fail(reason)
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Store"]:
    """Serve S3 to this process and to those that it starts; each test has buckets of its own."""
    from tests.spark_tools.s3_server import s3_store  # noqa: PLC0415 (where it is wanted)

    with s3_store(tmp_path_factory.mktemp("s3")) as store, pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment().items():
            patch.setenv(name, value)
        yield store


@pytest.fixture(scope="session")
def spark(
    java: None,  # noqa: ARG001 (has looked for it)
    s3: "Store",  # noqa: ARG001 (is in the environment that Spark's workers are started with)
) -> Iterator["SparkSession"]:
    from spark_tools.spark.session import spark_session  # noqa: PLC0415 (where Spark is wanted)

    with spark_session(master="local[2]", conf=SPARK_CONF, log=None) as session:
        yield session


@pytest.fixture
def new_york(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have a test, Spark's queries and its workers live in New York."""
    zone, session_zone = "America/New_York", "spark.sql.session.timeZone"
    monkeypatch.setenv("TZ", zone)
    monkeypatch.setitem(spark.sparkContext.environment, "TZ", zone)
    time.tzset()
    before = spark.conf.get(session_zone)
    spark.conf.set(session_zone, zone)
    yield
    assert before is not None
    spark.conf.set(session_zone, before)
    monkeypatch.undo()
    time.tzset()
