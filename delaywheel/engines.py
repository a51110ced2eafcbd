"""What works for the commands of `delaywheel spark`: Spark, or processes of this machine."""

import contextlib
import functools
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from delaywheel.failures import Failure
from delaywheel.options import with_options
from delaywheel.parameters import PAIR
from delaywheel.verdicts import ERROR, INSTALL_EXTRA

if TYPE_CHECKING:
    from spark_tools.reconcile import Engine, Result


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """What the options say."""

    engine: str
    processes: int | None = None
    master: str | None = None
    conf: tuple[tuple[str, str], ...] = ()
    spark_log: Path | None = None
    verify: str | None = None

    def require_fitting(self) -> None:
        """Raise UsageError for options of the other engine."""
        of_spark = {
            "--master": self.master,
            "--conf": self.conf,
            "--spark-log": self.spark_log,
            "--verify": self.verify,
        }
        given = [name for name, value in of_spark.items() if value]
        if self.engine == "local" and given:
            raise click.UsageError(f"{given[0]} is for --engine spark")
        if self.engine == "spark" and self.processes is not None:
            raise click.UsageError("--processes is for --engine local; say --master local[N]")


_OPTIONS = (
    click.option(
        "--engine",
        type=click.Choice(["spark", "local"]),
        default="spark",
        show_default=True,
        help="What works: Spark, or processes of this machine, which need no Java. Both find the "
        "same.",
    ),
    click.option(
        "--processes",
        type=click.IntRange(min=1),
        metavar="N",
        help="With --engine local, how many of them (1 if nothing is said).",
    ),
    click.option(
        "--master",
        metavar="URL",
        help="Where Spark works: local[2], spark://HOST:PORT, yarn, k8s://... (local[*], or what "
        "spark-submit was told, if nothing is said).",
    ),
    click.option(
        "--conf",
        multiple=True,
        type=PAIR,
        metavar="KEY=VALUE",
        help="A setting of Spark's. May be given several times.",
    ),
    click.option(
        "--spark-log",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write here what Spark and its workers say (otherwise told only if they fail).",
    ),
    click.option(
        "--verify",
        type=click.Choice(["join"]),
        help="Count everything once more by joins, and end with an error unless both are alike.",
    ),
)
_NAMES = ("engine", "processes", "master", "conf", "spark_log", "verify")


def engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of an engine, as one argument `choice`."""

    @functools.wraps(command)
    def with_choice(**given: Any) -> None:  # noqa: ANN401 (whatever options there are)
        choice = EngineChoice(**{name: given.pop(name) for name in _NAMES})
        choice.require_fitting()
        command(**given, choice=choice)

    return with_options(with_choice, _OPTIONS)


@dataclass(frozen=True, slots=True)
class Running:
    """An engine that works; verify: raises an error unless a result is confirmed."""

    run: "Engine"
    verify: "Callable[[Result], None]" = field(default=lambda _: None)


@contextlib.contextmanager
def running(choice: EngineChoice) -> Iterator[Running]:
    """Yield what was chosen; what was started for it ends with the block.

    Raises Failure or SparkFailedError where Spark cannot be started.
    """
    if choice.engine == "local":
        from spark_tools.local import local_engine

        yield Running(local_engine(choice.processes or 1))
        return
    if importlib.util.find_spec("pyspark") is None:
        raise Failure(
            f"pyspark is missing: {INSTALL_EXTRA}; or use --engine local",
            ERROR,
        )
    from spark_tools.join_check import check_by_join
    from spark_tools.session import spark_session
    from spark_tools.spark_engine import spark_engine

    settings = dict(choice.conf)
    with spark_session(master=choice.master, conf=settings, log=choice.spark_log) as session:
        engine = spark_engine(session)
        if choice.verify is None:
            yield Running(engine)
        else:
            yield Running(engine, functools.partial(check_by_join, session))
