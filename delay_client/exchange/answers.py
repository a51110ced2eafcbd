"""Answers: what a server's answer to a request means for each of its items. Pure."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, Final

from delay_client.exchange.batches import Batch, BatchLink
from delay_client.messages.errors import RetryableError, Unavailable
from delay_client.messages.message import Outcome, Receipt
from delay_client.messages.verdicts import (
    item_refusal,
    item_setback,
    request_refusal,
    request_setback,
)
from delay_protocol.basics.codes import ItemCode, ResponseCode
from delay_protocol.basics.errors import MalformedReplyError
from delay_protocol.messages.send_message import decode_send_reply

_NUMBER: Final = re.compile(r"[0-9]{1,15}", re.ASCII)
"""The remark of a duplicate: when the first message is due, in ms since 1970."""

_new_receipt: Callable[[Iterable[Any]], Receipt] = partial(tuple.__new__, Receipt)
"""Receipt._make() without a Python frame: this runs once for each message."""


@dataclass(slots=True)
class Answer:
    """What an answer means: each item has an outcome, or is to be tried again."""

    positions: Sequence[int] = ()
    """Of the items that have an outcome, in the call that they are of…"""
    outcomes: Iterable[Outcome] = ()
    """… and those outcomes."""
    again: Sequence[int] = ()
    """Indices in the batch of the items to be tried again…"""
    setback: tuple[type[RetryableError], str] | None = None
    """… and why, if there are any."""
    is_failure: bool = False
    """Whether the server did not take what it should have taken…"""
    for_sure: bool = False
    """… and would not take any other request either."""
    maybe_kept: bool = False
    """Whether the server may have kept what is to be tried again."""


def read_answer(batch: Batch, link: BatchLink, code: int, body: bytes) -> Answer:
    """Return what the code and the body of an answer mean for the batch."""
    if code != ResponseCode.SUCCESS:
        return _refused(batch, link, code, body)
    if not body:
        return Answer(batch.positions, _receipts(batch, link))
    try:
        failures = decode_send_reply(body, results_max=len(batch))
    except MalformedReplyError as error:
        setback = (Unavailable, f"gave an answer that cannot be read ({error})")
        again = range(len(batch))
        return Answer(again=again, setback=setback, is_failure=True, maybe_kept=True)
    return _divided(batch, link, failures)


def _refused(batch: Batch, link: BatchLink, code: int, body: bytes) -> Answer:
    """Return the answer that is about a request as a whole."""
    answer = Answer(is_failure=True, for_sure=code == ResponseCode.BROKER_REJECT)
    answer.setback = request_setback(code, body.decode(errors="replace"))
    if answer.setback is not None:
        answer.again = range(len(batch))
        return answer
    answer.positions = batch.positions
    answer.outcomes = [
        request_refusal(code, server=link.server, message_id=name, attempts=batch.attempts)
        for name in batch.ids
    ]
    return answer


def _receipts(batch: Batch, link: BatchLink) -> Iterator[Receipt]:
    """Return the receipts of a batch that was taken as a whole."""
    columns = zip(
        batch.ids,
        batch.due_ms,
        repeat(link.server),
        repeat(batch.attempts),
        repeat(False),  # noqa: FBT003 (a column of a receipt)
        repeat(_is_elsewhere(batch, link)),
        map(batch.past_due.__contains__, batch.ids) if batch.past_due else repeat(False),  # noqa: FBT003
        batch.subjects,
        repeat(link.cluster),
        strict=False,
    )
    return map(_new_receipt, columns)


def _divided(batch: Batch, link: BatchLink, failures: dict[bytes, tuple[int, str]]) -> Answer:
    """Return the answer that names the items that were not taken."""
    positions: list[int] = []
    outcomes: list[Outcome] = []
    again: list[int] = []
    # A full disk, or one on its way out, takes nothing from anybody.
    takes_nothing = any(code == ItemCode.BROKER_READ_ONLY for code, _ in failures.values())
    answer = Answer(positions, outcomes, again, is_failure=takes_nothing, for_sure=takes_nothing)
    is_elsewhere = _is_elsewhere(batch, link)
    for index, message_id in enumerate(batch.ids):
        code, remark = failures.get(message_id.encode(), (ItemCode.SUCCESS, ""))
        if code in {ItemCode.SUCCESS, ItemCode.MESSAGE_DUPLICATE}:
            is_duplicate = code == ItemCode.MESSAGE_DUPLICATE
            first_due = remark if is_duplicate and _NUMBER.fullmatch(remark) else ""
            outcome: Outcome = Receipt(
                message_id,
                int(first_due or batch.due_ms[index]),
                link.server,
                batch.attempts,
                is_duplicate,
                is_elsewhere,
                message_id in batch.past_due,
                batch.subjects[index],
                link.cluster,
            )
        elif (setback := item_setback(code, remark)) is not None:
            answer.setback = setback
            again.append(index)
            continue
        else:
            outcome = item_refusal(
                code, remark, server=link.server, message_id=message_id, attempts=batch.attempts
            )
        positions.append(batch.positions[index])
        outcomes.append(outcome)
    return answer


def _is_elsewhere(batch: Batch, link: BatchLink) -> bool:
    """Whether a link is not that of the group that the ids of a batch name."""
    home = batch.lane.home
    return home is not None and home.group != link.group
