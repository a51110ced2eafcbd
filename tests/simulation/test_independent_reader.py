"""The second reader reads what the pages of docs/formats/ show, and refuses what is not like it."""

from uuid import UUID

import pytest

from storage.batch.batches import LogBatch
from storage.batch.facts import facts_stated
from storage.disk.spans import DEAD_MINUTES_FROM, SegmentKey, Span, dead_key, key_of_minute
from tests.simulation import independent_reader as reader
from tests.storage.dead_rig import DeadRig
from tests.storage.worked_examples import worked_examples

_UUID = UUID("6a0f3c52-9d1e-4b7a-8c35-2f1e0d9c8b7a").bytes
_DUE_MS = 1385510400000


def test_the_file_header_of_the_pages_is_read() -> None:
    header = reader.read_file_header(worked_examples("batches.md")[0])
    assert header == reader.FileHeader(_UUID, reader.MESSAGE_LOG, 1, 0, 0)


def test_the_batch_of_the_pages_is_read() -> None:
    header, batch = worked_examples("batches.md")
    found = reader.read_batch(batch, 0, len(batch), reader.read_file_header(header))
    assert (found.kind, found.base, found.count, found.floor_minute) == (1, 2, 2, 23091840)
    assert found.names == [b"boarding"]
    assert found.columns["due_ms"] == [1385510460000] * 2
    assert found.items == [b"first item", b"second"]


def test_the_message_log_of_the_pages_is_read() -> None:
    epoch, message = reader.read_batches(worked_examples("message_log.md")[0])
    assert (epoch.kind, epoch.base, epoch.epoch) == (reader.EPOCH_START, 1, 1)
    assert (message.kind, message.base, message.floor_minute) == (reader.MESSAGE, 2, 23091840)
    item = reader.read_item(message.items[0])
    assert (item.message_id, item.subject, item.due_ms) == (b"UA-1523", b"boarding", _DUE_MS)


def test_the_segment_of_the_pages_is_read() -> None:
    [rows] = reader.read_batches(worked_examples("schedule_log.md")[0])
    assert (rows.kind, rows.columns["sequence"], rows.columns["size"]) == (reader.ROWS, [2], [54])


def test_the_facts_of_the_pages_are_read() -> None:
    [facts] = reader.read_batches(worked_examples("dispatch_log.md")[0])
    assert facts.names == [b"g1"]
    assert facts.columns == {
        "sequence": [2],
        "at_ms": [_DUE_MS + 3],
        "minute": [23091840],
        "target": [0],
        "outcome": [reader.DELIVERED],
    }


def test_the_seals_of_the_pages_are_read() -> None:
    [seals] = reader.read_batches(worked_examples("seals.md")[0])
    assert (seals.columns["rows"], seals.columns["length"]) == ([1], [236])
    assert (seals.columns["start_minute"], seals.columns["span"]) == ([23091840], [1])


def test_the_durable_end_of_the_pages_is_read() -> None:
    slots = reader.read_durable_end(worked_examples("durable_end.md")[0], _UUID)
    assert [(slot.counter, slot.next_sequence, slot.position) for slot in slots] == [
        (2**48 + 2, 5, 564),
        (2**48 + 3, 9, 964),
    ]


def test_the_checkpoint_of_the_pages_is_read() -> None:
    found = reader.read_checkpoint(worked_examples("checkpoint.md")[0])
    assert found.sequence == 3
    [segment] = found.segments
    assert reader.segment_name(segment.start, segment.span) == "20131127T0000Z.minute"
    assert (segment.rows, segment.length, segment.facts_length) == (1, 245, 175)
    assert (segment.facts, segment.last_fact) == (1, 3)


def test_the_identity_of_the_pages_is_read() -> None:
    assert reader.read_incarnation(worked_examples("identity.md")[0]) == (_UUID, 3)


@pytest.mark.parametrize("name", ["20131127T0000Z.minute", "20131127T0400Z.hour"])
def test_a_segment_is_known_by_its_name(name: str) -> None:
    known = reader.read_segment_name(name)
    assert known is not None
    assert reader.segment_name(*known) == name


def test_other_names_are_no_segments() -> None:
    assert reader.read_segment_name("durable_end") is None
    assert reader.read_segment_name("20131127T0000Z.week") is None


@pytest.mark.parametrize(
    "page",
    ["message_log.md", "schedule_log.md", "dispatch_log.md", "seals.md"],
)
def test_no_bit_of_a_log_can_flip_unseen(page: str) -> None:
    [data] = worked_examples(page)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(reader.MismatchError):
            list(reader.read_batches(bytes(flipped)))


def test_no_bit_of_a_checkpoint_can_flip_unseen() -> None:
    [data] = worked_examples("checkpoint.md")
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(reader.MismatchError):
            reader.read_checkpoint(bytes(flipped))


