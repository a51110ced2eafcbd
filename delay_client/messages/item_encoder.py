"""Messages to items: what a user wrote becomes the bytes that every try sends.

The layout is that of delay_protocol/messages/items.py, and a test holds the two together. It is
written out here once more because a client that sends a million messages spends most of its time on
it: this takes half as long as making an Item for delay_protocol.encode_item().
"""

import math
import reprlib
import struct
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Final

from delay_client.messages.envelope import (
    JSON_TYPE,
    encode_envelope,
    encode_headers,
    encode_json,
    user_attributes,
)
from delay_client.messages.errors import (
    DelayTooLong,
    FatalError,
    IllegalSubject,
    InvalidMessage,
    MessageTooLarge,
)
from delay_client.messages.message import Delay, OutgoingItem, OutgoingMessage
from delay_client.messages.message_ids import MessageIdMaker
from delay_protocol.basics.errors import ProtocolError
from delay_protocol.basics.levels import LEVELS_MAX, level_to_ms
from delay_protocol.basics.strings import STR_SIZE_MAX
from delay_protocol.basics.subjects import subject_fault, subject_size_fault
from delay_protocol.messages.items import FLAG_DELAY, FLAG_TAGS, TAGS_MAX, ItemScan, scan_items
from delay_protocol.messages.origin import APP_KEY, DUE_KEY
from delay_protocol.messages.repeats import DELAY_KEY

EncodedItem = tuple[bytes, str, int, bool]
"""An item's bytes, its message id, its due time in ms, and whether that is a given moment."""

NAME_LENGTH_MAX: Final = 100
"""Characters of a subject or a message id; QMQ's own clients refuse more."""

DUE_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999: the last moment a datetime can tell."""

LEVEL_0_MS: Final = -(10**11)
"""A due time that is so much less a level: that of a message written before the table of levels was
known. It has as many digits as a due time has, so the item has its size already."""

_UNKNOWN_DELAY: Final = "0" * 11
"""The delay of such a message; that of a level has no more digits."""

_DELAY_S_MAX: Final = 100 * 366 * 86_400
"""Seconds: a shorter delay cannot end after the year 9999."""

_HAIR_MS: Final = 1e-3
"""4.03 * 1000 is a little more than 4,030: that must not become 4,031."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_CREATE_KEY: Final = "qmq_createTime"
_SUBJECTS_KEPT: Final = 10_000
_SUBJECT_SHOWN: Final = 60
"""Characters of a subject that an error repeats."""

_ONE_TIME: Final = "give one of delay=, at= and level= (delay=0 means at once)"

_CRC = struct.Struct(">Q")
_TIMES = struct.Struct(">Bqq")
_SIZE = struct.Struct(">h")
_BODY_SIZE = struct.Struct(">i")


