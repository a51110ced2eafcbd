"""The JSON document of a run (`spark_tools/run/report.py::report`), as those read it who show it.

Only what is shown is named here; whatever else a document has is left alone.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from spark_tools.files.errors import ReconcileError
from spark_tools.run.report import REPORT_SCHEMA

Row = dict[str, Any]
"""Of a table by hour: `hour`, `subject` or `target`, `lateness_ms`, and counts without zeros."""


class ManifestRead(msgspec.Struct, kw_only=True):
    """A manifest that was read."""

    cluster: str
    group: str
    node: str
    role: str
    root: str
    made: str
    sequence: int
    first_sequence: int
    log_next_sequence: int
    segments: int
    sealed: int


class Problem(msgspec.Struct, kw_only=True):
    """Why the input is not complete."""

    cluster: str
    group: str
    node: str
    problem: str


class Bucket(msgspec.Struct):
    """Deliveries of one bucket of lateness."""

    from_ms: int
    count: int


class Lateness(msgspec.Struct, kw_only=True):
    """Lateness of all deliveries of a group; max: the largest, ms."""

    max: int | None = None
    buckets: list[Bucket] = []


class Sum(msgspec.Struct, kw_only=True):
    """One thing that must add up."""

    what: str
    found: int
    must_be: int


class ReplicaHour(msgspec.Struct, kw_only=True):
    """An hour of which a replica has something else."""

    node: str
    hour: str
    what: str
    authority: int
    replica: int


class Group(msgspec.Struct, kw_only=True):
    """What was found of one group."""

    cluster: str
    group: str
    accepted: int
    copies: int = 0
    retries: int = 0
    bytes: int
    states: dict[str, int]
    facts: int
    fact_classes: dict[str, int]
    early: int
    sent_past_due: int = 0
    misfiled: int
    doubled: int
    log: dict[str, int]
    deleted: dict[str, int] = {}
    pending_before: int = 0
    not_compared: dict[str, int] = {}
    replicas_differ: list[ReplicaHour] = []
    repairs: dict[str, int] = {}
    books: list[Sum] = []
    lateness_ms: Lateness
    by_subject: list[Row]
    by_target: list[Row]

    @property
    def rows(self) -> dict[str, int]:
        """Rows by where they come from."""
        return {"accepted": self.accepted, "copies": self.copies, "retries": self.retries}

    @property
    def name(self) -> str:
        """Cluster and group."""
        return f"{self.cluster}.{self.group}"


class Example(msgspec.Struct, kw_only=True):
    """A finding, or what else is named."""

    kind: str = msgspec.field(name="class")
    cluster: str
    group: str
    sequence: int | None = None
    message_id: str | None = None
    subject: str | None = None
    due_ms: int | None = None
    at_ms: int | None = None
    target: str | None = None
    outcome: str | None = None
    file: str | None = None
    position: int | None = None
    note: str | None = None


class Document(msgspec.Struct, kw_only=True):
    """All of it."""

    schema: int
    verdict: str
    exit_code: int
    complete: bool
    parameters: dict[str, Any]
    watermark: str
    watermark_ms: int
    manifests: list[ManifestRead]
    findings: dict[str, int]
    problems: list[Problem]
    groups: list[Group]
    examples: list[Example]


class _Versioned(msgspec.Struct):
    schema: int


def document_of(result: Mapping[str, Any]) -> Document:
    """Return what `report` made as a document."""
    return msgspec.convert(result, Document)


def read_document(path: Path) -> Document:
    """Return the document that `--output` wrote.

    Raises ReconcileError for what is none of this version, OSError for what cannot be read.
    """
    data = path.read_bytes()
    try:
        schema = msgspec.json.decode(data, type=_Versioned).schema
        if schema != REPORT_SCHEMA:
            raise ReconcileError(
                f"{path} is a result of schema {schema}, this version knows {REPORT_SCHEMA}: make "
                "the page with the version that wrote it"
            )
        return msgspec.json.decode(data, type=Document)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReconcileError(f"{path} is no result of `spark reconcile`: {error}") from error
