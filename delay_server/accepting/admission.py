"""Admission: which items of a SEND_MESSAGE are accepted, and the code each refused one gets.

    what is wrong with an item                                  item code
    its CRC                                                     6 STORE_ERROR: is sent again
    too large, malformed, beyond the horizon, one too many,     5 BLOCK: is not sent again
    a flag of unknown meaning, a subject that is too long
    subject illegal, or refused by the meta server for good     3 SUBJECT_NOT_ASSIGNED
    subject seen for the first time, and too many of these are  6 STORE_ERROR: is sent again

The CRC is looked at first, since nothing in an item with a wrong CRC can be believed. Neighbours of
a refused item go on. An item whose delay bit is clear is due now; a due time in the past stays as
it was asked for. Why whole requests are refused is said in ingest.py.

What one request can cost is bounded by its items, tags and attributes, whatever its bytes: one with
more than twice the items allowed is refused as a whole, before it is read to its end, and where its
large items have more attributes in all than are looked at, the last of them are to be sent again.

Nearly all requests are flawless, so a request is first examined as a whole, by a few operations on
the columns of its scan. Only when one of them finds a flaw are its items looked at one by one.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from delay_protocol.basics.codes import ItemCode
from delay_protocol.basics.errors import IndivisibleBodyError
from delay_protocol.basics.strings import STR_SIZE_MAX
from delay_protocol.basics.subjects import SENT_SUBJECT_BYTES_MAX, subject_fault, subject_size_fault
from delay_protocol.messages.items import (
    ATTRIBUTES_MAX,
    FLAG_DELAY,
    FLAG_LOW_RELIABILITY,
    FLAG_TAGS,
    FLAGS_KNOWN,
    ITEM_SIZE_MIN,
    TAGS_MAX,
    ItemScan,
    scan_items,
    tags_are_text,
    walk_attributes,
)
from delay_server.accepting.intake import BATCH_BYTES_MAX, ITEM_OVERHEAD_MAX, Intake
from delay_transport.seams.constants import constant
from delay_transport.settings.sections import require_at_least
from storage.batch.dead_rows import NOTE_BYTES_MAX
from storage.limits import DAY_MS, MIB

_CREATE_MS_AT: Final = 9
"""Where an item's creation time begins."""

_NEGATIVE: Final = 0x80
"""A time whose first byte is this or more is negative."""

_PLAIN: Final = {FLAG_DELAY}
"""The flags of a request that has delayed items without tags only: nearly every one."""

_UNTAGGED: Final = {FLAG_DELAY, FLAG_DELAY | FLAG_LOW_RELIABILITY}
_DELAYED: Final = _UNTAGGED | {flag | FLAG_TAGS for flag in _UNTAGGED}
"""Every flag that a delayed item may have."""

_WALKED_MAX: Final = 16 * ATTRIBUTES_MAX
"""After so many attributes of one request no further map is looked at: they take about 20 ms."""

_SUBJECTS_REMEMBERED: Final = 16_384
"""How many subjects' verdicts are kept; when there are more, all are forgotten and found again."""