def test_a_batch_that_follows_another_one_is_refused() -> None:
    [data] = worked_examples("message_log.md")
    first = next(reader.read_batches(data))
    twice = data[: first.position + first.size] + data[first.position :]
    with pytest.raises(reader.MismatchError, match="another one before"):
        list(reader.read_batches(twice))


def test_bytes_behind_the_end_do_not_count() -> None:
    [data] = worked_examples("schedule_log.md")
    assert len(list(reader.read_batches(data + b"torn", until=len(data)))) == 1
    with pytest.raises(reader.MismatchError, match="cut off"):
        list(reader.read_batches(data + b"torn"))


def test_old_batches_are_those_that_the_durable_end_vouches_for() -> None:
    [log] = worked_examples("message_log.md")
    [end] = worked_examples("durable_end.md")
    [(position, size, ids)] = reader.old_batches(log, _DUE_MS + 1000, durable_end=end)
    assert (position + size, ids) == (len(log), [b"UA-1523"])
    assert reader.old_batches(log, _DUE_MS, durable_end=end) == []
    assert reader.old_batches(log, _DUE_MS + 1000, durable_end=b"") == []
    assert reader.old_batches(b"", _DUE_MS, durable_end=end) == []


def test_what_a_damaged_byte_may_cost_is_known() -> None:
    [log] = worked_examples("message_log.md")
    [rows] = worked_examples("schedule_log.md")
    [facts] = worked_examples("dispatch_log.md")
    files = {"log": log, "rows": rows, "facts": facts, "torn": bytes(len(rows))}
    last = len(log) - 1
    assert reader.lost_by(files, "log", last) == {b"UA-1523"}
    assert reader.lost_by(files, "log", reader.FILE_HEADER_SIZE) == set()
    assert reader.lost_by(files, "rows", len(rows) - 1) == {b"UA-1523"}
    assert reader.lost_by(files, "facts", len(facts) - 1) == set()
    assert reader.lost_by(files, "torn", last) == set()
    assert reader.told_by(files, "facts", len(facts) - 1) == {2}
    assert reader.told_by(files, "rows", len(rows) - 1) == set()
    assert reader.told_by(files, "torn", 70) == set()


def played(seed: int) -> DeadRig:
    """Return a story with outcomes of all kinds, some of them in no file yet."""
    rig = DeadRig(seed)
    rig.open()
    for _ in range(400):
        rig.random_step()
    return rig


def logged(files: dict[str, bytes]) -> list[reader.Batch]:
    """Return all batches of the message_log."""
    paths = sorted(path for path in files if path.startswith("message_log/0"))
    return [batch for path in paths for batch in reader.read_batches(files[path])]


def test_what_records_state_is_read_as_the_code_reads_it() -> None:
    kinds: set[int] = set()
    for seed in range(5):
        rig = played(seed)
        found = [fact for one in logged(rig.disk.contents()) for fact in reader.facts_of(one)]
        expected = []
        for batch in rig.store.message_log.read(1):
            assert isinstance(batch, LogBatch)
            facts = facts_stated(batch.header, batch.columns)
            if facts is not None:
                kinds.add(batch.header.kind)
                columns = (facts.record, facts.sequence, facts.minute, facts.at_ms, facts.outcome)
                names = [facts.targets[place] for place in facts.target.tolist()]
                told = zip(*(column.tolist() for column in columns), names, strict=True)
                expected += [reader.Fact(*fact) for fact in told]
        assert found == expected
        for minute in {fact.minute for fact in found}:
            keys = [SegmentKey(start, Span(span)) for start, span in reader.segments_of(minute)]
            if minute >= DEAD_MINUTES_FROM:
                assert keys == [dead_key(minute)]
            else:
                spans = (Span.MINUTE, Span.HOUR, Span.DAY)
                assert keys == [key_of_minute(minute, span) for span in spans]
    assert kinds == {reader.FACTS, reader.MOVE, reader.CANCEL, reader.DEAD}


def test_damage_to_the_log_forgets_the_facts_that_are_in_no_file() -> None:
    files = played(1).disk.contents()
    filed = reader.read_checkpoint(files["checkpoint/checkpoint"]).sequence
    waiting: set[int] = set()
    for path in files:
        if path.startswith("message_log/0"):
            for batch in reader.read_batches(files[path]):
                told = reader.told_by(files, path, batch.position)
                facts = list(reader.facts_of(batch))
                assert told == {fact.sequence for fact in facts if fact.record > filed}
                without = {name: data for name, data in files.items() if name == path}
                assert reader.told_by(without, path, batch.position + batch.size - 1) == {
                    fact.sequence for fact in facts
                }
                waiting |= told
    assert waiting
