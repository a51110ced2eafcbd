"""What is collected comes out as batches for the log: each item once, in order, none cut in two,
and no batch larger than a log takes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_server.accepting import intake as intake_module
from delay_server.accepting.intake import Intake, MessageBatch


def add(intake: Intake, items: list[tuple[bytes, bytes]], *, whole: bool = True) -> bytes:
    """Add items given as (bytes, subject) and return their request's body."""
    body = b"".join(data for data, _ in items)
    sizes = [len(data) for data, _ in items]
    method = intake.add_request if whole else intake.add_items
    method(
        body,
        starts=[sum(sizes[:index]) for index in range(len(sizes))],
        sizes=sizes,
        due_ms=[1000 + data[0] for data, _ in items],
        id_hash=[2**64 - 1 - data[0] for data, _ in items],
        subjects=[subject for _, subject in items],
    )
    return body


def items_of(batch: MessageBatch) -> list[tuple[bytes, bytes]]:
    """Take a batch apart into (bytes, subject), checking that its parts agree."""
    blob = b"".join(batch.pieces)
    assert len(blob) == batch.blob_bytes == batch.size.sum()
    assert len(batch) == len(batch.id_hash) == len(batch.size) == len(batch.subject)
    arrays = {"due_ms": np.int64, "id_hash": np.uint64, "size": np.uint32, "subject": np.uint16}
    for name, scalar in arrays.items():
        assert getattr(batch, name).dtype == scalar
    assert len(set(batch.subjects)) == len(batch.subjects)
    ends = np.cumsum(batch.size).tolist()
    datas = [blob[end - size : end] for end, size in zip(ends, batch.size.tolist(), strict=True)]
    assert batch.due_ms.tolist() == [1000 + data[0] for data in datas]
    assert batch.id_hash.tolist() == [2**64 - 1 - data[0] for data in datas]
    names = [batch.subjects[number] for number in batch.subject.tolist()]
    # A piece ends where an item ends.
    piece_ends = np.cumsum([len(piece) for piece in batch.pieces]).tolist()
    assert set(piece_ends) <= set(ends)
    return list(zip(datas, names, strict=True))


def test_a_request_that_fits_is_one_piece_and_not_a_copy() -> None:
    intake = Intake()
    body = add(intake, [(b"aa", b"s"), (b"bbb", b"t"), (b"c", b"s")])
    (batch,) = intake.batches()
    assert batch.pieces[0] is body
    assert batch.subjects == [b"s", b"t"]
    assert batch.subject.tolist() == [0, 1, 0]
    assert (len(intake), intake.blob_bytes) == (3, 6)


def test_neighbours_share_a_piece_and_a_gap_begins_a_new_one() -> None:
    intake = Intake()
    body = b"aabbxxcc"
    intake.add_items(
        body,
        starts=[0, 2, 6],
        sizes=[2, 2, 2],
        due_ms=[1, 2, 3],
        id_hash=[4, 5, 6],
        subjects=[b"s", b"s", b"s"],
    )
    (batch,) = intake.batches()
    assert [bytes(piece) for piece in batch.pieces] == [b"aabb", b"cc"]


def test_a_request_that_does_not_fit_any_more_begins_the_next_batch_whole() -> None:
    intake = Intake(batch_bytes_max=1024 + 200)
    first = add(intake, [(b"a" * 50, b"s"), (b"b" * 50, b"s")])
    second = add(intake, [(b"c" * 30, b"s"), (b"d" * 30, b"s")])
    one, two = intake.batches()
    assert one.pieces[0] is first
    assert two.pieces[0] is second
    assert two.subjects == [b"s"]


def test_an_item_that_no_batch_can_hold_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="300 bytes"):
        add(Intake(batch_bytes_max=1024 + 200), [(b"a" * 300, b"s")])


def test_a_subject_table_that_is_full_begins_the_next_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake_module, "SUBJECTS_MAX", 3)
    intake = Intake()
    items = [(b"%d" % i, b"subject%d" % (i % 4)) for i in range(8)]
    for item in items:
        add(intake, [item])
    add(intake, items)
    batches = intake.batches()
    assert max(len(batch.subjects) for batch in batches) == 3
    assert [item for batch in batches for item in items_of(batch)] == items * 2


def test_the_last_number_of_a_full_subject_table_fits_its_column() -> None:
    intake = Intake()
    body = bytes(65_535)
    intake.add_request(
        body,
        starts=list(range(65_535)),
        sizes=[1] * 65_535,
        due_ms=[1] * 65_535,
        id_hash=[1] * 65_535,
        subjects=[b"%d" % number for number in range(65_535)],
    )
    add(intake, [(b"x", b"one more")])
    one, two = intake.batches()
    assert one.subject.tolist() == list(range(65_535))
    assert one.subjects[-1] == b"65534"
    assert two.subjects == [b"one more"]


requests = st.lists(
    st.tuples(
        st.lists(
            st.tuples(st.binary(min_size=1, max_size=60), st.sampled_from([b"a", b"bb", b"c" * 9])),
            min_size=1,
            max_size=12,
        ),
        st.booleans(),
    ),
    max_size=12,
)


@given(adds=requests, room=st.integers(100, 600))
def test_every_item_comes_out_once_in_order_and_no_batch_is_too_large(
    adds: list[tuple[list[tuple[bytes, bytes]], bool]], room: int
) -> None:
    intake = Intake(batch_bytes_max=1024 + room)
    for items, whole in adds:
        add(intake, items, whole=whole)
    everything = [item for items, _ in adds for item in items]
    batches = intake.batches()
    assert [item for batch in batches for item in items_of(batch)] == everything
    assert len(intake) == len(everything)
    assert intake.blob_bytes == sum(len(data) for data, _ in everything)
    for batch in batches:
        assert len(batch) > 0
        names = sum(2 + len(name) for name in batch.subjects)
        assert batch.blob_bytes + 22 * len(batch) + names <= room