_URGENCY: Final = (
    ItemCode.BLOCK,
    ItemCode.SUBJECT_NOT_ASSIGNED,
    ItemCode.STORE_ERROR,
)
"""Of one message id refused more than once, the last of these codes is answered: the one that makes
a producer try again, since another try may save one of the items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionConfig:
    """Which messages the node accepts, and how long a request waits for admission."""

    horizon_days: int = 730
    """Days. The node refuses a message with a later due time for good; 730 are two years."""

    item_bytes_max: int = 2 * MIB
    """Bytes of one message on the wire. The node refuses a larger one for good."""

    id_bytes_max: int = constant(1024)
    """Bytes of a message id. A longer one is refused for good."""

    request_items_max: int = 2048
    """Messages of one request. The node refuses further ones for good, and the whole request if it
    has more than twice as many. The check of such a request blocks the event loop for 3 ms, and for
    10 ms if all messages are refused."""

    hold_ms: int = 4000
    """Milliseconds. How long a request waits for admission during start or overload, before the
    node answers it with an error on which producers retry. QMQ's producers wait 5 s for an answer:
    a longer wait only causes duplicates."""

    pending_bytes_max: int = 16 * MIB
    """Bytes of admitted messages that gather for the next group commit. Beyond it requests are
    held."""

    attribute_bytes_max: int = constant(STR_SIZE_MAX)
    """Bytes of an attribute's value; a longer one is refused for good. Java consumers cannot read
    values beyond 32,767 bytes."""

    attributes_max: int = constant(ATTRIBUTES_MAX)
    """Attributes of one message; one with more is refused for good: each is looked at in a map
    large enough to have so many. A message of so many takes the loop about 1 ms."""

    def __post_init__(self) -> None:
        """Refuse limits under which nothing is accepted, or what is accepted has no room."""
        require_at_least(self, 1, "horizon_days", "request_items_max", "pending_bytes_max")
        require_at_least(self, 0, "hold_ms")
        # A message that is given up is kept with a note behind it, in one batch as well.
        room = BATCH_BYTES_MAX - ITEM_OVERHEAD_MAX - SENT_SUBJECT_BYTES_MAX - NOTE_BYTES_MAX
        if not ITEM_SIZE_MIN <= self.item_bytes_max <= room:
            raise ValueError(f"item_bytes_max must be {ITEM_SIZE_MIN} to {room}")

    @property
    def horizon_ms(self) -> int:
        """The horizon in ms."""
        return self.horizon_days * DAY_MS


class Failure(NamedTuple):
    """An item that was refused, as encode_send_reply() takes it."""

    message_id: bytes
    """As it arrived, which may be empty or no UTF-8."""
    code: ItemCode
    remark: str
    """For people; says the limit where there is one."""


class Admitted(NamedTuple):
    """What became of one request."""

    count_accepted: int
    failures: list[Failure]
    """One for each message id of which an item was refused, even if another one was accepted."""
    count_refused: int = 0


PutsOff = Callable[[bytes], str | None]
"""Says why a legal subject has to come again later; None if it need not. That is not remembered."""


def _puts_off_none(_subject: bytes) -> str | None:
    return None


def _counts_of(bodies: Sequence[bytes], starts: list[int]) -> list[int]:
    """Return how many items each body has; nothing if one begins where no item does."""
    places, end = [0], 0
    for body in bodies[:-1]:
        end += len(body)
        place = bisect_left(starts, end)
        if place == len(starts) or starts[place] != end:
            return []
        places.append(place)
    places.append(len(starts))
    return [after - before for before, after in pairwise(places)]


class Admission:
    """Decides, item by item, what goes into the log."""

    def __init__(self, limits: AdmissionConfig) -> None:
        self._limits = limits
        self._puts_off: PutsOff = _puts_off_none
        """Of the request at hand."""
        self.why_barred: Callable[[bytes], str] = lambda _: ""
        """Returns why a meta server refuses a legal subject for good; empty if it does not, as far
        as is known. A server sets it that asks one, and calls `forget` when that changes."""
        self.scan_items_max = 2 * limits.request_items_max
        """A request with more items is refused as a whole, without a scan of the rest."""
        self._walk_above = min(limits.attribute_bytes_max, STR_SIZE_MAX, 4 * limits.attributes_max)
        """Attribute maps of at most this many bytes cannot hold a value that is too long, nor too
        many attributes."""
        self._walks_left = 0
        """Attributes that may yet be looked at in the request at hand."""
        self._subjects_accepted: set[bytes] = set()
        self._subjects_refused: dict[bytes, str] = {}

    def admit(
        self,
        body: bytes,
        now_ms: int,
        into: Intake,
        *,
        at_once_ms: int | None = None,
        puts_off: PutsOff | None = None,
    ) -> Admitted:
        """Put the acceptable items of a request's body into the intake and list the others.

        An item without a due time of its own is due at `at_once_ms`, or `now_ms` if not given.
        `puts_off` is asked about subjects whose verdict is not remembered.

        Raise IndivisibleBodyError, and take nothing, if the body cannot be divided into items, or
        only into more than twice as many as a request may have.
        """
        self._puts_off = puts_off or _puts_off_none
        scan = ItemScan()
        scan_items(body, scan, items_max=self.scan_items_max)
        count = len(scan.ids)
        if not count:
            return Admitted(0, [])
        if not self._is_flawless(scan, body, now_ms):
            at_once_ms = now_ms if at_once_ms is None else at_once_ms
            return self._admit_one_by_one(scan, body, now_ms, into, at_once_ms)
        _add_all(body, scan, into)
        return Admitted(count, [])

    def admit_together(
        self,
        bodies: Sequence[bytes],
        now_ms: int,
        into: Intake,
        *,
        puts_off: PutsOff | None = None,
    ) -> list[int]:
        """Put all items of several requests into the intake if every one is flawless.

        Return how many items each has. Return nothing, and take nothing, if one is not, or looks as
        if it were not: then each request is to be admitted by itself. Several small requests cost
        little more than one.
        """
        self._puts_off = puts_off or _puts_off_none
        joined = b"".join(bodies)
        scan = ItemScan()
        try:
            # One that has more would be found to have a flaw, all its work done.
            scan_items(joined, scan, items_max=self._limits.request_items_max)
        except IndivisibleBodyError:
            return []
        counts = _counts_of(bodies, scan.starts) if scan.ids else []
        if not counts or not self._is_flawless(scan, joined, now_ms):
            return []
        _add_all(joined, scan, into)
        return counts

    def _is_flawless(self, scan: ItemScan, body: bytes, now_ms: int) -> bool:
        """Say whether all items are acceptable, and delayed; False may also mean "look closer".

        This is what every request pays: each line is a pass in C over a column, or none.
        """
        limits = self._limits
        flags = set(scan.flags)
        # The first byte of each creation time; of the first item twice, so that one makes a tuple.
        create_bytes = itemgetter(0, *scan.starts)(body[_CREATE_MS_AT:])
        return (
            False not in scan.crc_ok
            and (
                flags == _PLAIN
                or flags <= _UNTAGGED
                or (flags <= _DELAYED and _tags_fit(scan, body))
            )
            and min(scan.due_ms) >= 0
            and max(scan.due_ms) <= now_ms + limits.horizon_ms
            and max(create_bytes) < _NEGATIVE
            and all(scan.ids)
            and max(map(len, scan.ids)) <= limits.id_bytes_max
            and b"".join(scan.ids).isascii()
            and (len(body) <= limits.item_bytes_max or max(scan.sizes) <= limits.item_bytes_max)
            and (len(body) <= self._walk_above or max(scan.body_sizes) <= self._walk_above)
            and len(scan.ids) <= limits.request_items_max
            and (
                self._subjects_accepted.issuperset(scan.subjects)
                or all(self._subject_flaw(name) is None for name in dict.fromkeys(scan.subjects))
            )
        )

    def _admit_one_by_one(
        self, scan: ItemScan, body: bytes, now_ms: int, into: Intake, at_once_ms: int
    ) -> Admitted:
        self._walks_left = _WALKED_MAX
        failures: dict[bytes, Failure] = {}
        accepted: list[int] = []
        for index, message_id in enumerate(scan.ids):
            flaw = self._flaw(scan, index, body, now_ms)
            if flaw is None:
                accepted.append(index)
            elif message_id not in failures or _is_more_urgent(flaw[0], failures[message_id].code):
                failures[message_id] = Failure(message_id, *flaw)
        add = into.add_request if len(accepted) == len(scan) else into.add_items
        add(
            body,
            starts=[scan.starts[index] for index in accepted],
            sizes=[scan.sizes[index] for index in accepted],
            due_ms=[
                scan.due_ms[index] if scan.flags[index] & FLAG_DELAY else at_once_ms
                for index in accepted
            ],
            id_hash=[xxh3_64_intdigest(scan.ids[index]) for index in accepted],
            subjects=[scan.subjects[index] for index in accepted],
        )
        return Admitted(len(accepted), list(failures.values()), len(scan) - len(accepted))

    def _flaw(
        self, scan: ItemScan, index: int, body: bytes, now_ms: int
    ) -> tuple[ItemCode, str] | None:
        """Say why an item is refused, or None if it is not."""
        limits = self._limits
        if not scan.crc_ok[index]:
            return ItemCode.STORE_ERROR, "crc does not match the item"
        if index >= limits.request_items_max:
            return _blocked(f"more than {limits.request_items_max} items in a request")
        if scan.sizes[index] > limits.item_bytes_max:
            return _blocked(f"item of {scan.sizes[index]} bytes, limit {limits.item_bytes_max}")
        return (
            self._id_flaw(scan.ids[index])
            or self._subject_flaw(scan.subjects[index])
            or _flag_flaw(scan.flags[index])
            or self._time_flaw(scan, index, body, now_ms)
            or self._content_flaw(scan, index, body)
        )

    def _id_flaw(self, message_id: bytes) -> tuple[ItemCode, str] | None:
        if not message_id:
            return _blocked("malformed: the message id is empty")
        if len(message_id) > self._limits.id_bytes_max:
            limit = self._limits.id_bytes_max
            return _blocked(f"message id of {len(message_id)} bytes, limit {limit}")
        try:
            message_id.decode()
        except UnicodeDecodeError:
            return _blocked("malformed: the message id is not UTF-8")
        return None

    def _time_flaw(
        self, scan: ItemScan, index: int, body: bytes, now_ms: int
    ) -> tuple[ItemCode, str] | None:
        due_ms = scan.due_ms[index]
        if due_ms < 0 or body[scan.starts[index] + _CREATE_MS_AT] >= _NEGATIVE:
            return _blocked("malformed: a time is negative")
        horizon_ms = self._limits.horizon_ms
        if scan.flags[index] & FLAG_DELAY and due_ms > now_ms + horizon_ms:
            return _blocked(
                f"due in {(due_ms - now_ms) / DAY_MS:.1f} days, limit {horizon_ms / DAY_MS:.1f}"
            )
        return None

    def _content_flaw(self, scan: ItemScan, index: int, body: bytes) -> tuple[ItemCode, str] | None:
        if scan.tag_counts[index] > TAGS_MAX:
            return _blocked(f"{scan.tag_counts[index]} tags, limit {TAGS_MAX}")
        if scan.tag_counts[index] and not tags_are_text(_tags_of(scan, index, body)):
            return _blocked("malformed: a tag is not UTF-8")
        end = scan.starts[index] + scan.sizes[index]
        body_size = scan.body_sizes[index]
        if body_size <= self._walk_above:
            return None
        if self._walks_left <= 0:
            # The next try finds those refused gone from the request.
            return ItemCode.STORE_ERROR, f"more than {_WALKED_MAX} attributes in large items"
        walked, fault = walk_attributes(
            memoryview(body)[end - body_size : end],
            value_size_max=self._limits.attribute_bytes_max,
            count_max=self._limits.attributes_max,
        )
        self._walks_left -= walked
        return None if fault is None else _blocked(fault)

    def _subject_flaw(self, subject: bytes) -> tuple[ItemCode, str] | None:
        """Say why messages of a subject are refused, or None; remembers the verdict."""
        if subject in self._subjects_accepted:
            return None
        too_long = subject_size_fault(subject)
        if too_long is not None:
            return _blocked(too_long)
        refusal = self._subjects_refused.get(subject)
        if refusal is None:
            refusal = self._judge(subject)
        if refusal is not None:
            return ItemCode.SUBJECT_NOT_ASSIGNED, refusal
        if barred := self.why_barred(subject):
            return ItemCode.SUBJECT_NOT_ASSIGNED, f"message rejected: {barred}"
        put_off = self._puts_off(subject)
        if put_off is not None:
            return ItemCode.STORE_ERROR, put_off
        self._subjects_accepted.add(subject)
        return None

    def forget(self, subject: bytes) -> None:
        """Judge a subject anew when it comes again."""
        self._subjects_accepted.discard(subject)

    def _judge(self, subject: bytes) -> str | None:
        if len(self._subjects_accepted) + len(self._subjects_refused) >= _SUBJECTS_REMEMBERED:
            self._subjects_accepted.clear()
            self._subjects_refused.clear()
        fault = subject_fault(subject)
        if fault is None:
            return None
        refusal = f"message rejected: illegal subject: {fault}"
        self._subjects_refused[subject] = refusal
        return refusal


def _add_all(body: bytes, scan: ItemScan, into: Intake) -> None:
    """Put all items of a body into the intake."""
    into.add_request(
        body,
        starts=scan.starts,
        sizes=scan.sizes,
        due_ms=scan.due_ms,
        id_hash=list(map(xxh3_64_intdigest, scan.ids)),
        subjects=scan.subjects,
    )


def _tags_of(scan: ItemScan, index: int, body: bytes) -> bytes:
    """Return the bytes of an item's tags, from their count on; to be called for tagged items."""
    start = scan.starts[index]
    head_size = ITEM_SIZE_MIN - 4 + len(scan.subjects[index]) + len(scan.ids[index])
    end = start + scan.sizes[index] - scan.body_sizes[index] - 4
    return body[start + head_size : end]


def _tags_fit(scan: ItemScan, body: bytes) -> bool:
    """Say whether no item has too many tags and all are ASCII; False may mean "look closer"."""
    return max(scan.tag_counts) <= TAGS_MAX and all(
        _tags_of(scan, index, body).isascii()
        for index, count in enumerate(scan.tag_counts)
        if count
    )


def _flag_flaw(flag: int) -> tuple[ItemCode, str] | None:
    if flag & ~FLAGS_KNOWN:
        return _blocked(f"malformed: flag {flag:#04x}, known are the bits of {FLAGS_KNOWN:#04x}")
    return None


def _blocked(remark: str) -> tuple[ItemCode, str]:
    return ItemCode.BLOCK, remark


def _is_more_urgent(code: ItemCode, than: ItemCode) -> bool:
    return _URGENCY.index(code) > _URGENCY.index(than)
