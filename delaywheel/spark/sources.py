"""Shared options of `delaywheel spark`: the logs to read, and the bounds of findings."""

import functools
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from delaywheel.shared.options import option, with_options
from delaywheel.shared.parameters import Parsed
from delaywheel.spark.verdicts import extra_required

if TYPE_CHECKING:
    from spark_tools.run.plan import Request, Source


def _root(text: str) -> str:
    """Return a data directory that is there, or the URI of one elsewhere: only reading finds it."""
    with extra_required():
        from spark_tools.files.errors import RemoteError
        from spark_tools.files.roots import local_path
    try:
        path = local_path(text)
    except RemoteError as error:
        raise ValueError(str(error)) from error
    if path is not None and not path.is_dir():
        raise ValueError(f"the directory {path} does not exist")
    return text if path is None else str(path)


def _result(text: str) -> Path:
    """Return a local path for results; a URI would become a directory of a strange name."""
    if "://" in text:
        raise ValueError(f"{text} is a URI: write to this machine, and copy it then")
    return Path(text)


RESULT = Parsed("path", _result)
_SOURCES = (
    option(
        "--root DATA_DIR...",
        "The data directory of a node, or the URI of a copy (s3://, gs://, hdfs://), as it is now.",
        to="roots",
        type=Parsed("directory", _root),
    ),
    option(
        "--manifest FILE[=DATA_DIR]...",
        "A manifest from `delaywheel log manifest`, and the directory of its files (if not "
        "given, that of the manifest); both may be URIs.",
        to="manifests",
    ),
)
_JUDGING = {
    "grace_ms": option(
        "--grace-ms MS>=0",
        "A message without a fact is overdue this long after its due time.",
        default=60_000,
    ),
    "max_late": option("--max-late MS>=0", "Longer lateness is a finding."),
    "expected_groups": option(
        "--expect-group GROUP...",
        "The input is incomplete without this group.",
        to="expected_groups",
    ),
    "subjects_max": option(
        "--subjects-max N>=1",
        "Number of subjects with figures of their own; the others are added up in one row.",
        default=100_000,
    ),
    "examples": option(
        "--examples N>=0", "Number of findings of each class that the result shows.", default=20
    ),
    "rows_at_once": option(
        "--rows-at-once N>=1",
        "Split larger segments into several tasks; a task needs about 260 bytes a row. The "
        "result is the same.",
        default=4_000_000,
    ),
}
"""By the field of a Request, or its parameter."""
_AUDITS = option(
    "--repairs AUDIT...",
    "The audit of a `spark repair`: messages that it sent again count as `repaired`, not "
    "as lost, and the copies not as late.",
    to="audits",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
Command = Callable[..., None]


def judged(command: Command) -> Command:
    """Give a command the options of a Request, as one argument `asked`; but its range, and final.

    `asked` is called with what else there is to a Request: who shows help needs none of it.
    """

    @functools.wraps(command)
    def with_request(**given: Any) -> None:  # noqa: ANN401 (whatever options there are)
        values = {name: given.pop(name) for name in _JUDGING}
        values["max_late_ms"] = values.pop("max_late")
        command(**given, asked=functools.partial(_request, values))

    return with_options(with_request, tuple(_JUDGING.values()))


def reading(command: Command) -> Command:
    """Give a command the options `roots` and `manifests`, for `sources_of`."""
    return with_options(command, _SOURCES)


def knowing_repairs(command: Command) -> Command:
    """Give a command the option `audits`, for `spark_tools.repaired.repairs.read_repairs`."""
    return _AUDITS(command)


def _request(values: dict[str, Any], **more: Any) -> "Request":  # noqa: ANN401 (fields of Request)
    from spark_tools.run.plan import Request

    return Request(**values, **more)


def sources_of(
    roots: Iterable[str], manifests: Iterable[str], from_minute: int, *, is_final: bool = False
) -> "list[Source]":
    """Return what is named; of directories all that ended after a minute is told."""
    from spark_tools.source.manifests import source_of_directory, source_of_file

    now_ms = int(time.time() * 1000)
    found = [
        source_of_directory(root, now_ms=now_ms, from_minute=from_minute, is_final=is_final)
        for root in roots
    ]
    return found + [source_of_file(text, is_final=is_final) for text in manifests]
