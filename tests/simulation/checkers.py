"""What must be true at the end of a run, judged by what peers saw and what is on the disk.

Nothing of the server is asked. The disk is what a power cut after the clean stop left of it, so
whatever is found here is durable. Files are decoded batch by batch; which of them count is read
from checkpoint and seals, and nothing else is believed of those than what the checks need.

    kept         what was acknowledged is in the message_log, byte for byte; nothing else is
    once         every accepted sequence has one row in all segments that count, in its filed minute
    never early  a broker got an item when it was due, or later
    leaves       everything acknowledged was received
    few twice    a delivery that the server heard of is not repeated
    whole        items arrive as they were sent
    complete     at the end all segments are sealed, and their facts cover their rows
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

from storage.batches import Damage, decode_batch, log_seed, scan_batches
from storage.checkpoint import Checkpoint, read_checkpoint
from storage.columns import Columns, RecordKind
from storage.durable_end import decode_slot
from storage.errors import StorageError
from storage.file_header import FILE_HEADER_SIZE, LogKind, decode_file_header
from storage.identity import read_identity
from storage.seals import SEALS_PATH, Seal, seals_of_columns
from storage.spans import key_of_name
from tests.simulation.disk import SimDisk
from tests.simulation.witness import Receipt, Witness

_FACT_S = 10.0
"""Virtual seconds after an answer in which its fact becomes durable, however slow the disk."""
_ORDER_S = 15.0
"""After a delivery that was heard of, another may still be under way for this long."""
_SHOWN = 5
_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class _Message:
    """One accepted message, as the message_log has it."""

    message_id: bytes
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

    def broken(self, promise: str, what: str, cases: list[object]) -> None:
        """Note a broken promise with some of its cases."""
        if cases:
            shown = ", ".join(map(str, cases[:_SHOWN]))
            more = f" and {len(cases) - _SHOWN} more" if len(cases) > _SHOWN else ""
            self.violations.append(f"{promise}: {len(cases)} {what}: {shown}{more}")


def check(witness: Witness, disk: SimDisk) -> Findings:
    """Hold every promise against what was seen and what is on the disk."""
    findings = Findings()
    findings.violations += [f"seen: {text}" for text in witness.complaints]
    _check_receipts(witness, findings)
    try:
        _check_disk(witness, disk, findings)
    except (StorageError, OSError) as error:
        findings.violations.append(f"whole: {type(error).__name__}: {error}")
    return findings


def _check_disk(witness: Witness, disk: SimDisk, findings: Findings) -> None:
    identity = read_identity(disk)
    if identity is None:
        findings.violations.append("the disk has no identity")
        return
    for path, position, byte in witness.damage:
        # Damaged batches stay where they are, so they can be read again when the bit is right.
        disk.damage(path, position, bytes([byte]))
    log = _read_message_log(disk, identity.log_uuid, findings)
    findings.accepted = len(log)
    copies = Counter(message.message_id for message in log.values())
    _check_kept(witness, log, copies, findings)
    _check_twice(witness, copies, findings)
    checkpoint = read_checkpoint(disk, identity.log_uuid)
    if checkpoint is None:
        findings.violations.append("there is no checkpoint after a clean stop")
        return
    lost = {place for place, message in log.items() if message.message_id in witness.lost}
    _check_schedule(disk, identity.log_uuid, checkpoint, log, findings, lost=lost)


# -- what peers saw ------------------------------------------------------------------------------


def _check_receipts(witness: Witness, findings: Findings) -> None:
    early: list[object] = []
    mangled: list[object] = []
    unknown: list[object] = []
    for receipt in witness.receipts:
        sent = witness.items.get(receipt.message_id)
        if sent is None:
            unknown.append(receipt.message_id)
        elif sent != receipt.item:
            mangled.append(receipt.message_id)
        elif receipt.wall_ms < witness.due_ms[receipt.message_id]:
            early_ms = witness.due_ms[receipt.message_id] - receipt.wall_ms
            early.append(f"{receipt.message_id!r} by {early_ms} ms")
    findings.broken("never early", "items arrived before they were due", early)
    findings.broken("whole", "items arrived with other bytes", mangled)
    findings.broken("whole", "items arrived that should have been refused", unknown)
    findings.broken("leaves", "acknowledged messages never left", list(witness.missing()))


def _check_twice(witness: Witness, copies: Counter[bytes], findings: Findings) -> None:
    """Find deliveries of copies that the server knew to be delivered."""
    wrong: list[object] = []
    for message_id, receipts in witness.receipts_by_id().items():
        copied = copies[message_id]
        findings.twice += max(len(receipts) - copied, 0)
        sure = [receipt for receipt in receipts if _is_settled(witness, receipt)]
        again = [receipt for receipt in receipts if sure and receipt.at_s > sure[0].at_s + _ORDER_S]
        if len(sure) > copied or (copied == 1 and again):
            times = [f"{receipt.at_s:.3f}{'!' * (receipt in sure)}" for receipt in receipts]
            wrong.append(f"{message_id!r} ({copied} copies) at {times}")
    findings.broken("few twice", "messages were delivered again without need", wrong)


def _is_settled(witness: Witness, receipt: Receipt) -> bool:
    """Say whether the fact of a delivery must have become durable."""
    return receipt.sure and not witness.died_within(receipt.at_s, _FACT_S)


# -- what is on the disk -------------------------------------------------------------------------


def _batches(
    disk: SimDisk,
    path: str,
    kind: LogKind,
    log_uuid: UUID,
    findings: Findings,
    *,
    length: int | None = None,
) -> Iterator[tuple[RecordKind, int, int, Columns, memoryview]]:
    """Yield record kind, base sequence, floor minute, columns and blob of each batch."""
    data = disk.map(path)
    decode_file_header(data, path=path, kind=kind, log_uuid=log_uuid)
    end = len(data) if length is None else length
    seed = log_seed(log_uuid, kind)
    if end > len(data):
        findings.violations.append(f"{path} has {len(data)} bytes, {end} should count")
        end = len(data)
    for found in scan_batches(data, start=FILE_HEADER_SIZE, end=end, seed=seed, path=path):
        if isinstance(found, Damage):
            findings.violations.append(f"{path} at {found.position}: {found.reason}")
            continue
        header, place = found.header, found.position
        batch = decode_batch(
            header, data[place : place + header.size], seed=seed, path=path, position=place
        )
        yield (
            header.kind,
            header.base_sequence,
            header.floor_minute,
            batch.columns,
            memoryview(batch.blob),
        )


def old_batches(
    data: bytes, path: str, before_ms: int, *, durable_end: bytes
) -> list[tuple[int, int, list[bytes]]]:
    """Return position, size and message ids of the MESSAGE batches of a file that are this old.

    Only those that the durable end, itself durable, vouches for: a bit flipped in the 20 ms before
    that cannot be told from a torn write.
    """
    if len(data) < FILE_HEADER_SIZE:
        return []
    header = decode_file_header(data, path=path)
    seed = log_seed(header.log_uuid, header.kind)
    known = _durable_sequence(durable_end, header.log_uuid)
    found = []
    for batch in scan_batches(
        memoryview(data),
        start=FILE_HEADER_SIZE,
        end=len(data),
        seed=seed,
        path=path,
        verify_blobs=True,
    ):
        if isinstance(batch, Damage) or batch.header.append_ms > before_ms:
            break
        if batch.header.next_sequence > known:
            break
        if batch.header.kind is RecordKind.MESSAGE:
            start, size = batch.position, batch.header.size
            content = decode_batch(
                batch.header, data[start : start + size], seed=seed, path=path, position=start
            )
            items = _items(content.columns, memoryview(content.blob))
            found.append((start, size, [_message_id(item) for item in items]))
    return found


def _durable_sequence(data: bytes, log_uuid: UUID) -> int:
    """Return the sequence below which the bytes of a durable end file vouch for records."""
    sequence = 0
    for position in range(0, len(data), 512):
        try:
            slot = decode_slot(
                data[position : position + 512],
                log_uuid=log_uuid,
                path="durable_end",
                position=position,
            )
        except StorageError:
            continue
        if slot is not None:
            sequence = max(sequence, slot[1].next_sequence)
    return sequence


def _items(columns: Columns, blob: memoryview) -> list[bytes]:
    items = []
    position = 0
    for size in columns.arrays["size"].tolist():
        items.append(bytes(blob[position : position + size]))
        position += size
    return items


def _message_id(item: bytes) -> bytes:
    subject_end = 27 + int.from_bytes(item[25:27], "big")
    size = int.from_bytes(item[subject_end : subject_end + 2], "big")
    return item[subject_end + 2 : subject_end + 2 + size]


def _read_message_log(disk: SimDisk, log_uuid: UUID, findings: Findings) -> dict[int, _Message]:
    """Return all accepted messages by sequence; records have to be numbered without gaps."""
    log: dict[int, _Message] = {}
    following, floor = 1, 0
    for name in disk.list("message_log"):
        if not name.endswith(".log"):
            continue
        path = f"message_log/{name}"
        for kind, base, minute, columns, blob in _batches(
            disk, path, LogKind.MESSAGE_LOG, log_uuid, findings
        ):
            if base != following or minute < floor:
                findings.violations.append(
                    f"{path}: record {base} (floor {minute}) follows {following - 1} ({floor})"
                )
            floor = minute
            if kind is not RecordKind.MESSAGE:
                following = base + 1
                continue
            dues = columns.arrays["due_ms"].tolist()
            for place, (due_ms, item) in enumerate(zip(dues, _items(columns, blob), strict=True)):
                log[base + place] = _Message(
                    _message_id(item), due_ms, max(due_ms // _MINUTE_MS, floor), item
                )
            following = base + len(dues)
    return log


def _check_kept(
    witness: Witness, log: dict[int, _Message], copies: Counter[bytes], findings: Findings
) -> None:
    lost = [message_id for message_id in witness.acknowledged if not copies[message_id]]
    findings.broken("kept", "acknowledged messages are not in the message_log", list(lost))
    odd: list[object] = []
    for sequence, message in log.items():
        due_ms = witness.due_ms.get(message.message_id)
        if witness.items.get(message.message_id) != message.item:
            odd.append(f"{sequence} ({message.message_id!r})")
        elif due_ms and due_ms != message.due_ms:
            odd.append(f"{sequence} is due at {message.due_ms}, not {due_ms}")
    findings.broken("kept", "messages of the log are not as they were sent", odd)
    more: list[object] = [
        f"{message_id!r}: {count} of {witness.attempts[message_id]}"
        for message_id, count in copies.items()
        if count > witness.attempts[message_id]
    ]
    findings.broken("once", "messages were accepted more often than they were sent", more)


def _check_schedule(
    disk: SimDisk,
    log_uuid: UUID,
    checkpoint: Checkpoint,
    log: dict[int, _Message],
    findings: Findings,
    *,
    lost: set[int],
) -> None:
    """Every row once, where it belongs; every segment sealed, and its facts those of its rows."""
    lengths = {state.key.name: (state.length, state.facts_length) for state in checkpoint.segments}
    open_rows: list[object] = [
        f"{state.key.name} ({state.rows} rows, {state.facts} facts)"
        for state in checkpoint.segments
        if state.rows
    ]
    findings.broken("complete", "segments are not sealed", open_rows)
    seals = _read_seals(disk, log_uuid, checkpoint, findings)
    for name, seal in seals.items():
        if name in lengths:
            findings.violations.append(f"complete: {name} is sealed and open")
        lengths[name] = (seal.length, seal.facts_length)
    rows: Counter[int] = Counter()
    misplaced: list[object] = []
    for name, (length, facts_length) in lengths.items():
        if not length:
            continue
        key = key_of_name(name)
        assert key is not None
        findings.segments[key.span.name.lower()] += 1
        here: set[int] = set()
        for _, _, _, columns, blob in _batches(
            disk, f"schedule_log/{name}", LogKind.SCHEDULE_LOG, log_uuid, findings, length=length
        ):
            sequences = columns.arrays["sequence"].tolist()
            rows.update(sequences)
            here.update(sequences)
            dues = columns.arrays["due_ms"].tolist()
            for sequence, due_ms, item in zip(sequences, dues, _items(columns, blob), strict=True):
                message = log.get(sequence)
                if (
                    message is None
                    or (message.item, message.due_ms) != (item, due_ms)
                    or not key.start <= message.minute < key.end
                ):
                    misplaced.append(f"{sequence} in {name}")
        told: set[int] = set()
        if facts_length:
            for _, _, _, columns, _ in _batches(
                disk,
                f"dispatch_log/{name}",
                LogKind.DISPATCH_LOG,
                log_uuid,
                findings,
                length=facts_length,
            ):
                told.update(columns.arrays["sequence"].tolist())
        # What became of lost messages may be known, even where their rows are not.
        if name in seals and (not here <= told <= here | lost or seals[name].rows != len(here)):
            findings.violations.append(
                f"complete: {name} was sealed with {len(told)} of {len(here)} rows delivered, "
                f"{len(told - here)} facts of others"
            )
    findings.broken("once", "rows are not what was accepted", misplaced)
    missing: list[object] = [
        sequence for sequence in log if not rows[sequence] and sequence not in lost
    ]
    findings.broken("once", "accepted messages have no row", missing)
    double: list[object] = [sequence for sequence, count in rows.items() if count > 1]
    findings.broken("once", "accepted messages have several rows", double)


def _read_seals(
    disk: SimDisk, log_uuid: UUID, checkpoint: Checkpoint, findings: Findings
) -> dict[str, Seal]:
    if not checkpoint.seals_length:
        return {}
    return {
        seal.key.name: seal
        for _, _, _, columns, _ in _batches(
            disk, SEALS_PATH, LogKind.SEALS, log_uuid, findings, length=checkpoint.seals_length
        )
        for seal in seals_of_columns(columns)
    }
