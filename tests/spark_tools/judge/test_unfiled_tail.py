"""What the end of the message_log tells beside the files of segments counts, and counts once."""

import random
from pathlib import Path

import msgspec
import numpy as np
import pytest

from spark_tools.run.plan import Request
from spark_tools.run.reconcile import Verdict
from storage.batch.columns import RecordKind
from storage.batch.facts import Outcome
from storage.disk.spans import MINUTE_MS, SegmentKey, Span
from storage.logs.message_log import Draft
from storage.readers.manifest import Fault, UnsealedSegment
from tests.spark_tools.run.test_reconcile import check, run
from tests.spark_tools.worlds import NAMING, T0, Builder, Fact, Message, World
from tests.storage.plain_logs import batches, plain_facts
from tests.storage.qmq_items import qmq_item

KEY = SegmentKey(T0 - 5, Span.MINUTE)
"""A segment of which all is due."""
REQUEST = Request(grace_ms=0)


def builder_of(count: int = 4) -> Builder:
    """Return a builder of messages that are filed in one segment, which is not sealed."""
    builder = Builder(random.Random(1), grows=True, filed_sequence=count + 1, log_next=count + 2)
    due_ms = KEY.start * MINUTE_MS
    builder.messages = [
        Message(sequence, due_ms + sequence, 0, b"gate", sequence, b"")
        for sequence in range(2, count + 2)
    ]
    builder.batches = [(RecordKind.MESSAGE, 0, [one]) for one in builder.messages]
    builder.rows[KEY] = list(builder.messages)
    return builder


def fact_of(message: Message, outcome: Outcome = Outcome.DELIVERED) -> Fact:
    target = b"" if outcome in NAMING else b"g1"
    return Fact(message.sequence, KEY.start, message.due_ms + 5, target, outcome)


def totals_of(world: World, root: Path) -> dict[str, int]:
    """Return what is found, which is what the slow loop finds."""
    return dict(check(world, root, REQUEST).groups[0].account.totals)


def segment_of(world: World) -> UnsealedSegment:
    [segment] = world.manifest.segments
    return segment


def test_a_fact_that_is_filed_and_stated_in_the_tail_is_counted_once(tmp_path: Path) -> None:
    builder = builder_of()
    first, second, *_ = builder.messages
    builder.filed[KEY] = [fact_of(first)]
    builder.unfiled = [fact_of(second)]
    world = builder.build()
    segment = segment_of(world)
    assert world.manifest.sequence < segment.last_fact < world.manifest.log_next_sequence - 1
    totals = totals_of(world, tmp_path / "guarded")
    assert (totals["facts"], totals["delivered"], totals["overdue"]) == (2, 2, 2)
    assert totals["repeated"] == 0
    # It is the segment's last fact that says so.
    unguarded = msgspec.structs.replace(segment, last_fact=segment.last_fact - 1)
    world.manifest = msgspec.structs.replace(world.manifest, segments=(unguarded,))
    totals = totals_of(world, tmp_path / "unguarded")
    assert (totals["facts"], totals["repeated"], totals["delivered"]) == (3, 1, 2)


def test_a_message_that_was_moved_is_done_and_is_a_retry(tmp_path: Path) -> None:
    builder = builder_of()
    due_ms = (T0 + 7) * MINUTE_MS
    item = qmq_item(due_ms, b"gate", b"moved", b"")
    builder.more = [
        Draft(
            kind=RecordKind.MOVE,
            count=1,
            names=[b"gate"],
            arrays={
                "old_sequence": np.array([builder.messages[0].sequence], np.int64),
                "due_ms": np.array([due_ms], np.int64),
                "id_hash": np.array([1], np.uint64),
                "size": np.array([len(item)], np.uint32),
                "old_minute": np.array([KEY.start], np.uint32),
                "subject": np.array([0], np.uint16),
            },
            blob=[item],
        )
    ]
    totals = totals_of(builder.build(), tmp_path)
    assert (totals["accepted"], totals["retries"]) == (4, 1)
    assert (totals["moved"], totals["waiting"]) == (1, 1)


