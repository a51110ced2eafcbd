"""The text of a DEAD record: bounded, read back, and never more than a text if it is not ours."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from delay_server.dead.reason import REASON_BYTES_MIN, decode_reason, encode_reason
from sender.outcomes.dead import Refusal

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=255)


@given(
    st.lists(st.tuples(NAMES, st.integers(0, 99), st.integers(0, 2**50)), min_size=1, max_size=40),
    st.integers(1, 10_000),
    st.integers(0, 5000),
)
def test_a_reason_is_read_back_and_never_longer_than_it_may_be(
    history: list[tuple[str, int, int]], tries: int, bytes_max: int
) -> None:
    last: Refusal | None = None
    for number, (group, code, at_ms) in enumerate(history, 1):
        last = Refusal(group, code, at_ms, number, last)
    assert last is not None
    text = encode_reason(last, tries, bytes_max=bytes_max)
    found = decode_reason(text)
    assert found is not None
    assert (found.code, found.tries, found.refused) == (last.code, tries, len(history))
    assert (found.first_ms, found.last_ms) == (history[0][2], last.at_ms)
    assert last.group.startswith(found.group)
    assert len(text) <= max(bytes_max, REASON_BYTES_MIN)
    kept = [(one.code, one.at_ms) for one in found.refusals]
    assert kept == [(code, at_ms) for _, code, at_ms in history][len(history) - len(kept) :]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=1024), st.integers(0, 2000))
def test_as_much_is_kept_of_what_a_receiver_said_as_there_is_room_for(
    said: str, bytes_max: int
) -> None:
    last = Refusal("g", 3, 1, 1, said=said)
    found = decode_reason(text := encode_reason(last, 1, bytes_max=bytes_max))
    assert found is not None
    assert len(text) <= (most := max(bytes_max, REASON_BYTES_MIN))
    [only] = found.refusals
    assert said.startswith(only.said)
    # What is cut is at most a few characters more than had to be.
    assert only.said == said or len(text) > most - 20


def test_what_a_newer_version_adds_is_passed_over() -> None:
    text = b'{"code":3,"group":"g","tries":3,"refused":3,"first_ms":1,"last_ms":2,"why":"new"}'
    found = decode_reason(text)
    assert found is not None
    assert found.refusals == ()
    assert msgspec.json.encode(found)


def test_what_is_nested_too_deep_is_no_reason() -> None:
    assert decode_reason(b'{"more":' + b"[" * 60_000) is None
