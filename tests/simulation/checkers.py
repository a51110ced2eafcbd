"""What must be true, judged by what peers saw and what is on the disk.

Nothing of the server is asked (but for promise 8, which no peer and no disk can see, and for the
reasons that it states), and nothing of its code is used: files are read by
`independent_reader.py`. The disk at the end is what a power cut after the clean stop left of it, so
whatever is found there is durable.

    promise           what has to hold                                            from what
    1 kept            after each end of a life all that was acknowledged is       producers, disk
                      durable; at the end the message_log has it byte for byte,
                      numbered without gaps, and the durable end vouches for it
    2 once            every accepted sequence has one row, with its own columns,  disk
                      in the one segment of its filed minute; nothing was
                      accepted more often than it was sent
    3 never early     a broker got an item when it was due by the wall, or later  brokers
    4 leaves          what was acknowledged was received; all segments are        producers,
                      sealed, their facts cover their rows, and no fact tells of  brokers, disk
                      a delivery that no broker saw
      serves          the server starts whatever came before, under an            that it runs,
                      incarnation of its own, and answers as it should            producers, disk
      settled         after each end of a life all that a receiver was told is      receivers, disk
                      settled is durable
    5 few twice       a delivery that the server heard of, and had time to write  brokers,
                      down, is not repeated; after each end of a life a start     disk
                      would know every durable outcome; at the end the facts of
                      a segment are those that records state, once each
    7 whole           items arrive as they were sent; at the end every byte that  producers,
                      counts is as the pages of docs/formats/ say                 brokers, disk
    8 bounded         what the server holds in memory is within its settings      probe.py
      dead            what is given up has a DEAD record, a row of its day and a    disk, that all
                      fact, none without the other; each row is named once, and   else holds
                      so is sent again only if it was requeued
    9 isolated        while one broker group does its work, what is due leaves    producers,
                      within 20 s, however many others there are and whatever     brokers
                    they do; what is of one subject waits for its like
      stated        at any moment each undelivered message has a reason that    producers,
                    is true, none is said to be delivered that no broker has    brokers, the
                    taken, and the counts by reason add up to what was          clock, the
                    acknowledged and not received (stating.py)                  operator's rules

Promise 6 needs more than one node. A violation begins with one of these words.
"""

import contextlib
import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from delay_server.accepting.duplicates import DuplicatesConfig
from tests.simulation import independent_reader as reader
from tests.simulation.gating import GateJudge, subjects_of
from tests.simulation.independent_reader import Batch, Checkpoint, Fact, MismatchError
from tests.simulation.stating import Stating
from tests.simulation.witness import Witness

_ORDER_S = 15.0
"""After a delivery that was heard of, another may still be under way for this long."""
_CALM_BEFORE_S = 20.0
"""A group that did its work for so long is connected and trusted again."""
_ON_TIME_S = 20.0
"""Two requests that time out, the waits after them, and a disk that stalls now and then."""
_TURN_S = 0.25
"""The time for each message of the same subject that a broker was sent meanwhile: a hot subject
waits for itself."""
_LEASE_S = 30.0
"""A receiver that is gone without a word is found out after so long."""
_SHOWN = 5
_MINUTE_MS = 60_000
_SET_ASIDE = re.compile(
    r"quarantine/(?P<log>schedule_log|dispatch_log)\.(?P<incarnation>\d+)\.(?P<name>\d.*)"
)
_OUTCOMES = ("delivered", "known", "dead", "cancelled", "moved", "expired", "dropped")
_DIGESTED = (("sequence", "<i8"), ("due_ms", "<i8"), ("size", "<u4"), ("id_hash", "<u8"))


@dataclass(frozen=True, slots=True)
class _Message:
    """One accepted message, as the message_log has it."""

    message_id: bytes
    subject: bytes
    id_hash: int
    due_ms: int
    minute: int
    item: bytes


@dataclass(slots=True)
class Findings:
    """What a run came to."""

    violations: list[str] = field(default_factory=list)
    accepted: int = 0
    """Rows of the message_log; with the copies that producers' retries made."""
    twice: int = 0
    """Deliveries beyond one for each copy."""
    segments: Counter[str] = field(default_factory=Counter)
    """Segments that held rows, by span."""

    def broken(self, promise: str, what: str, cases: Collection[object]) -> None:
        """Note a broken promise with some of its cases."""
        if cases:
            shown = ", ".join(map(str, list(cases)[:_SHOWN]))
            more = f" and {len(cases) - _SHOWN} more" if len(cases) > _SHOWN else ""
            self.violations.append(f"{promise}: {len(cases)} {what}: {shown}{more}")


def check(
    witness: Witness,
    files: Mapping[str, bytes],
    *,
    brokers: Collection[str] = (),
    at_stop: Mapping[str, bytes] | None = None,
    gating: GateJudge | None = None,
    stating: Stating | None = None,
) -> Findings:
    """Hold every promise against what was seen and what is on the disk.

    `files`: what a power cut after a clean stop left, and what was deleted for good reason
    (deleted.py); `at_stop`: what was there before it;
    `brokers`: the names of the groups that were there all the time;
    `gating`: the operator, if there was one; `stating`: who asked for reasons.
    """
    findings = Findings(violations=list(witness.complaints))
    _check_receipts(witness, findings)
    _check_on_time(witness, brokers, findings, gating)
    if gating is not None:
        findings.violations += gating.check()
    if stating is not None:
        findings.violations += stating.check()
    damaged = {path for path, _position, _byte in witness.damage}
    whole = whole_files(witness, with_files_set_aside(files))
    image = _Image(whole, findings, damaged=damaged)
    try:
        image.check(witness)
        if at_stop is not None:
            _check_named(whole_files(witness, at_stop), findings)
    except MismatchError as error:
        findings.violations.append(f"whole: {error}")
    return findings