class ItemEncoder:
    """Turns messages into items. Keeps the bytes of the subjects it has seen."""

    given_id: Final[Callable[[OutgoingMessage], object]] = attrgetter("message_id")
    """None for a message whose id is made here. Not a method: a send_many() asks each time."""

    def __init__(
        self,
        *,
        ids: MessageIdMaker,
        item_bytes_max: int,
        app_code: str = "",
        levels_ms: Callable[[], Sequence[int] | None] = lambda: None,
    ) -> None:
        """`levels_ms` returns the delays of levels in ms; None while they are not known.

        Raises FatalError for an `app_code` that is no text, or has more than 32,767 bytes.
        """
        self._ids = ids
        self._item_bytes_max = item_bytes_max
        self._levels_ms = levels_ms
        self._subjects: dict[str, bytes] = {}
        self._create_ms = -1
        self._create_attribute = b""
        self._app_attribute = b""
        if app_code:
            self._app_attribute = _text(APP_KEY, "its name") + _text(app_code, "app_code")

    def encode(self, message: OutgoingMessage, now_ms: int) -> EncodedItem:
        """Return the item of a message created now; raise FatalError if there can be none."""
        if not isinstance(message, OutgoingMessage):
            raise InvalidMessage(f"a message is an OutgoingMessage, not {type(message).__name__}")
        try:
            return self._encode(message, now_ms)
        except FatalError as error:
            error.message_id = message.message_id
            raise
        except Exception as error:
            # Whatever was given: one such message must not end a send_many() in its middle.
            raise InvalidMessage(
                f"it cannot be written ({type(error).__name__}: {error}): see OutgoingMessage",
                message_id=message.message_id,
            ) from error

    def _encode(self, message: OutgoingMessage, now_ms: int) -> EncodedItem:
        subject, body, delay, at, message_id, tags, headers, content_type, own, level = message
        due_ms = due_ms_of(delay, at, now_ms) if level is None else self._by_level(message, now_ms)
        subject_part = self._subjects.get(subject) or self._subject_part(subject)
        own_id = message_id is not None
        if message_id is None:
            message_id = self._ids.make(now_ms)
            id_part = b"\x00\x1a" + message_id.encode()
        else:
            id_part = _id_part(message_id)
        if now_ms != self._create_ms:
            self._create_ms = now_ms
            self._create_attribute = _attribute(_CREATE_KEY, str(now_ms)) + self._app_attribute
        if 10**12 <= due_ms < 10**13:
            due_attribute = b"\x00\x17qmq_scheduleReceiveTime\x00\x0d%d" % due_ms
        else:
            due_attribute = _attribute(DUE_KEY, str(due_ms))
        if own_id and at is None:
            # The same message, sent again, has the same delay but another due time.
            said = _UNKNOWN_DELAY if due_ms < 0 else str(due_ms - now_ms)
            due_attribute += _attribute(DELAY_KEY, said)
        if not isinstance(body, str | bytes):
            body = encode_json(body)
            content_type = JSON_TYPE if content_type is None else content_type
        attributes = b"".join((self._create_attribute, due_attribute, _body_part(body)))
        if headers or content_type is not None:
            attributes += _packed(encode_headers(headers, content_type))
        if own:
            attributes += _packed(user_attributes(own))
        if tags:
            head = _TIMES.pack(FLAG_DELAY | FLAG_TAGS, now_ms, due_ms)
            id_part += _tags_part(tags)
        else:
            head = _TIMES.pack(FLAG_DELAY, now_ms, due_ms)
        covered = b"".join(
            (head, subject_part, id_part, _BODY_SIZE.pack(len(attributes)), attributes)
        )
        size = len(covered) + 8
        if size > self._item_bytes_max:
            raise MessageTooLarge(
                f"the message takes {size} bytes, the limit is {self._item_bytes_max} for all "
                "of it (bytes that are no UTF-8 travel as base64: about "
                f"{self._item_bytes_max * 7 // 10 // 1024} KiB of them fit): send less, or "
                "raise item_bytes_max here and the server's limit"
            )
        return _CRC.pack(zlib.crc32(covered)) + covered, message_id, due_ms, at is not None

    def _by_level(self, message: OutgoingMessage, now_ms: int) -> int:
        """Return when a message is due, or its level below `LEVEL_0_MS`."""
        level = message.level
        if message.delay is not None or message.at is not None:
            raise InvalidMessage(_ONE_TIME)
        if type(level) is not int or level < 0:
            raise InvalidMessage(f"level={reprlib.repr(level)}: give a whole number from 0 on")
        if level == 0:
            return now_ms
        levels_ms = self._levels_ms()
        if levels_ms is None:
            return LEVEL_0_MS - min(level, LEVELS_MAX)
        return now_ms + level_to_ms(level, levels_ms)

    def _subject_part(self, subject: str) -> bytes:
        data = _utf8(subject, "the subject")
        fault = subject_fault(data)
        if fault is None and len(subject) > NAME_LENGTH_MAX:
            fault = f"has {len(subject)} characters, at most {NAME_LENGTH_MAX}"
        if fault is None and "*" in subject:
            fault = "contains '*', which only patterns of receivers have"
        if fault is None and (too_long := subject_size_fault(data)):
            fault = f"is {too_long}"
        if fault is not None:
            shown = ascii(subject[:_SUBJECT_SHOWN]) + "…" * (len(subject) > _SUBJECT_SHOWN)
            raise IllegalSubject(f"subject {shown} {fault}: choose another")
        if len(self._subjects) >= _SUBJECTS_KEPT:
            self._subjects.clear()
        part = self._subjects[subject] = _SIZE.pack(len(data)) + data
        return part


