"""Each item of a request gets the code the answer gives it, and nobody is guessed delivered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol import Item, ItemCode, MalformedReplyError, encode_item, encode_send_reply
from sender.answers import UNTOLD, is_broker_sick, item_codes, permanent


def items_of(*ids: str) -> list[bytes]:
    return [
        encode_item(
            Item(
                flag=2,
                create_ms=1,
                due_ms=2,
                subject="a.b",
                message_id=message_id,
                tags=(),
                attributes={},
            )
        )
        for message_id in ids
    ]


def codes_of(ids: list[str], answer: list[tuple[str, int]]) -> list[int]:
    body = encode_send_reply([(message_id.encode(), code, "why") for message_id, code in answer])
    found: list[int] = item_codes(items_of(*ids), body).tolist()
    return found


def test_an_item_that_is_not_listed_was_taken() -> None:
    assert codes_of(["a", "b", "c"], [("b", 6)]) == [0, 6, 0]


def test_items_of_one_id_share_what_is_said_of_it() -> None:
    assert codes_of(["a", "b", "a"], [("a", 4)]) == [4, 0, 4]


def test_of_an_id_listed_twice_the_last_counts() -> None:
    assert codes_of(["a"], [("a", 4), ("a", 2)]) == [2]


def test_a_failure_of_a_stranger_leaves_open_who_is_meant() -> None:
    assert codes_of(["a", "b"], [("x", 6), ("b", 2)]) == [UNTOLD, 2]


def test_a_success_of_a_stranger_means_nobody() -> None:
    assert codes_of(["a", "b"], [("x", 0)]) == [0, 0]


def test_an_answer_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(MalformedReplyError):
        item_codes(items_of("a"), b"\x00\x01a\x00")


def test_items_given_as_views_are_read_alike() -> None:
    body = encode_send_reply([(b"b", 5, "")])
    views = [memoryview(item) for item in items_of("a", "b")]
    assert item_codes(views, body).tolist() == [0, 5]


def test_an_illegal_subject_and_a_block_are_permanent_and_nothing_else_is() -> None:
    codes = item_codes(
        items_of(*"abcdefgh"),
        encode_send_reply([(i.encode(), n, "") for n, i in enumerate("abcdefgh")]),
    )
    assert permanent(codes).tolist() == [n in {3, 5} for n in range(8)]


@pytest.mark.parametrize(
    ("codes", "is_sick"),
    [
        ([4, 4], True),
        ([1, 6, 3], True),
        ([4, 0], False),
        ([6, 2], False),
        ([3, 5, 3], False),
        ([UNTOLD], False),
    ],
)
def test_a_broker_is_sick_if_it_takes_nothing_for_reasons_of_its_own(
    codes: list[int], is_sick: object
) -> None:
    ids = [str(number) for number in range(len(codes))]
    answer = [(i, code) for i, code in zip(ids, codes, strict=True) if code != UNTOLD]
    if UNTOLD in codes:
        answer.append(("x", 6))
    body = encode_send_reply([(i.encode(), code, "") for i, code in answer])
    assert is_broker_sick(item_codes(items_of(*ids), body)) is is_sick


@given(
    st.lists(st.sampled_from("abcdef"), min_size=1, max_size=10),
    st.dictionaries(st.sampled_from("abcdefxy"), st.sampled_from([*ItemCode, 99, -2])),
)
def test_every_listed_item_has_its_code_and_no_other_is_taken_for_delivered_in_doubt(
    ids: list[str], listed: dict[str, int]
) -> None:
    codes = codes_of(ids, list(listed.items()))
    in_doubt = any(code for message_id, code in listed.items() if message_id not in ids)
    for message_id, code in zip(ids, codes, strict=True):
        assert code == listed.get(message_id, UNTOLD if in_doubt else 0)