def whole_files(witness: Witness, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files as they were without the damage done to them on purpose.

    What is damaged stays where it is, so it can be read again when its bytes are right; but a file
    that can be read as it is has been written anew since.

    In a file of the message_log, which is cut nowhere once its damage was seen, what a crash left
    behind it of an append stays, too. It is left out here: the next file tells whether it goes on
    where this one ends.
    """
    whole = dict(files)
    for path, position, byte in witness.damage:
        data = whole.get(path, b"")
        if position < len(data) and not _is_readable(data):
            whole[path] = data[:position] + bytes([byte]) + data[position + 1 :]
            if _is_log(path, "message_log"):
                whole[path] = _up_to_the_last_batch(whole[path])
    return whole


def _up_to_the_last_batch(data: bytes) -> bytes:
    end = 0
    with contextlib.suppress(MismatchError):
        end = reader.FILE_HEADER_SIZE
        for batch in reader.read_batches(data):
            end += batch.size
    return data[:end]


def with_files_set_aside(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files, and in its first place each that a start with damage has set aside.

    Such a start moves what nothing seems to name, and damaged seals name no segment; without the
    damage they do. What has been written in that place since stays, and the oldest of several is
    what was there when the damage was done.
    """
    found = dict(files)
    set_aside = [match for path in files if (match := _SET_ASIDE.fullmatch(path))]
    for match in sorted(set_aside, key=lambda match: int(match["incarnation"])):
        found.setdefault(f"{match['log']}/{match['name']}", files[match[0]])
    return found


def _is_readable(data: bytes) -> bool:
    try:
        return all(True for _ in reader.read_batches(data))
    except MismatchError:
        return False


def check_end_of_life(witness: Witness, durable: Mapping[str, bytes]) -> None:
    """Complain to the witness of what is not durable when a life of the server has just ended.

    Whatever ended it, all that was acknowledged up to now has to be there, and the incarnation has
    to be one that no life before this one had.
    """
    files = whole_files(witness, durable)
    log = [
        batch
        for path in sorted(files)
        if _is_log(path, "message_log")
        for batch in _readable_batches(files[path])
    ]
    ids = {at: message_id for batch in log for at, message_id in _ids_of(batch)}
    found = set(ids.values())
    missing = [message_id for message_id in witness.acknowledged if message_id not in found]
    if missing:
        # Retention may have taken it from the message_log, once it was filed.
        for path in sorted(files):
            if path.startswith("schedule_log/"):
                for batch in _readable_batches(files[path]):
                    found.update(message_id for _, message_id in _ids_of(batch))
    lost = [message_id for message_id in missing if message_id not in found | witness.lost]
    if lost:
        witness.complain(
            f"kept: {len(lost)} acknowledged messages are not durable: {lost[:_SHOWN]}"
        )
    try:
        _uuid, incarnation = reader.read_incarnation(files.get("identity", b""))
    except MismatchError:
        # It died before it knew who it was.
        return
    _check_outcomes_kept(witness, files, log, ids)
    if witness.acknowledged_in_this_life and incarnation <= witness.incarnation:
        witness.complain(f"serves: incarnation {incarnation} after {witness.incarnation}")
    witness.incarnation = incarnation


def check_settled(
    witness: Witness, durable: Mapping[str, bytes], settled: Mapping[int, bytes]
) -> None:
    """Complain to the witness of messages whose end is not durable, though a receiver heard it is.

    `settled`: by sequence, their ids.
    """
    files = with_files_set_aside(whole_files(witness, durable))
    known = {
        fact.sequence
        for path in sorted(files)
        if path.startswith(("message_log/", "dispatch_log/"))
        for batch in _readable_batches(files[path])
        for fact in reader.facts_of(batch)
    }
    excused = witness.lost | witness.doubled
    missing = [at for at, one in settled.items() if at not in known and one not in excused]
    if missing:
        witness.complain(f"settled: {len(missing)} are not durable: {missing[:_SHOWN]}")


def check_clean_stop(witness: Witness, files: Mapping[str, bytes]) -> None:
    """Complain to the witness of a message_log that goes on behind its last batch.

    What a full disk let through of an append, and what a crash left of one, is to be gone.
    """
    paths = [path for path in sorted(files) if _is_log(path, "message_log")]
    try:
        for _batch in reader.read_batches(whole_files(witness, files)[paths[-1]]):
            pass
    except MismatchError as error:
        witness.complain(f"whole: after a clean stop {paths[-1]}: {error}")


def _check_named(files: Mapping[str, bytes], findings: Findings) -> None:
    """Find files of segments that nothing names: a start deletes those that a crash has left."""
    checkpoint = reader.read_checkpoint(files["checkpoint/checkpoint"])
    named = {reader.segment_name(segment.start, segment.span) for segment in checkpoint.segments}
    sealed: dict[str, int] = {}
    for path, until in _seals_files(files, checkpoint):
        for batch in reader.read_batches(files[path], until=until):
            columns = batch.columns
            names = map(reader.segment_name, columns["start_minute"], columns["span"])
            sealed.update(zip(names, columns["deleted"], strict=True))
    named.update(name for name, deleted in sealed.items() if not deleted)
    listed = {*checkpoint.retired, *checkpoint.quarantined}
    strange = [
        path
        for path in sorted(files)
        if path.startswith(("schedule_log/", "dispatch_log/"))
        and path not in listed
        and path.rpartition("/")[2] not in named
    ]
    strange += [
        path
        for path in sorted(files)
        if _is_log(path, "message_log")
        and _first_of(path) < checkpoint.first_sequence
        and path not in listed
    ]
    findings.broken("bounded", "files that nothing names", strange)


def _check_outcomes_kept(
    witness: Witness, files: Mapping[str, bytes], log: Collection[Batch], ids: Mapping[int, bytes]
) -> None:
    """Complain of durable outcomes of which a start would know nothing.

    It knows those in the files of the segments that the checkpoint names, and those of the log
    behind the checkpoint that are also behind the last one of their segment.
    """
    if "checkpoint/checkpoint" not in files:
        return  # It reads the log from its first record on.
    try:
        checkpoint = reader.read_checkpoint(files["checkpoint/checkpoint"])
        filed = {
            (segment.start, segment.span): (segment.last_fact, _filed_facts(files, segment))
            for segment in checkpoint.segments
        }
    except MismatchError as error:
        witness.complain(f"whole: at the end of a life: {error}")
        return
    stated: set[int] = set()
    known: set[int] = set()
    for fact in (fact for batch in log for fact in reader.facts_of(batch)):
        for key in reader.segments_of(fact.minute):
            last_fact, sequences = filed.get(key, (0, None))
            if sequences is None:
                continue
            stated.add(fact.sequence)
            if fact.record > max(checkpoint.sequence, last_fact) or fact.sequence in sequences:
                known.add(fact.sequence)
    excused = witness.lost | witness.doubled
    forgotten = [at for at in sorted(stated - known) if ids.get(at) not in excused]
    if forgotten:
        witness.complain(
            f"few twice: {len(forgotten)} durable outcomes are forgotten: {forgotten[:_SHOWN]}"
        )


def _filed_facts(files: Mapping[str, bytes], segment: reader.Segment) -> set[int]:
    """Return the sequences of the facts beside a segment."""
    if not segment.facts_length:
        return set()
    path = f"dispatch_log/{reader.segment_name(segment.start, segment.span)}"
    batches = reader.read_batches(files.get(path, b""), until=segment.facts_length)
    return {sequence for batch in batches for sequence in batch.columns["sequence"]}


def _readable_batches(data: bytes) -> Iterator[Batch]:
    """Yield the batches of a file up to where a crash has left it unreadable."""
    with contextlib.suppress(MismatchError):
        yield from reader.read_batches(data)


def _ids_of(batch: Batch) -> Iterator[tuple[int, bytes]]:
    """Yield the message ids of a batch, each with its place: in the message_log its sequence."""
    for place, item in enumerate(batch.items, batch.base):
        yield place, reader.read_item(item).message_id


# -- what peers saw ------------------------------------------------------------------------------


def _check_receipts(witness: Witness, findings: Findings) -> None:
    early: list[object] = []
    mangled: list[object] = []
    unknown: list[object] = []
    for receipt in witness.receipts:
        due_ms = witness.due_of(receipt.message_id, receipt.item)
        if receipt.message_id not in witness.items:
            unknown.append(receipt.message_id)
        elif due_ms is None:
            mangled.append(receipt.message_id)
        elif receipt.wall_ms < due_ms:
            early_ms = due_ms - receipt.wall_ms
            early.append(f"{receipt.message_id!r} by {early_ms} ms")
    findings.broken("never early", "items arrived before they were due", early)
    findings.broken("whole", "items arrived with other bytes", mangled)
    findings.broken("whole", "items arrived that should have been refused", unknown)
    findings.broken("leaves", "acknowledged messages never left", witness.missing())


def _check_on_time(
    witness: Witness, brokers: Collection[str], findings: Findings, gating: GateJudge | None
) -> None:
    """Find what left late although a group was there to take it all the time."""
    late: list[object] = []
    blocked = _subjects_of_poison(witness) if witness.space_short_until_s else set()
    subjects = {} if gating is None else subjects_of(witness.items)
    for message_id, receipts in witness.receipts_by_id().items():
        receipt = receipts[0]
        acknowledged_s = witness.acknowledged.get(message_id)
        if acknowledged_s is None or message_id in witness.lost:
            continue
        if witness.poison.is_poison(message_id) or witness.is_deadly(message_id):
            continue
        if witness.fates.is_touched(message_id.decode()):
            # The judge of changes knows when it may come; nobody knows since when it may.
            continue
        due_s = receipt.at_s - (receipt.wall_ms - witness.due_ms[message_id]) / 1000
        from_s = witness.served_from(max(due_s, acknowledged_s))
        until_s = from_s + _ON_TIME_S
        if (
            receipt.at_s > until_s
            and not witness.clock_was_set_between(from_s, receipt.at_s)
            and witness.all_was_well(from_s, until_s)
            and witness.some_broker_was_calm(brokers, from_s - _CALM_BEFORE_S, until_s)
            and not (gating and gating.is_gated(subjects[message_id], due_s - 1, receipt.at_s))
            and not _was_at_receivers(witness, message_id, from_s, receipt.at_s)
        ):
            item = witness.items[message_id]
            if from_s < witness.space_short_until_s and reader.read_item(item).subject in blocked:
                # What was given up is held in the lane of its subject until it can be recorded.
                continue
            if receipt.at_s <= until_s + _TURN_S * _sent_of(witness, item, from_s, receipt.at_s):
                continue
            late.append(f"{message_id!r} by {receipt.at_s - from_s:.1f} s")
    findings.broken("isolated", "messages left late though a group was there", late)


def _sent_of(witness: Witness, item: bytes, from_s: float, until_s: float) -> int:
    """Return how often brokers were sent a message of the subject of an item in this time."""
    subject = reader.read_item(item).subject
    return sum(
        from_s <= at_s < until_s
        for message_id, seen in witness.sightings.items()
        if reader.read_item(witness.items[message_id]).subject == subject
        for at_s, _ in seen
    )


def _was_at_receivers(witness: Witness, message_id: bytes, from_s: float, until_s: float) -> bool:
    """Say whether a receiver had a message, or may have had it and lost its connection."""
    seen = witness.sightings.get(message_id, ())
    return any(at_s < until_s and name in witness.receivers for at_s, name in seen) or not all(
        witness.some_broker_was_calm([name], from_s - _LEASE_S, until_s)
        for name in witness.receivers
    )


def _subjects_of_poison(witness: Witness) -> set[bytes]:
    """Return the subjects of which some message was refused for good."""
    is_poison = witness.poison.is_poison
    return {
        reader.read_item(witness.items[message_id]).subject
        for message_id in witness.acknowledged
        if is_poison(message_id)
    }


def _check_twice(witness: Witness, copies: Counter[bytes], findings: Findings) -> None:
    """Find deliveries of copies that the server knew to be delivered."""
    wrong: list[object] = []
    order_s = witness.under_way_s + _ORDER_S
    for message_id, receipts in witness.receipts_by_id().items():
        copied = copies[message_id]
        findings.twice += max(len(receipts) - copied, 0)
        if message_id in witness.doubled:
            continue
        sure = [receipt for receipt in receipts if witness.is_settled(receipt)]
        again = [receipt for receipt in receipts if sure and receipt.at_s > sure[0].at_s + order_s]
        if len(sure) > copied or (copied == 1 and again):
            times = [f"{receipt.at_s:.3f}{'!' * (receipt in sure)}" for receipt in receipts]
            wrong.append(f"{message_id!r} ({copied} copies) at {times}")
    findings.broken("few twice", "messages were delivered again without need", wrong)


# -- what is on the disk -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Naming:
    """A record that names an older row: DEAD, MOVE or CANCEL."""

    kind: int
    old: int
    old_minute: int
    day: int
    """First minute of the day on which it was appended, or of its floor's day if that is later."""
    append_ms: int
    reason: str


@dataclass(slots=True)
class _Filed:
    """What the files of one segment hold."""

    sequences: list[int] = field(default_factory=list)
    columns: dict[str, list[int]] = field(default_factory=dict)
    last_crc: int = 0
    facts: list[Fact] = field(default_factory=list)
    told: Counter[int] = field(default_factory=Counter)
    """Facts by sequence."""
    outcomes: Counter[int] = field(default_factory=Counter)
    facts_last_crc: int = 0


class _Repeats:
    """Finds messages of a log that were within the window of their originals."""

    def __init__(self, config: DuplicatesConfig) -> None:
        self._config = config
        self._rows: dict[bytes, tuple[int, int]] = {}
        """By its essence, the record and the append time of each item that is an original."""
        self._items: dict[int, bytes] = {}
        """By the record of an original, or of the last MOVE of one."""
        self._newest_ms = 0
        """The latest append time: what is beyond the window by it may be forgotten."""
        self.found: list[object] = []

    def see(self, batch: Batch) -> None:
        """Take the next batch of the log."""
        if batch.append_ms < self._newest_ms:
            # Where a clock was set back nobody knows how long ago something came.
            self._rows.clear()
        self._newest_ms = max(self._newest_ms, batch.append_ms)
        if batch.kind == reader.MESSAGE:
            for place, data in enumerate(batch.items):
                # The subject of a copy for one name is not that of its item.
                if batch.names[batch.columns["subject"][place]] == reader.read_item(data).subject:
                    self._see_item(batch.base + place, batch, reader.essence(data))
        for fact in reader.facts_of(batch):
            item = self._items.pop(fact.sequence, None)
            if item is None:
                continue
            if fact.outcome == reader.MOVED:
                self._items[fact.record] = item
            elif fact.outcome in {reader.DELIVERED, reader.KNOWN}:
                self._items[fact.sequence] = item
            else:
                self._rows.pop(item, None)

    def _see_item(self, sequence: int, batch: Batch, data: bytes) -> None:
        before, append_ms = self._rows.get(data, (0, 0))
        is_near = sequence + batch.count - before < self._config.messages_max
        if self._config.is_on and before and is_near:
            age_ms = self._newest_ms - append_ms
            if age_ms < self._config.window_ms:
                self.found.append(f"{before} and {sequence}, {age_ms} ms later")
        self._rows[data] = sequence, batch.append_ms
        self._items[sequence] = data


class _Image:
    """All files of a data directory after a clean stop."""

    def __init__(
        self, files: Mapping[str, bytes], findings: Findings, *, damaged: Collection[str]
    ) -> None:
        self._files = files
        self._damaged = set(damaged)
        """Files of which some byte was changed on purpose, and is put right here."""
        self._findings = findings
        self._uuid = b""
        self._epochs: list[tuple[int, int]] = []
        """Each epoch of the message_log and its first sequence."""
        self._rows: Counter[int] = Counter()
        self._naming: dict[int, _Naming] = {}
        """By their sequences."""
        self._stated: dict[int, list[Fact]] = {}
        """Facts that records of the message_log state, by filed minute."""
        self._outcomes: dict[int, set[int]] = {}
        """What facts say, by sequence."""
        self._delivered: set[int] = set()
        """Sequences that a fact says a broker has."""

    def check(self, witness: Witness) -> None:
        """Check the files against each other and against the witness. Raises MismatchError."""
        if "identity" not in self._files:
            self._findings.violations.append("kept: the disk has no identity")
            return
        self._uuid, _ = reader.read_incarnation(self._files["identity"])
        log = self._read_message_log(witness)
        accepted = [message for at, message in log.items() if at not in self._naming]
        self._findings.accepted = len(accepted)
        copies = Counter(message.message_id for message in accepted)
        self._check_kept(witness, log, copies)
        _check_twice(witness, copies, self._findings)
        if "checkpoint/checkpoint" not in self._files:
            self._findings.violations.append("kept: there is no checkpoint after a clean stop")
            return
        checkpoint = reader.read_checkpoint(self._files["checkpoint/checkpoint"])
        if list(checkpoint.epochs) != self._epochs:
            self._findings.violations.append(
                f"kept: the checkpoint knows epochs {checkpoint.epochs}, the log {self._epochs}"
            )
        lost = {place for place, message in log.items() if message.message_id in witness.lost}
        excused_ids = witness.lost | witness.doubled
        excused = {at for at, message in log.items() if message.message_id in excused_ids}
        self._check_segments(checkpoint, log, lost, excused)
        self._check_rows(log, lost)
        self._check_facts(witness, log)
        self._check_naming(log, excused)

    def _batches(self, path: str, kind: int, until: int | None = None) -> Iterator[Batch]:
        try:
            data = self._files.get(path, b"")
            header = reader.read_file_header(data)
            if (header.kind, header.uuid) != (kind, self._uuid):
                raise MismatchError(f"of log kind {header.kind} or another log")  # noqa: TRY301
            yield from reader.read_batches(data, until=until)
        except MismatchError as error:
            raise MismatchError(f"{path}: {error}") from error

    # The message_log.

    def _read_message_log(self, witness: Witness) -> dict[int, _Message]:
        """Return all accepted messages by sequence; records have to be numbered without gaps."""
        log: dict[int, _Message] = {}
        paths = [path for path in sorted(self._files) if _is_log(path, "message_log")]
        following = _first_of(paths[0]) if paths else 1
        floor, crc = 0, 0 if following == 1 else None
        before = ""
        repeats = _Repeats(witness.duplicates)
        for path in paths:
            if _first_of(path) != following:
                self._complain_of_order(path, f"comes after record {following - 1}")
            for batch in self._batches(path, reader.MESSAGE_LOG):
                if batch.base != following:
                    self._complain_of_order(path, f"record {batch.base} after {following - 1}")
                if batch.floor_minute < floor:
                    self._complain_of_order(path, f"floor {batch.floor_minute} after {floor}")
                # Where damage and the loss of the durable end come together nobody knows its CRC.
                is_unknown = batch.previous_crc == 0 and before in self._damaged
                if crc is not None and batch.previous_crc != crc and not is_unknown:
                    self._complain_of_order(path, f"record {batch.base} breaks the chain")
                before = path
                if not self._epochs or batch.epoch != self._epochs[-1][0]:
                    self._epochs.append((batch.epoch, batch.base))
                floor, crc = batch.floor_minute, batch.crc
                following = batch.base + batch.count
                if batch.kind in {reader.MESSAGE, reader.MOVE, reader.DEAD}:
                    log.update(self._messages(path, batch))
                if batch.kind in {reader.CANCEL, reader.MOVE, reader.DEAD}:
                    self._naming.update(_naming(batch))
                elif batch.kind == reader.FACTS:
                    self._note_outcomes(batch)
                repeats.see(batch)
                for fact in reader.facts_of(batch):
                    self._stated.setdefault(fact.minute, []).append(fact)
        self._check_durable_end(following, crc)
        is_damaged = any(_is_log(path, "message_log") for path in self._damaged)
        if not (is_damaged or witness.log_was_unreadable):
            # Of what could not be read nobody knew that it was sent again.
            self._findings.broken("once", "messages have two rows in the window", repeats.found)
        return log

    def _complain_of_order(self, path: str, what: str) -> None:
        self._findings.violations.append(f"kept: {path}: {what}")

    def _messages(self, path: str, batch: Batch) -> Iterator[tuple[int, _Message]]:
        dues, subjects = batch.columns["due_ms"], batch.columns["subject"]
        for place, (due_ms, data) in enumerate(zip(dues, batch.items, strict=True)):
            item = reader.read_item(data)
            sequence = batch.base + place
            told = (batch.names[subjects[place]], batch.columns["id_hash"][place])
            if told != (item.subject, item.id_hash) or item.due_ms not in {0, due_ms}:
                self._findings.violations.append(
                    f"kept: {path}: the columns of {sequence} are not those of its item"
                )
            minute = max(due_ms // _MINUTE_MS, batch.floor_minute)
            yield (
                sequence,
                _Message(item.message_id, item.subject, item.id_hash, due_ms, minute, data),
            )

    def _check_durable_end(self, following: int, crc: int | None) -> None:
        slots = reader.read_durable_end(self._files.get("message_log/durable_end", b""), self._uuid)
        vouched = slots[-1].next_sequence if slots else 0
        if vouched != following or slots[-1].last_crc != crc:
            self._findings.violations.append(
                f"kept: after a clean stop the durable end is {vouched}, the log's is {following}"
            )

    def _check_kept(
        self, witness: Witness, log: dict[int, _Message], copies: Counter[bytes]
    ) -> None:
        findings = self._findings
        lost = [message_id for message_id in witness.acknowledged if not copies[message_id]]
        findings.broken("kept", "acknowledged messages are not in the message_log", lost)
        rows = Counter(
            reader.essence(message.item) for at, message in log.items() if at not in self._naming
        )
        fewer: list[object] = [
            f"{rows[one]} of {least} of {one[:60]!r}"
            for one, least in witness.rows_least.items()
            if rows[one] < least
        ]
        findings.broken("kept", "messages have fewer rows than were acknowledged", fewer)
        odd: list[object] = []
        for sequence, message in log.items():
            due_ms = witness.due_of(message.message_id, message.item)
            if due_ms is None:
                odd.append(f"{sequence} ({message.message_id!r})")
            elif due_ms and due_ms != message.due_ms:
                odd.append(f"{sequence} is due at {message.due_ms}, not {due_ms}")
        findings.broken("kept", "messages of the log are not as they were sent", odd)
        sent = witness.attempts - witness.turned_away
        more: list[object] = [
            f"{message_id!r}: {count} of {sent[message_id]}"
            for message_id, count in copies.items()
            if count > sent[message_id]
        ]
        findings.broken(
            "once", "messages were accepted more often than they were sent and not refused", more
        )

    # Segments, facts and seals.

    def _check_segments(
        self,
        checkpoint: Checkpoint,
        log: dict[int, _Message],
        lost: set[int],
        excused: set[int],
    ) -> None:
        """Every segment that counts is sealed; what seals and checkpoint say of it is so."""
        seals = self._read_seals(checkpoint)
        covered: dict[int, str] = {}
        left: list[object] = []
        for segment in checkpoint.segments:
            name = reader.segment_name(segment.start, segment.span)
            if name in seals:
                self._findings.violations.append(f"leaves: {name} is sealed and open")
            filed = self._read_segment(name, segment.length, segment.facts_length, log)
            said = (segment.rows, segment.last_sequence, segment.last_crc, segment.facts_last_crc)
            rows = filed.sequences
            if said != (len(rows), max(rows, default=0), filed.last_crc, filed.facts_last_crc):
                self._findings.violations.append(f"once: the checkpoint is wrong about {name}")
            # A segment that cannot be read as it was stays open, and so does one with rows that
            # cannot be sent.
            may_stay = segment.span == reader.DEAD_SPAN and (
                set(rows) - filed.told.keys()
                or checkpoint.floor_minute < segment.start + reader.SPAN_MINUTES[segment.span]
            )
            if rows and not may_stay and not self._is_damaged(name) and not lost & set(rows):
                left.append(f"{name} ({segment.rows} rows, {segment.facts} facts)")
            last = max(segment.last_fact, checkpoint.sequence)
            stated = self._stated_of(segment.start, segment.span, excused)
            self._check_filed(name, filed, [one for one in stated if one.record <= last], excused)
            self._cover(segment.start, segment.span, name, covered)
        self._findings.broken("leaves", "segments are not sealed", left)
        for name, seal in seals.items():
            filed = self._read_segment(name, seal["length"], seal["facts_length"], log)
            wrong = [what for what, value in _seal_of(filed).items() if seal[what] != value]
            # Of a damaged one not everything could be read when it was sealed.
            if not self._is_damaged(name):
                self._findings.broken("leaves", f"fields of the seal of {name} are wrong", wrong)
            unsent = set(filed.sequences) - set(filed.told)
            strange = set(filed.told) - set(filed.sequences) - lost
            if unsent or strange:
                self._findings.violations.append(
                    f"leaves: {name} was sealed with {len(unsent)} of {len(filed.sequences)} rows "
                    f"not delivered, {len(strange)} facts of others"
                )
            # What came after the seal is in no file.
            stated = self._stated_of(seal["start_minute"], seal["span"], excused)
            self._check_filed(name, filed, stated[: len(filed.facts)], excused)
            self._cover(seal["start_minute"], seal["span"], name, covered)

    def _stated_of(self, start: int, span: int, excused: set[int]) -> list[Fact]:
        """Return what records state about the rows of a segment, in their order."""
        minutes = range(start, start + reader.SPAN_MINUTES[span])
        if span == reader.DEAD_SPAN:
            day = reader.DEAD_MINUTES_FROM + start // reader.SPAN_MINUTES[span]
            minutes = range(day, day + 1)
        found = [fact for minute in minutes for fact in self._stated.get(minute, ())]
        found.sort(key=lambda fact: fact.record)
        return [fact for fact in found if fact.sequence not in excused]

    def _check_filed(self, name: str, filed: _Filed, stated: list[Fact], excused: set[int]) -> None:
        """The facts beside a segment are those that records state, once each and in their order."""
        found = [fact for fact in filed.facts if fact.sequence not in excused]
        if list(map(_told, found)) != list(map(_told, stated)):
            wrong: list[object] = [*set(map(_told, found)) ^ set(map(_told, stated))]
            self._findings.broken(
                "few twice", f"facts of {name} are not those stated", wrong or ["their order"]
            )

    def _is_damaged(self, name: str) -> bool:
        return not {f"schedule_log/{name}", f"dispatch_log/{name}"}.isdisjoint(self._damaged)

    def _cover(self, start: int, span: int, name: str, covered: dict[int, str]) -> None:
        """Note which minutes a segment covers; no two that count may share one."""
        if span == reader.DEAD_SPAN:
            return
        for minute in range(start, start + reader.SPAN_MINUTES[span]):
            other = covered.setdefault(minute, name)
            if other != name:
                self._findings.violations.append(f"once: {name} overlaps {other}")
                return

    def _read_seals(self, checkpoint: Checkpoint) -> dict[str, dict[str, int]]:
        seals: dict[str, dict[str, int]] = {}
        count = 0
        for path, length in _seals_files(self._files, checkpoint):
            count = max(count, _first_of(path) - 1)
            for batch in self._batches(path, reader.SEALS_LOG, length):
                if batch.base != count + 1:
                    self._findings.violations.append(f"leaves: seal {batch.base} follows {count}")
                count += batch.count
                for place in range(batch.count):
                    seal = {name: values[place] for name, values in batch.columns.items()}
                    seals[reader.segment_name(seal["start_minute"], seal["span"])] = seal
        if count != checkpoint.seals_count:
            self._findings.violations.append(
                f"leaves: {count} seals, the checkpoint says {checkpoint.seals_count}"
            )
        return seals

    def _read_segment(
        self, name: str, length: int, facts_length: int, log: dict[int, _Message]
    ) -> _Filed:
        filed = _Filed(columns={column: [] for column, _ in _DIGESTED})
        if length:
            word = name.rpartition(".")[2]
            self._findings.segments[word] += 1
            for batch in self._batches(f"schedule_log/{name}", reader.SCHEDULE_LOG, length):
                self._take_rows(name, batch, log, filed)
        if facts_length:
            for batch in self._batches(f"dispatch_log/{name}", reader.DISPATCH_LOG, facts_length):
                filed.facts += reader.facts_of(batch)
                filed.told.update(batch.columns["sequence"])
                filed.outcomes.update(batch.columns["outcome"])
                filed.facts_last_crc = batch.crc
                self._note_outcomes(batch)
        return filed

    def _take_rows(self, name: str, batch: Batch, log: dict[int, _Message], filed: _Filed) -> None:
        known = reader.read_segment_name(name)
        assert known is not None
        start, end = known[0], known[0] + reader.SPAN_MINUTES[known[1]]
        columns = batch.columns
        misplaced: list[object] = []
        for place, sequence in enumerate(columns["sequence"]):
            message = log.get(sequence)
            subject = batch.names[columns["subject"][place]]
            row = (columns["due_ms"][place], columns["id_hash"][place], subject)
            if (
                message is None
                or (message.due_ms, message.id_hash, message.subject) != row
                or message.item != batch.items[place]
                or not start <= self._minute_of(sequence, message) < end
                or (known[1] == reader.DEAD_SPAN) != self._is_dead(sequence)
                or (batch.notes and not self._is_true(sequence, batch.notes[place]))
                or sequence <= max(filed.sequences[-1:], default=0)
            ):
                misplaced.append(f"{sequence} in {name}")
            filed.sequences.append(sequence)
        self._findings.broken("once", "rows are not what was accepted", misplaced)
        for column, _ in _DIGESTED:
            filed.columns[column] += columns[column]
        filed.last_crc = batch.crc
        self._rows.update(columns["sequence"])

    def _is_true(self, sequence: int, note: dict[str, Any]) -> bool:
        """Say whether the note of a dead letter tells what its record tells."""
        record = self._naming[sequence]
        told = note["old_sequence"], note["old_minute"], note["dead_ms"], note["reason"]
        return told == (record.old, record.old_minute, record.append_ms, record.reason)

    def _is_dead(self, sequence: int) -> bool:
        naming = self._naming.get(sequence)
        return naming is not None and naming.kind == reader.DEAD

    def _minute_of(self, sequence: int, message: _Message) -> int:
        """Return the minute in whose segment a row belongs."""
        return self._naming[sequence].day if self._is_dead(sequence) else message.minute

    def _check_naming(self, log: dict[int, _Message], excused: set[int]) -> None:
        """Hold records that name a row against the facts about it, one way and the other."""
        wrong: list[object] = []
        named: dict[int, int] = {}
        for sequence, record in self._naming.items():
            if sequence in excused or record.old in excused:
                continue
            if record.old in named:
                wrong.append(f"{record.old} is named by {named[record.old]} and {sequence}")
            named[record.old] = sequence
            row = log.get(record.old)
            of_dead = self._is_dead(record.old)
            minute = -1
            if row is not None:
                day = self._minute_of(record.old, row) // reader.SPAN_MINUTES[reader.DEAD_SPAN]
                minute = reader.DEAD_MINUTES_FROM + day if of_dead else row.minute
            if record.old_minute != minute:
                wrong.append(f"{sequence} says that {record.old} was filed in {record.old_minute}")
            if _OUTCOME_OF[record.kind, of_dead] not in self._outcomes.get(record.old, ()):
                wrong.append(f"{sequence} has no fact about {record.old}")
        recorded = set(_OUTCOME_OF.values())
        for sequence, outcomes in self._outcomes.items():
            if sequence in excused or not outcomes & recorded:
                continue
            if len(outcomes) > 1:
                wrong.append(f"{sequence} came to {sorted(outcomes)}")
            if sequence not in named:
                wrong.append(f"a fact about {sequence} has no record")
        self._findings.broken("dead", "records and facts contradict each other", wrong)

    def _check_rows(self, log: dict[int, _Message], lost: set[int]) -> None:
        missing = [place for place in log if not self._rows[place] and place not in lost]
        self._findings.broken("once", "accepted messages have no row", missing)
        double = [sequence for sequence, count in self._rows.items() if count > 1]
        self._findings.broken("once", "accepted messages have several rows", double)

    def _note_outcomes(self, batch: Batch) -> None:
        columns = batch.columns
        for sequence, outcome in zip(columns["sequence"], columns["outcome"], strict=True):
            self._outcomes.setdefault(sequence, set()).add(outcome)
            if outcome in {reader.DELIVERED, reader.KNOWN}:
                self._delivered.add(sequence)

    def _check_facts(self, witness: Witness, log: dict[int, _Message]) -> None:
        """No fact tells of a delivery that no broker saw."""
        seen = Counter(receipt.message_id for receipt in witness.receipts)
        told = Counter(log[place].message_id for place in self._delivered if place in log)
        made_up: list[object] = [
            f"{message_id!r}: {count} facts, {seen[message_id]} receipts"
            for message_id, count in told.items()
            if count > seen[message_id]
        ]
        self._findings.broken("leaves", "facts tell of what no broker saw", made_up)


_OUTCOME_OF = {
    (reader.DEAD, False): reader.WAS_DEAD,
    (reader.DEAD, True): reader.WAS_DEAD,
    (reader.MOVE, False): reader.MOVED,
    (reader.MOVE, True): reader.MOVED,
    (reader.CANCEL, False): reader.CANCELLED,
    (reader.CANCEL, True): reader.DROPPED,
}
"""The outcome by the kind of a record, and whether it names a row of a dead segment."""


def _told(fact: Fact) -> tuple[object, ...]:
    """Return what a fact says, whichever record states it."""
    return fact.sequence, fact.minute, fact.at_ms, fact.outcome, fact.target


def _naming(batch: Batch) -> Iterator[tuple[int, _Naming]]:
    minute = max(batch.append_ms // _MINUTE_MS, batch.floor_minute)
    day = minute - minute % reader.SPAN_MINUTES[reader.DEAD_SPAN]
    old = zip(batch.columns["old_sequence"], batch.columns["old_minute"], strict=True)
    reasons = batch.columns.get("reason")
    for place, (sequence, old_minute) in enumerate(old):
        reason = batch.names[reasons[place]].decode() if reasons else ""
        record = _Naming(batch.kind, sequence, old_minute, day, batch.append_ms, reason)
        yield batch.base + place, record


def _seals_files(
    files: Collection[str], checkpoint: Checkpoint
) -> Iterator[tuple[str, int | None]]:
    """Yield the files of seals that count, and how much of each; None for all of it."""
    newest = f"seals/{checkpoint.seals_file:020d}.log"
    for path in sorted(path for path in files if _is_log(path, "seals")):
        if path < newest:
            yield path, None
        elif path == newest:
            yield path, checkpoint.seals_length


def _is_log(path: str, directory: str) -> bool:
    head, _, name = path.rpartition("/")
    return head == directory and name.endswith(".log")


def _first_of(path: str) -> int:
    return int(path.rpartition("/")[2].removesuffix(".log"))


def _seal_of(filed: _Filed) -> dict[str, int]:
    """Return what the page on seals says a seal of these files has to say."""
    digests = b"".join(
        hashlib.blake2b(np.array(filed.columns[name], form).tobytes(), digest_size=16).digest()
        for name, form in _DIGESTED
    )
    digest = np.frombuffer(hashlib.blake2b(digests, digest_size=16).digest(), "<u8").tolist()
    told = np.array(sorted(filed.told), "<i8").tobytes()
    facts_digest = np.frombuffer(hashlib.blake2b(told, digest_size=16).digest(), "<u8").tolist()
    rows = set(filed.sequences)
    return {
        "rows": len(filed.sequences),
        "distinct": len(rows & set(filed.told)),
        "last_sequence": max(filed.sequences, default=0),
        "digest_0": digest[0],
        "digest_1": digest[1],
        "facts_digest_0": facts_digest[0],
        "facts_digest_1": facts_digest[1],
        **{name: filed.outcomes[number] for number, name in enumerate(_OUTCOMES, 1)},
    }