class ItemChecker:
    """Lets items through as they are, if they are whole."""

    given_id: Final[Callable[[OutgoingItem], object]] = attrgetter("data")
    """All have their ids from when they were sent before."""

    def encode(self, message: OutgoingItem, _now_ms: int) -> EncodedItem:
        """Return the item; raise InvalidMessage if it is none, or of another subject."""
        if not isinstance(message, OutgoingItem):
            raise InvalidMessage(f"an item is an OutgoingItem, not {type(message).__name__}")
        subject, data = message
        if not isinstance(data, bytes):
            raise InvalidMessage(f"the data of an item is bytes, not {type(data).__name__}")
        scan = ItemScan()
        try:
            # What a server would find: bytes too many would spoil the items behind it.
            scan_items(data, scan, items_max=1)
            is_its_subject = scan.subjects == [_utf8(subject, "the subject")]
            [message_id] = [name.decode() for name in scan.ids]
        except (ProtocolError, ValueError) as error:
            raise InvalidMessage(f"these bytes are not one item: {error}") from error
        if not all(scan.crc_ok):
            raise InvalidMessage("the item's CRC does not match its bytes", message_id=message_id)
        if not is_its_subject:
            raise InvalidMessage(
                f"the item is not of subject {subject!a}: give the subject that it has",
                message_id=message_id,
            )
        return data, message_id, scan.due_ms[0], True


def due_ms_of(delay: Delay | None, at: datetime | None, now_ms: int) -> int:
    """Return when a message is due; a part of a ms is rounded up, as early is worse than late."""
    if type(delay) is float and at is None and 0.0 <= delay < _DELAY_S_MAX:
        return now_ms + math.ceil(delay * 1000 - _HAIR_MS)
    if (delay is None) == (at is None):
        raise InvalidMessage(_ONE_TIME)
    due_ms = now_ms + delay_to_ms(delay) if delay is not None else _at_ms(at)
    if due_ms > DUE_MS_MAX:
        given = f"a delay of {delay}" if at is None else f"at={at.isoformat()}"
        raise DelayTooLong(f"{given} ends after the year 9999: choose an earlier time")
    return due_ms


def _at_ms(at: datetime | None) -> int:
    if not isinstance(at, datetime):
        raise InvalidMessage(f"at={reprlib.repr(at)} is not a datetime")
    if at.utcoffset() is None:
        raise InvalidMessage(
            f"at={at.isoformat()} has no time zone: use datetime.now(tz) or .astimezone()"
        )
    # What is past is due at once, however far; the wire knows no moment before 1970.
    return max(-((_EPOCH - at) // _MS), 0)


def delay_to_ms(delay: Delay) -> int:
    """Return a delay in ms, a part of one rounded up; raise InvalidMessage if it is none."""
    if isinstance(delay, bool):
        raise InvalidMessage(f"delay={delay} is no number of seconds: give one, or a timedelta")
    try:
        if isinstance(delay, timedelta):
            delay_ms = delay // _MS + bool(delay % _MS)
        else:
            delay_ms = math.ceil(delay * 1000 - _HAIR_MS)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidMessage(
            f"delay={reprlib.repr(delay)} is neither a timedelta nor a number of seconds"
        ) from error
    if delay_ms < 0:
        raise InvalidMessage(f"delay={reprlib.repr(delay)} is negative: use delay=0 for at once")
    return delay_ms


def _id_part(message_id: str) -> bytes:
    part = _text(message_id, "message_id")
    if not 0 < len(message_id) <= NAME_LENGTH_MAX:
        raise InvalidMessage(
            f"message_id has {len(message_id)} characters: use 1 to {NAME_LENGTH_MAX}"
        )
    return part


def _tags_part(tags: object) -> bytes:
    if isinstance(tags, str) or not isinstance(tags, Collection) or len(tags) > TAGS_MAX:
        raise InvalidMessage(f"give tags= as a tuple of at most {TAGS_MAX} texts")
    return b"%c" % len(tags) + b"".join([_text(tag, "a tag") for tag in tags])


def _body_part(body: str | bytes) -> bytes:
    """Return the bytes of the attributes that a body travels as."""
    if isinstance(body, str):
        data = _utf8(body, "the body")
        if len(data) <= STR_SIZE_MAX:
            return b"\x00\x04body" + _SIZE.pack(len(data)) + data
    return _packed(encode_envelope(body))


def _packed(attributes: Mapping[str, str]) -> bytes:
    return b"".join([_attribute(key, value) for key, value in attributes.items()])


def _attribute(key: str, value: str) -> bytes:
    return _text(key, "an attribute's name") + _text(value, "an attribute's value")


def _text(text: str, what: str) -> bytes:
    data = _utf8(text, what)
    if len(data) > STR_SIZE_MAX:
        raise MessageTooLarge(
            f"{what} takes {len(data)} bytes, the limit is {STR_SIZE_MAX}: divide it into several "
            "attributes, or keep it elsewhere and send where it is"
        )
    return _SIZE.pack(len(data)) + data


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"{what} is not Unicode text: it has surrogates") from error
    except AttributeError as error:
        raise InvalidMessage(f"{what} must be text, not {type(text).__name__}") from error
