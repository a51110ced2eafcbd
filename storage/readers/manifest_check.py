"""What no manifest of a directory can say: one that does was changed, or put together by hand.

A manifest is believed where it tells what counts; a field of it that is wrong would take messages
for gone, or leave them out, without a word. What hangs together in it is held against each other
here: only what is so in every manifest that `storage/readers/manifest.py` makes.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from storage.disk.spans import key_of_name
from storage.logs.message_log import MESSAGE_LOG_DIRECTORY
from storage.logs.numbered_log import first_of_name
from storage.readers.manifest import Manifest, SealedSegment, UnsealedSegment

_NUMBER_MAX = 2**63 - 1
_MS_MAX = 253_402_300_799_999
"""The last ms of the year 9999."""
_DIGEST = re.compile(r"[0-9a-f]{32}", re.ASCII)
_NUMBERS = (
    "sequence",
    "first_sequence",
    "floor_minute",
    "hour_mark",
    "day_mark",
    "log_next_sequence",
    "durable_next_sequence",
    "deleted_from_minute",
)
_OF_SEGMENTS = ("start_minute", "length", "rows", "last_sequence", "facts_length")


class Contradiction(NamedTuple):
    """A field, and what is wrong with it."""

    field: str
    reason: str


def contradiction_in(manifest: Manifest) -> Contradiction | None:
    """Return the first thing in a manifest that no directory has; None if there is none."""
    return next(_contradictions(manifest), None)


def _contradictions(manifest: Manifest) -> Iterator[Contradiction]:
    yield from _of_itself(manifest)
    for field in ("segments", "dead_segments", "sealed", "dead_sealed"):
        segments: Sequence[UnsealedSegment | SealedSegment] = getattr(manifest, field)
        for place, segment in enumerate(segments):
            yield from _of_segment(f"{field}[{place}]", segment, is_dead=field.startswith("dead"))
    yield from _of_message_log(manifest)


def _of_itself(manifest: Manifest) -> Iterator[Contradiction]:
    for field in ("made_ms", "written_ms"):
        ms = getattr(manifest, field)
        if not 0 <= ms <= _MS_MAX:
            yield Contradiction(field, f"{ms} is no time in ms since 1970")
    yield from _too_large(manifest, _NUMBERS, "")
    try:
        UUID(manifest.log_uuid)
    except ValueError:
        yield Contradiction("log_uuid", f"{manifest.log_uuid!r} is no UUID")
    if manifest.sequence >= max(manifest.log_next_sequence, 1):
        reason = f"{manifest.sequence} is not below log_next_sequence {manifest.log_next_sequence}"
        yield Contradiction("sequence", reason)
    if manifest.log_next_sequence > manifest.durable_next_sequence:
        reason = f"{manifest.log_next_sequence} is above {manifest.durable_next_sequence}, the end"
        yield Contradiction("log_next_sequence", reason)
    if manifest.first_sequence > max(manifest.log_next_sequence, 1):
        next_sequence = manifest.log_next_sequence
        reason = f"{manifest.first_sequence} is above log_next_sequence {next_sequence}"
        yield Contradiction("first_sequence", reason)


def _too_large(of: object, names: Sequence[str], prefix: str) -> Iterator[Contradiction]:
    for name in names:
        if getattr(of, name) > _NUMBER_MAX:
            yield Contradiction(f"{prefix}{name}", f"{getattr(of, name)} is above {_NUMBER_MAX}")


def _of_segment(
    where: str, segment: UnsealedSegment | SealedSegment, *, is_dead: bool
) -> Iterator[Contradiction]:
    yield from _too_large(segment, _OF_SEGMENTS, f"{where}.")
    key = key_of_name(segment.file.rpartition("/")[2])
    if key is None or key.path != segment.file:
        yield Contradiction(f"{where}.file", f"{segment.file} is no segment")
        return
    span = key.span.name.lower()
    wanted = {"facts_file": key.facts_path, "start_minute": key.start, "span": span}
    for name, value in wanted.items():
        if getattr(segment, name) != value:
            reason = f"{getattr(segment, name)} is not {value}, as {segment.file} says"
            yield Contradiction(f"{where}.{name}", reason)
    if (segment.span == "dead") is not is_dead:
        yield Contradiction(f"{where}.span", f"{segment.span} does not belong there")
    if isinstance(segment, SealedSegment):
        yield from _of_seal(where, segment)
        return
    yield from _too_large(segment, ["facts", "last_fact"], f"{where}.")
    # It may be above log_next_sequence: nobody knows how far the durable end lags behind.
    if segment.facts and not segment.last_fact:
        yield Contradiction(f"{where}.last_fact", f"no record states its {segment.facts} facts")


def _of_seal(where: str, seal: SealedSegment) -> Iterator[Contradiction]:
    for name in ("digest", "facts_digest"):
        if _DIGEST.fullmatch(getattr(seal, name)) is None:
            reason = f"{getattr(seal, name)!r} is not two numbers of 16 hex digits"
            yield Contradiction(f"{where}.{name}", reason)
    if not 0 <= seal.sealed_ms <= _MS_MAX:
        yield Contradiction(f"{where}.sealed_ms", f"{seal.sealed_ms} is no time in ms")
    if not all(0 <= count <= _NUMBER_MAX for count in seal.outcomes.values()):
        yield Contradiction(f"{where}.outcomes", "there is a count below 0, or too large")


def _of_message_log(manifest: Manifest) -> Iterator[Contradiction]:
    files, directory = manifest.message_log, MESSAGE_LOG_DIRECTORY
    for place, one in enumerate(files):
        where, first, after = f"message_log[{place}]", one.first_sequence, one.next_sequence
        path, _, name = one.file.rpartition("/")
        named = first_of_name(name)
        if path != directory or named is None:
            yield Contradiction(f"{where}.file", f"{one.file} is no file of {directory}")
        elif named != first:
            reason = f"{first} is not the first sequence of {one.file}"
            yield Contradiction(f"{where}.first_sequence", reason)
        if max(after, one.length) > _NUMBER_MAX or first >= after:
            reason = f"there is nothing from {first} up to {after}, of {one.length} bytes"
            yield Contradiction(where, reason)
    if manifest.has_fault(directory):
        return
    at, end = manifest.first_sequence, manifest.log_next_sequence
    for place, one in enumerate(files):
        if one.first_sequence > at or (place and one.first_sequence < at):
            reason = f"it begins with {one.first_sequence}, not with {at}"
            yield Contradiction(f"message_log[{place}]", reason)
        at = one.next_sequence
    # On a full disk the durable end lags behind what the checkpoint has filed; where nothing was
    # ever written there is no file, and the next number is 0 or 1.
    lags = bool(files) and at < end == manifest.sequence + 1
    if at != end and max(at, end) > 1 and not lags:
        yield Contradiction("message_log", f"it ends with {at}, and should with {end}")
