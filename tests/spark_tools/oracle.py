"""The account of some files by dicts and loops, for files that are whole; slow, and on its own.

It shares nothing with spark_tools: files are read by `tests/storage/plain_logs.py`, and what each
class means is written down here once more, from docs/reconciliation.md.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from storage.readers.manifest import Manifest, SealedSegment, UnsealedSegment
from tests.storage.plain_logs import Row, plain_facts, plain_rows

MINUTES = {"minute": 1, "hour": 60, "day": 1440}
DEAD_FROM = 2**32 - 2**22
"""What stands for the first dead segment; beyond it nothing is of an accepted message."""

_ORIGINS = {"accepted": "accepted", "copy": "copies", "retry": "retries"}


@dataclass(slots=True)
class Truth:
    """What must be found."""

    totals: Counter[str] = field(default_factory=Counter)
    subjects: dict[tuple[int, str], Counter[str]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    targets: dict[tuple[int, str], Counter[str]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    findings: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    """By class, sequence, message id, due time, time of the fact, file and position."""
    lateness: Counter[tuple[int, str, int]] = field(default_factory=Counter)
    """By hour, subject and lateness."""


def _read(files: dict[str, bytes], path: str, length: int) -> list[Row]:
    return list(plain_rows(path, files[path], length)) if length else []


def _homes(manifest: Manifest) -> dict[int, UnsealedSegment | SealedSegment]:
    """Return the segment of accepted messages that covers each minute."""
    segments: list[UnsealedSegment | SealedSegment] = [*manifest.segments, *manifest.sealed]
    return {
        minute: segment
        for segment in segments
        for minute in range(segment.start_minute, segment.start_minute + MINUTES[segment.span])
    }


def tail_facts(files: dict[str, bytes], manifest: Manifest) -> list[Row]:
    """Return the facts at the end of the message_log that count and are in no file of a segment."""
    homes = _homes(manifest)
    dead: list[UnsealedSegment | SealedSegment] = [*manifest.dead_segments, *manifest.dead_sealed]
    homes |= {DEAD_FROM + segment.start_minute // 1440: segment for segment in dead}
    log = [(one, files[one.file]) for one in manifest.message_log if one.length]
    waiting = set()
    for one, data in log:
        for row in plain_rows(one.file, data, one.length):
            minute: int = row.get("filed_minute", -1)  # type: ignore[assignment]
            filed = max(manifest.sequence, homes[minute].last_sequence if minute in homes else 0)
            if filed < row["sequence"] < one.next_sequence:  # type: ignore[operator]
                waiting.add(minute)
    found = []
    lacking = {
        segment.file: {
            fact["sequence"] for fact in _read(files, segment.facts_file, segment.facts_length)
        }
        for segment in manifest.sealed
        if not segment.deleted and sum(segment.outcomes.values()) < segment.rows
    }
    for one, data in log:
        for fact in plain_facts(one.file, data, one.length):
            home = homes.get(int(fact["filed_minute"]))  # type: ignore[call-overload]
            filed = manifest.sequence
            if home is not None and home.file in lacking:
                filed = 2**63 if fact["sequence"] in lacking[home.file] else 0
            elif home is not None:
                filed = max(filed, 2**63 if isinstance(home, SealedSegment) else home.last_fact)
            elif fact["filed_minute"] not in waiting:
                continue
            if filed < fact["record"] < one.next_sequence:  # type: ignore[operator]
                found.append(fact)
    return found


def truth(
    files: dict[str, bytes],
    manifest: Manifest,
    *,
    begin: int,
    end: int,
    watermark_ms: int,
    final: bool,
    max_late_ms: int | None,
) -> Truth:
    """Return what is true of the filed minutes from `begin` up to `end`."""
    found = Truth()
    log = [
        row
        for one in manifest.message_log
        for row in _read(files, one.file, one.length)
        if one.first_sequence <= row["sequence"] < one.next_sequence  # type: ignore[operator]
    ]
    accepted = {row["sequence"]: row for row in log if row["kind"] in {"message", "move"}}
    homes = _homes(manifest)
    segments: list[UnsealedSegment | SealedSegment] = [*manifest.segments, *manifest.sealed]
    sealed_files = {segment.file for segment in manifest.sealed}
    deleted = {segment.file for segment in manifest.sealed if segment.deleted}
    tail = [
        fact
        for fact in tail_facts(files, manifest)
        if int(fact["filed_minute"]) < DEAD_FROM  # type: ignore[call-overload]
    ]
    loose: dict[int, list[Row]] = defaultdict(list)
    expected: dict[str | None, list[Row]] = defaultdict(list)
    for record in accepted.values():
        minute = int(record["filed_minute"])  # type: ignore[call-overload]
        home = homes.get(minute)
        is_filed = record["sequence"] <= manifest.sequence or (  # type: ignore[operator]
            home is not None and int(record["sequence"]) <= home.last_sequence  # type: ignore[call-overload]
        )
        if not is_filed:
            loose[minute].append(record)
        elif home is None:
            expected[None].append(record)
        else:
            expected[home.file].append(record)
    units: list[tuple[int, int, Any]] = []
    for segment in segments:
        first, after = segment.start_minute, segment.start_minute + MINUTES[segment.span]
        if segment.file not in deleted and first < end and after > begin:
            units.append((first, after, segment))
    covered = set(homes)
    homeless = {minute for minute in loose if minute not in covered and begin <= minute < end}
    homeless |= {int(one["filed_minute"]) for one in tail} - covered  # type: ignore[call-overload]
    units += [
        (hour * 60, hour * 60 + 60, None) for hour in sorted({minute // 60 for minute in homeless})
    ]
    # A row of a message that is still loose is one too many as well.
    everywhere = Counter(
        record["sequence"]
        for minute, records in loose.items()
        if begin <= minute < end
        for record in records
    )
    for first, after, segment in units:
        rows: list[Row] = []
        facts: list[Row] = []
        if segment is not None:
            rows += _read(files, segment.file, segment.length)
            facts += _read(files, segment.facts_file, segment.facts_length)
        inside = {
            minute for minute in range(first, after) if segment is not None or minute not in covered
        }
        filed = list(rows)
        for minute in inside:
            if begin <= minute < end:
                rows += loose.get(minute, [])
        facts += [one for one in tail if one["filed_minute"] in inside]
        is_sealed = segment is not None and segment.file in sealed_files
        _unit(
            found,
            manifest,
            rows,
            facts,
            (first, after),
            is_sealed=is_sealed,
            begin=begin,
            end=end,
            watermark_ms=watermark_ms,
            final=final,
            max_late_ms=max_late_ms,
        )
        for row in filed:
            sequence: int = row["sequence"]  # type: ignore[assignment]
            minute = _minute_of(row, first, after)
            if not begin <= minute < end:
                continue
            everywhere[sequence] += 1
            if everywhere[sequence] > 1:
                found.totals["doubled"] += 1
            if not manifest.first_sequence <= sequence < manifest.log_next_sequence:
                continue
            record = accepted.get(sequence, {})
            if not record:
                _name(found, "unlogged", row, None)
                found.totals["unlogged"] += 1
                continue
            told = row["due_ms"] // 60_000 >= after  # type: ignore[operator]
            if not first <= record["filed_minute"] < after and not told:  # type: ignore[operator]
                _name(found, "misfiled", row, None)
                found.totals["misfiled_in_log"] += 1
            if any(record[name] != row[name] for name in ("due_ms", "size", "id_hash", "origin")):
                _name(found, "altered", row, None)
                found.totals["altered"] += 1
    for path, records in expected.items():
        home = next((one for one in segments if one.file == path), None)
        there = set()
        if home is not None and path not in deleted:
            there = {row["sequence"] for row in _read(files, home.file, home.length)}
        for record in records:
            if not begin <= record["filed_minute"] < end:  # type: ignore[operator]
                continue
            if path in deleted:
                found.totals["unchecked"] += 1
            elif record["sequence"] not in there:
                _name(found, "missing", record, None)
                found.totals["missing"] += 1
    return found


def _minute_of(row: Row, first: int, after: int) -> int:
    """Return the filed minute of a record, or what is known of that of a row in a segment.

    A record of the message_log has the floor of its batch; a segment keeps the due time only.
    """
    if "filed_minute" in row:
        return int(row["filed_minute"])  # type: ignore[call-overload, no-any-return]
    minute: int = row["due_ms"] // 60_000  # type: ignore[operator]
    return min(max(minute, first), after - 1)


def _name(found: Truth, kind: str, row: Row, fact: Row | None, *, of_fact: bool = False) -> None:
    mine = fact if of_fact and fact is not None else row
    key = (
        kind,
        mine["sequence"],
        row.get("message_id"),
        row.get("due_ms"),
        fact and fact["at_ms"],
        mine["file"],
        mine["position"],
    )
    found.findings[key] += 1


def _unit(
    found: Truth,
    manifest: Manifest,
    rows: list[Row],
    facts: list[Row],
    minutes: tuple[int, int],
    *,
    is_sealed: bool,
    begin: int,
    end: int,
    watermark_ms: int,
    final: bool,
    max_late_ms: int | None,
) -> None:
    """Judge the rows and facts of one segment, or of minutes without one."""
    first, after = minutes
    by_sequence: dict[int, list[Row]] = defaultdict(list)
    for fact in facts:
        by_sequence[fact["sequence"]].append(fact)  # type: ignore[index]
    owner: dict[int, Row] = {}
    for row in rows:
        owner.setdefault(row["sequence"], row)  # type: ignore[arg-type]
    winner: dict[int, Row] = {}
    for sequence, told in by_sequence.items():
        told.sort(key=_precedence)
        seen: list[tuple[object, ...]] = []
        for fact in told:
            alike = (fact["at_ms"], fact["outcome"], fact["target"])
            row_of = owner.get(sequence)
            minute = (
                min(max(int(fact["filed_minute"]), first), after - 1)  # type: ignore[call-overload]
                if row_of is None
                else _minute_of(row_of, first, after)
            )
            ends = {str(fact["outcome"]), str(told[0]["outcome"])} - {"delivered", "known"}
            if alike in seen and (row_of is None or fact["outcome"] in {"delivered", "known"}):
                kind = "repeated"
            elif row_of is None:
                kind = "phantom" if sequence < manifest.log_next_sequence else "unexplained"
            elif not seen:
                kind = "first"
                winner[sequence] = fact
            elif fact["outcome"] == "delivered":
                kind = "duplicate"
            else:
                kind = "settled_twice" if ends else "other"
            seen.append(alike)
            if not begin <= minute < end:
                continue
            found.totals["facts"] += 1
            found.totals[kind] += 1
            cell = found.targets[minute // 60 * 60, str(fact["target"])]
            cell["facts"] += 1
            cell[kind] += 1
            cell[str(fact["outcome"])] += 1
            if kind in {"duplicate", "settled_twice", "phantom", "unexplained"}:
                _name(found, kind, row_of or {}, fact, of_fact=True)
    for row in rows:
        minute = _minute_of(row, first, after)
        if not begin <= minute < end:
            continue
        fact = winner.get(row["sequence"], {})  # type: ignore[call-overload]
        cell = found.subjects[minute // 60 * 60, str(row["subject"])]
        due_ms: int = row["due_ms"]  # type: ignore[assignment]
        if fact:
            state = fact["outcome"]
        elif is_sealed:
            state = "lost"
        elif due_ms > watermark_ms:
            state = "waiting"
        else:
            state = "lost" if final else "overdue"
        marks = [_ORIGINS[str(row["origin"])], state]
        if state in {"lost", "overdue"}:
            _name(found, state, row, None)
        if state == "delivered":
            late = fact["at_ms"] - due_ms
            if late < 0:
                marks.append("early")
                _name(found, "early", row, fact)
            elif minute * 60_000 > due_ms:
                marks.append("sent_past_due")
            else:
                found.lateness[minute // 60 * 60, str(row["subject"]), late] += 1
                if max_late_ms is not None and late > max_late_ms:
                    _name(found, "late", row, fact)
        if due_ms // 60_000 >= after:
            marks.append("misfiled")
            _name(found, "misfiled", row, fact or None)
        for mark in marks:
            found.totals[mark] += 1
            cell[mark] += 1


_ORDER = ["", "delivered", "known", "dead", "cancelled", "moved", "expired", "dropped"]


def _precedence(fact: Row) -> tuple[Any, ...]:
    return (
        fact["outcome"] != "delivered",
        fact["at_ms"],
        _ORDER.index(str(fact["outcome"])),
        fact["target"],
    )
