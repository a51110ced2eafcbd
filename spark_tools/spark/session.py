"""A Spark session for one run: the one that is there, or a quiet one of its own."""

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from spark_tools.files.errors import SparkFailedError
from spark_tools.files.java import why_no_java

_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set where spark-submit has started the JVM already."""
_TAIL_BYTES = 2000
_LOCAL: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    # A join of small tables in 200 parts takes seconds.
    "spark.sql.shuffle.partitions": "8",
}


@contextlib.contextmanager
def spark_session(
    *, master: str | None, conf: Mapping[str, str], log: Path | None
) -> Iterator[SparkSession]:
    """Yield a session: the active one, that of spark-submit, or a new one that ends with the block.

    master: None for `local[*]`, or what spark-submit was given; conf: settings of Spark's; log: a
    file for what Spark and its workers say, which is shown only if they fail otherwise.

    Raises SparkFailedError where Spark cannot be started.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        # A notebook's, say: whoever has made it, stops it.
        yield active
        return
    if _SUBMITTED in os.environ:
        session = _submitted(master, conf)
        try:
            yield session
        finally:
            session.stop()
        return
    problem = why_no_java(os.environ)
    if problem is not None:
        raise SparkFailedError(problem)
    with _log_file(log) as said:
        try:
            session = _own(master or "local[*]", conf, said)
        except (PySparkRuntimeError, Py4JError) as error:
            raise SparkFailedError(f"Spark could not be started: {_tail(said)}") from error
        try:
            yield session
        except SparkFailedError as error:
            if log is None:
                raise SparkFailedError(f"{error}\n{_tail(said)}") from error
            raise
        finally:
            session.stop()


def _submitted(master: str | None, conf: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.config(map=dict(conf))
    return (builder if master is None else builder.master(master)).getOrCreate()


def _own(master: str, conf: Mapping[str, str], said: IO[bytes]) -> SparkSession:
    if master.startswith("sc:"):
        raise SparkFailedError("Spark Connect runs no tasks of Python's own: name another master")
    settings = {
        "spark.app.name": "delaywheel",
        "spark.ui.showConsoleProgress": "false",
        **(_LOCAL if master.startswith("local") else {}),
        **conf,
        "spark.master": master,
    }
    if master.startswith("local"):
        # Workers would run whatever `python3` is.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # Spark would look up the machine's name, which may have no address, and listen there.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # What py4j raises it also logs, with the traceback, by the root logger: at each Ctrl-C, say.
    logging.getLogger().addHandler(logging.NullHandler())
    asked = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    output = {"stdout": said, "stderr": said}
    gateway = launch_gateway(asked, output)  # type: ignore[no-untyped-call]
    return SparkSession(SparkContext(gateway=gateway, conf=asked))


@contextlib.contextmanager
def _log_file(log: Path | None) -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile() if log is None else log.open("w+b") as file:
        yield file


def _tail(said: IO[bytes]) -> str:
    """Return the end of what Spark has said."""
    size = os.fstat(said.fileno()).st_size
    text = os.pread(said.fileno(), _TAIL_BYTES, max(size - _TAIL_BYTES, 0))
    return text.decode(errors="replace").strip() or "it said nothing"
