"""The engines of `delaywheel spark`: Spark, or processes of this machine."""

import contextlib
import functools
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from delaywheel.shared.failures import Failure
from delaywheel.shared.options import option, with_options
from delaywheel.shared.parameters import PAIR
from delaywheel.spark.verdicts import ERROR, INSTALL_EXTRA

if TYPE_CHECKING:
    from spark_tools.run.reconcile import Engine

Command = Callable[..., None]
_Option = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """The engine that the options choose."""

    engine: str
    processes: int | None = None
    master: str | None = None
    conf: tuple[tuple[str, str], ...] = ()
    spark_log: Path | None = None

    def require_fitting(self) -> None:
        """Raise UsageError for options of the other engine."""
        of_spark = {
            "--master": self.master,
            "--conf": self.conf,
            "--spark-log": self.spark_log,
        }
        given = [name for name, value in of_spark.items() if value]
        if self.engine == "local" and given:
            raise click.UsageError(f"{given[0]} is for --engine spark")
        if self.engine == "spark" and self.processes is not None:
            raise click.UsageError("--processes is for --engine local; say --master local[N]")


_OPTIONS: tuple[_Option, ...] = (
    option(
        "--engine",
        "Run the tasks in Spark, or in processes of this machine, which need no Java. The "
        "results are the same.",
        type=click.Choice(["spark", "local"]),
        default="spark",
    ),
    option("--processes N>=1", "Number of processes with --engine local (1 if not given)."),
    option(
        "--master URL",
        "The master URL of Spark: local[2], spark://HOST:PORT, yarn, k8s://... (if not "
        "given, that of spark-submit, or local[*]).",
    ),
    option("--conf KEY=VALUE...", "A configuration property of Spark.", type=PAIR),
    option(
        "--spark-log FILE",
        "A file for the log of Spark and its workers (otherwise shown only if they fail).",
    ),
)
_NAMES = tuple(one.name for one in fields(EngineChoice))


def engine_options(command: Command) -> Command:
    """Give a command the options of an engine, as one argument `choice`."""

    @functools.wraps(command)
    def with_choice(**given: Any) -> None:  # noqa: ANN401 (whatever options there are)
        choice = EngineChoice(**{name: given.pop(name) for name in _NAMES})
        choice.require_fitting()
        command(**given, choice=choice)

    return with_options(with_choice, _OPTIONS)


@contextlib.contextmanager
def running(choice: EngineChoice) -> "Iterator[Engine]":
    """Yield the engine that was chosen; what was started for it ends with the block.

    Raises Failure or SparkFailedError where Spark cannot be started.
    """
    if choice.engine == "local":
        from spark_tools.run.local import local_engine

        yield local_engine(choice.processes or 1)
        return
    if importlib.util.find_spec("pyspark") is None:
        raise Failure(
            f"pyspark is missing: {INSTALL_EXTRA}; or use --engine local",
            ERROR,
        )
    from spark_tools.spark.engine import spark_engine
    from spark_tools.spark.session import spark_session

    settings = dict(choice.conf)
    with spark_session(master=choice.master, conf=settings, log=choice.spark_log) as session:
        yield spark_engine(session)
