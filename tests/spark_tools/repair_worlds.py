"""Worlds in which messages are lost, and what a run writes down of them."""

import random
from pathlib import Path

import xxhash

from spark_tools.repaired.repairs import Repairs
from spark_tools.run.local import local_engine
from spark_tools.run.plan import Request, Source, make_plan
from spark_tools.run.reconcile import Result, reconcile
from spark_tools.run.report import Details
from storage.batch.facts import Outcome
from storage.disk.spans import MINUTE_MS, SegmentKey, Span
from tests.spark_tools.worlds import T0, Builder, Fact

BEFORE = T0 - 2
"""The minute of a segment that is sealed."""


def builder_of(seed: int, faults: frozenset[str] = frozenset(), *, count: int = 60) -> Builder:
    """Return a builder whose messages have the hashes that a server gives them."""
    builder = Builder(random.Random(seed), faults)
    builder.accept(count)
    with_hashes(builder)
    builder.file()
    builder.tell()
    return builder


def with_hashes(builder: Builder) -> None:
    """Have messages be such as a server takes."""
    for one in builder.messages:
        one.id_hash = xxhash.xxh3_64_intdigest(b"id-%d" % one.sequence)
        one.subject = one.subject.decode("latin-1").encode()


def sealed_builder(*, lost: int = 3, missing: int = 0, count: int = 12) -> Builder:
    """Return a builder of one sealed segment, in which the first rows are lost or missing."""
    builder = Builder(random.Random(count))
    builder.accept(count)
    with_hashes(builder)
    key = SegmentKey(BEFORE, Span.MINUTE)
    for one in builder.messages:
        one.due_ms = BEFORE * MINUTE_MS + one.sequence
        one.floor = 0
    builder.batches = [(kind, 0, batch) for kind, _, batch in builder.batches]
    builder.rows[key] = list(builder.messages[missing:])
    builder.filed[key] = [
        Fact(one.sequence, BEFORE, one.due_ms + 5, b"g1", Outcome.DELIVERED)
        for one in builder.messages[missing + lost :]
    ]
    builder.sealed.add(key)
    builder.filed_sequence = builder.log_next - 1
    return builder


def run(
    source: Source, details: Path, request: Request | None = None, repairs: Repairs | None = None
) -> Result:
    """Reconcile, and write the details."""
    with Details(details) as kept:
        plan = make_plan([source], request or Request())
        result = reconcile(plan, local_engine(1), kept.add, repairs)
        kept.add_tables(result)
    return result