def test_a_fact_about_a_sealed_segment_or_of_no_segment_is_dropped(tmp_path: Path) -> None:
    builder = builder_of()
    builder.filed[KEY] = [fact_of(one) for one in builder.messages]
    builder.sealed.add(KEY)
    nowhere = Fact(2, T0 + 300, 1, b"g1", Outcome.DELIVERED)
    builder.unfiled = [fact_of(one) for one in builder.messages[:2]] + [nowhere]
    totals = totals_of(builder.build(), tmp_path)
    assert (totals["delivered"], totals["lost"]) == (4, 0)
    assert (totals["facts"], totals["repeated"], totals["phantom"]) == (4, 0, 0)


def test_a_fact_that_its_sealed_segment_has_lost_counts_while_the_log_states_it(
    tmp_path: Path,
) -> None:
    builder = builder_of()
    builder.filed[KEY] = [fact_of(builder.messages[1])]
    builder.sealed.add(KEY)
    builder.unfiled = [fact_of(one) for one in builder.messages[:3]]
    world = builder.build()
    for sequence in (world.manifest.sequence, world.manifest.log_next_sequence - 1):
        # Whether its record is at the end of the log, or long before it.
        world.manifest = msgspec.structs.replace(world.manifest, sequence=sequence)
        totals = totals_of(world, tmp_path / f"{sequence}")
        assert (totals["delivered"], totals["lost"]) == (3, 1)
        assert (totals["facts"], totals["repeated"]) == (3, 0)


@pytest.mark.parametrize("is_sealed", [False, True])
def test_of_facts_whose_file_is_gone_those_of_the_log_count(
    is_sealed: bool, tmp_path: Path
) -> None:
    builder = builder_of()
    builder.filed[KEY] = [fact_of(one) for one in builder.messages[:3]]
    builder.grows = False
    builder.unfiled = [fact_of(builder.messages[3])] * (not is_sealed)
    if is_sealed:
        builder.sealed.add(KEY)
    world = builder.build()
    fault = Fault(file=KEY.facts_path, position=0, reason="the file is gone")
    world.manifest = msgspec.structs.replace(world.manifest, faults=(fault,))
    del world.files[KEY.facts_path]
    result, findings = run([world.written(tmp_path)], REQUEST)
    totals = result.groups[0].account.totals
    assert (totals["delivered"], totals["unknown"]) == ((3, 1) if is_sealed else (4, 0))
    assert (result.verdict, findings.num_rows) == (Verdict.INCOMPLETE, 0)


@pytest.mark.parametrize("is_sealed", [False, True])
def test_damaged_facts_in_the_tail_are_unknown_where_they_would_count(
    is_sealed: bool, tmp_path: Path
) -> None:
    builder = builder_of()
    builder.filed[KEY] = [fact_of(builder.messages[0])]
    if is_sealed:
        builder.sealed.add(KEY)
    builder.unfiled = [fact_of(one) for one in builder.messages[1:]]
    world = builder.build()
    log = world.manifest.message_log[-1]
    data = world.files[log.file]
    filed = segment_of(world).last_fact if not is_sealed else world.manifest.sequence + 1
    places = {
        int(row["position"])  # type: ignore[call-overload]
        for row in plain_facts(log.file, data, log.length)
        if row["record"] > filed  # type: ignore[operator]
    }
    assert places <= {position for position, _ in batches(data, log.length)}
    for place in places:
        data = data[: place + 90] + b"\xff\xfe" + data[place + 92 :]
    world.files[log.file] = data
    result, findings = run([world.written(tmp_path)], REQUEST)
    totals = result.groups[0].account.totals
    assert totals["delivered"] == 1
    assert any(log.file in problem for _, _, _, problem in result.problems)
    assert (totals["overdue"], totals["unknown"], findings.num_rows) == (0, 3, 0)
    assert result.verdict is Verdict.INCOMPLETE
