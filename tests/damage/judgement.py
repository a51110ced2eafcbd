"""What a damaged directory comes to: is the damage named, and is everything else delivered?

`Judge` compares the recovery of a damaged image with that of the same directory undamaged. What an
injection may cost is worked out from the undamaged bytes alone: the rows of the batches and items
that it touched, and nothing else.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from delay_protocol.nodes.controls import Controls
from delay_server.controls.controls_store import read_controls
from storage.batch.batches import (
    BatchHeader,
    Damage,
    check_columns,
    contents_fault,
    file_seed,
    walk_batches,
)
from storage.batch.columns import KINDS_WITH_ITEMS, Columns, RecordKind
from storage.batch.entries import Entries
from storage.batch.facts import facts_stated
from storage.batch.file_header import FILE_HEADER_SIZE, decode_file_header
from storage.disk.errors import DamagedError, StorageError
from storage.disk.spans import DEAD_MINUTES_FROM, Span, dead_key, key_of_minute
from storage.node.store import Store
from storage.readers.dead_reader import read_dead_item
from storage.readers.item_reader import ItemReader
from storage.state.checkpoint import CHECKPOINT_PATH, Checkpoint, read_checkpoint
from storage.state.controls_file import CONTROLS_PATH
from storage.state.durable_end import SLOT_POSITIONS, SLOT_SIZE, DurableEndFile
from storage.tools.inspect import verify_disk
from storage.tools.salvage import DEAD_LETTER, IN_DOUBT, PENDING, Salvage, SalvagedItem
from tests.damage.directory import Populated
from tests.damage.injections import Injection, Kind
from tests.damage.overlay import OverlayDisk
from tests.storage.dead_rig import Dead
from tests.storage.starting import start
from tests.storage.store_rig import Message

_MOVED = {Kind.SWAP_WITHIN, Kind.SWAP_BETWEEN, Kind.REPEAT, Kind.STALE}
_SUFFIXES = (".log", ".minute", ".hour", ".day", ".dead")


class ViolationError(AssertionError):
    """A promise that an injection has broken."""


@dataclass(slots=True)
class Aftermath:
    """What opening an image and delivering all of it came to.

    refused: why it could not be opened; handed: bytes of each row handed out, by sequence; letters:
    dead letters that were found and read, by sequence; state: numbers that would differ if anything
    else was understood differently; audit: its entries.
    """

    refused: StorageError | None = None
    handed: dict[int, bytes] = field(default_factory=dict)
    letters: dict[int, Dead] = field(default_factory=dict)
    twice: list[int] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    state: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Extent:
    """Bytes that belong together, and what is lost if they are.

    sequences: of messages and of dead rows; facts: sequences of which a start learns here that they
    have one; batch: where the batch begins that they are of.
    """

    begin: int
    end: int
    batch: int
    sequences: frozenset[int] = frozenset()
    facts: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class _Touched:
    """What an injection may cost.

    rows: sequences of messages and dead rows, of which a copy is struck; facts: sequences that may
    be taken for pending, since all is struck from which a start would learn of their fact.
    """

    rows: set[int]
    facts: set[int]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one injection.

    named: verify or the start reports it; refused: the node does not start and says why; recovered:
    whether a recovery was tried; lost: rows that are not delivered, dead letters that are not
    found; again: those whose facts are lost.
    """

    named: bool
    refused: bool = False
    recovered: bool = False
    lost: int = 0
    again: int = 0


class Judge:
    """Judges injections into one directory."""

    def __init__(self, directory: Populated) -> None:
        self.directory = directory
        disk = OverlayDisk(directory.files, {})
        self._reports = _damages_on(disk)
        self._disk = OverlayDisk(directory.files, {})
        self._reference = recover(self._disk, directory)
        assert self._reference.refused is None, self._reference.refused
        assert not self._reference.twice
        for sequence, item in self._reference.handed.items():
            assert item == directory.items[sequence]
        assert not self._reference.handed.keys() & directory.crossed_off
        pending = directory.dead.keys() - directory.settled
        assert self._reference.letters == {row: directory.dead[row] for row in pending}
        self._older_controls = [
            read_controls(OverlayDisk({CONTROLS_PATH: data}, {}), self._log_uuid(directory))
            for data in directory.older[CONTROLS_PATH]
        ]
        self._last_message_file = max(
            path for path in directory.files if path.startswith("message_log/0")
        )
        end = DurableEndFile(self._disk, "message_log", log_uuid=self._log_uuid(directory)).read()
        assert end is not None
        self._durable_position = end.position
        checkpoint = read_checkpoint(disk, self._log_uuid(directory))
        assert checkpoint is not None
        self._extents = {
            path: list(_extents(path, data, checkpoint)) for path, data in directory.files.items()
        }

    @staticmethod
    def _log_uuid(directory: Populated) -> UUID:
        return decode_file_header(directory.files["identity"], path="identity").log_uuid

    @property
    def expected(self) -> Mapping[int, bytes]:
        """What the undamaged directory hands out: items by sequence."""
        return self._reference.handed

    @property
    def letters(self) -> Mapping[int, Dead]:
        """What the undamaged directory finds: dead letters."""
        return self._reference.letters

    def judge(self, injection: Injection, *, full: bool) -> Verdict:
        """Return what became of an injection; ViolationError if a promise is broken.

        Without `full` a recovery is tried only where verify finds nothing.
        """
        named = self._is_named(injection)
        if not full and (named or self._is_padding(injection)):
            return Verdict(named=named)
        disk = OverlayDisk(self.directory.files, injection.struck)
        try:
            aftermath = recover(disk, self.directory)
        except StorageError:
            raise
        except Exception as error:
            raise ViolationError(f"{injection.what}: {type(error).__name__}: {error}") from error
        self._require_untouched(injection, disk, aftermath)
        if aftermath.refused is not None:
            self._require_clear_refusal(injection, aftermath.refused)
            return Verdict(named=named, refused=True, recovered=True)
        lost, again = self._require_delivered(injection, aftermath)
        named |= any(_is_near(damage.path, injection) for damage in aftermath.damages)
        if not named and not self._is_alike(injection, aftermath):
            differences = [
                name
                for name, value in aftermath.state.items()
                if value != self._reference.state[name]
            ]
            raise ViolationError(f"{injection.what}: verify says nothing, but {differences} differ")
        return Verdict(named=named, recovered=True, lost=lost, again=again)

    def _is_named(self, injection: Injection) -> bool:
        found = _damages_on(OverlayDisk(self.directory.files, injection.struck))
        return found != self._reports or any(found.get(path) for path in injection.struck)

    def _is_alike(self, injection: Injection, aftermath: Aftermath) -> bool:
        """Say whether an image was understood as the undamaged one is."""
        reference = self._reference
        if CHECKPOINT_PATH in injection.struck:
            # A whole older checkpoint: all that came after it was derived once more.
            return (
                aftermath.handed.items() >= reference.handed.items()
                and aftermath.letters.items() >= reference.letters.items()
            )
        state = aftermath.state
        older = [Controls(), *self._older_controls]
        if state["controls"] in older and CONTROLS_PATH in injection.struck:
            # A whole older file, or none: whoever tells the rules tells them again.
            state = state | {"controls": reference.state["controls"]}
        return (
            aftermath.handed == reference.handed
            and aftermath.letters == reference.letters
            and state == reference.state
        )

    def _is_padding(self, injection: Injection) -> bool:
        """Say whether only bytes between and behind the slots of a durable end are other ones."""
        return all(
            path.endswith("/durable_end")
            and data is not None
            and len(data) == len(self.directory.files[path])
            and all(
                data[slot : slot + SLOT_SIZE] == self.directory.files[path][slot : slot + SLOT_SIZE]
                for slot in SLOT_POSITIONS
            )
            for path, data in injection.struck.items()
        )

    def _require_untouched(
        self, injection: Injection, disk: OverlayDisk, aftermath: Aftermath
    ) -> None:
        """Nothing of undamaged files was cut or deleted but what would have been anyway.

        An older checkpoint is whole: what was derived since is removed, and must be derived again.
        """
        if CHECKPOINT_PATH in injection.struck and aftermath.refused is None:
            removed = disk.unlinked - self._disk.unlinked
            lost = self.expected.keys() - aftermath.handed.keys()
            lost |= self._reference.letters.keys() - aftermath.letters.keys()
            if removed and lost:
                raise ViolationError(f"{injection.what}: {removed} deleted and {lost} lost")
            return
        for path in disk.unlinked - self._disk.unlinked:
            if path in self.directory.files and injection.struck.get(path) != b"":
                raise ViolationError(f"{injection.what}: {path} was deleted")
        for path, size in disk.cut.items():
            if path == self._last_message_file:
                # What was known to be durable is never cut.
                least = min(self._durable_position, len(injection.struck.get(path) or b""))
                if path in injection.struck and size >= least:
                    continue
            if size < self._disk.cut.get(path, len(self.directory.files.get(path, b""))):
                raise ViolationError(f"{injection.what}: {path} was cut to {size}")
        if aftermath.refused is not None and disk.cut:
            raise ViolationError(f"{injection.what}: refused, but {disk.cut} were cut")

    def _require_clear_refusal(self, injection: Injection, error: StorageError) -> None:
        text = str(error)
        if not any(path in text or path.rpartition("/")[0] in text for path in injection.struck):
            raise ViolationError(f"{injection.what}: the refusal names no file: {text}")
        if not any(word in text for word in ("log verify", "restore", "upgrade", "salvage")):
            raise ViolationError(f"{injection.what}: the refusal names no remedy: {text}")

    def _require_delivered(self, injection: Injection, aftermath: Aftermath) -> tuple[int, int]:
        """Everything but what the damage touched is handed out, whole, and once."""
        if aftermath.twice:
            raise ViolationError(f"{injection.what}: handed out twice: {aftermath.twice[:10]}")
        items = self.directory.items
        wrong = [seq for seq, item in aftermath.handed.items() if items.get(seq) != item]
        if wrong:
            raise ViolationError(f"{injection.what}: handed out other bytes: {wrong[:10]}")
        self._require_true_letters(injection, aftermath)
        touched = self._touched(injection)
        rows, facts = touched.rows, touched.facts
        reference, letters = self._reference.handed.keys(), self._reference.letters.keys()
        lost = (reference - aftermath.handed.keys()) | (letters - aftermath.letters.keys())
        again = (aftermath.handed.keys() - reference) & self.directory.crossed_off
        again |= self.directory.settled & aftermath.letters.keys()
        older = CHECKPOINT_PATH in injection.struck and bool(aftermath.damages)
        if lost - rows and not older:
            raise ViolationError(
                f"{injection.what}: untouched and not handed out: {sorted(lost - rows)[:10]}"
            )
        if again - facts:
            raise ViolationError(f"{injection.what}: sent again: {sorted(again - facts)[:10]}")
        if (
            (lost or again)
            and not older
            and not any(_is_near(damage.path, injection) for damage in aftermath.damages)
        ):
            raise ViolationError(
                f"{injection.what}: {len(lost)} lost, {len(again)} again, not reported"
            )
        return len(lost), len(again)

    def _require_true_letters(self, injection: Injection, aftermath: Aftermath) -> None:
        """Every dead letter that is found is one that was written, byte for byte."""
        for sequence, letter in aftermath.letters.items():
            if self.directory.dead.get(sequence) != letter:
                raise ViolationError(f"{injection.what}: no such dead letter: {sequence}, {letter}")

    def judge_salvage(self, injection: Injection | None) -> Counter[str]:
        """Require that salvage finds what is whole, and tells of each message what is true.

        Returns how many messages it found in which state. None: of the directory as it is.
        """
        what = injection.what if injection is not None else "undamaged"
        struck = injection.struck if injection is not None else {}
        disk = OverlayDisk(self.directory.files, struck)
        found = list(Salvage(disk, now_ms=self.directory.now_ms).items())
        if disk.changed:
            raise ViolationError(f"{what}: salvage wrote to {disk.changed}")
        dead = {sequence: row.message.item for sequence, row in self.directory.dead.items()}
        items = {**self.directory.items, **dead}
        sequences = Counter(item.sequence for item in found)
        if sequences and max(sequences.values()) > 1:
            raise ViolationError(f"{what}: salvaged twice: {sequences.most_common(3)}")
        for item in found:
            if items.get(item.sequence) != item.data:
                raise ViolationError(f"{what}: salvaged what was never accepted: {item}")
        missed = self._whole_somewhere(injection) - sequences.keys()
        if missed:
            raise ViolationError(f"{what}: whole, but not salvaged: {sorted(missed)[:10]}")
        self._require_true_states(what, found, injection)
        return Counter(item.state for item in found)

    def _require_true_states(
        self, what: str, found: list[SalvagedItem], injection: Injection | None
    ) -> None:
        """Nothing delivered is called pending, and nothing pending delivered; nor dead letters."""
        directory = self.directory
        touched = self._touched(injection) if injection is not None else _Touched(set(), set())
        for item in found:
            if item.sequence in directory.dead:
                self._require_true_dead_state(what, item, touched)
                continue
            crossed_off = item.sequence in directory.crossed_off
            if crossed_off and item.state == PENDING:
                raise ViolationError(f"{what}: delivered, but called pending: {item}")
            if not crossed_off and not item.is_wanted:
                raise ViolationError(f"{what}: pending, but called {item.state}: {item}")
            if what == "undamaged" and item.state == IN_DOUBT:
                raise ViolationError(f"nothing is damaged, but {item} is in doubt")

    def _require_true_dead_state(self, what: str, item: SalvagedItem, touched: _Touched) -> None:
        """Nobody sends a dead letter unasked; it is one until it is requeued or dropped."""
        if item.is_wanted:
            raise ViolationError(f"{what}: given up, but called {item.state}: {item}")
        is_pending = item.sequence not in self.directory.settled
        if is_pending and item.state != DEAD_LETTER:
            raise ViolationError(f"{what}: a dead letter, but called {item.state}: {item}")
        if not is_pending and item.state == DEAD_LETTER and item.sequence not in touched.facts:
            raise ViolationError(f"{what}: settled, but called {item.state}: {item}")

    def _whole_somewhere(self, injection: Injection | None) -> set[int]:
        """Return the sequences of which at least one copy lies in an untouched batch."""
        whole: set[int] = set()
        for path, extents in self._extents.items():
            struck = {
                extent.batch
                for extent in extents
                if injection is not None and self._is_struck(path, extent, injection)
            }
            for extent in extents:
                if extent.batch not in struck:
                    whole |= extent.sequences
        return whole

    def _is_struck(self, path: str, extent: _Extent, injection: Injection) -> bool:
        if path not in injection.struck:
            return False
        data = injection.struck[path]
        # A block in a wrong place may cost what lies behind it in its file.
        begin = 0 if injection.kind in _MOVED else extent.begin
        place = slice(begin, extent.end)
        return data is None or data[place] != self.directory.files[path][place]

    def _touched(self, injection: Injection) -> _Touched:
        """Return what lay in the bytes that are other ones now."""
        rows: set[int] = set()
        facts: set[int] = set()
        told: set[int] = set()
        for path, extents in self._extents.items():
            for extent in extents:
                if self._is_struck(path, extent, injection):
                    rows |= extent.sequences
                    facts |= extent.facts
                else:
                    told |= extent.facts
        return _Touched(rows, facts - told)


def _damages_on(disk: OverlayDisk) -> dict[str, object]:
    """Return what verify finds, by file."""
    return {str(one["file"]): one["damage"] for one in verify_disk(disk) if one["damage"]}


def _is_near(path: str, injection: Injection) -> bool:
    """Say whether a damage is reported of a struck file, or of a neighbour of one that is gone."""
    return any(
        path == struck or (data is None and path.startswith(struck.rpartition("/")[0]))
        for struck, data in injection.struck.items()
    )


def _extents(path: str, data: bytes, checkpoint: Checkpoint) -> Iterator[_Extent]:
    """Yield what the bytes of a log file mean, as they were written."""
    if len(data) < FILE_HEADER_SIZE or not path.endswith(_SUFFIXES):
        return
    header = decode_file_header(data, path=path)
    seed = file_seed(header)
    batches = walk_batches(
        lambda position, size: memoryview(data)[position : position + size],
        start=FILE_HEADER_SIZE,
        end=len(data),
        seed=seed,
        path=path,
    )
    for position, batch in batches:
        part = data[position : position + batch.size]
        if contents_fault(batch, part, seed) is None:
            columns = check_columns(batch, part, seed=seed, path=path, position=position)
            yield from _extents_of(position, batch, columns, path, checkpoint)


def _extents_of(
    begin: int, batch: BatchHeader, columns: Columns, path: str, checkpoint: Checkpoint
) -> Iterator[_Extent]:
    end = begin + batch.size
    if path.startswith("message_log/"):
        sequences = range(batch.base_sequence, batch.next_sequence)
        rows = frozenset(sequences if batch.kind in KINDS_WITH_ITEMS else ())
        yield _Extent(begin, end, begin, rows, _facts_of_the_tail(batch, columns, checkpoint))
    elif batch.kind is RecordKind.FACTS:
        yield _Extent(begin, end, begin, facts=_filed_facts(begin, columns, path, checkpoint))
    elif batch.kind is RecordKind.ROWS and path.endswith((".hour", ".day")):
        yield _Extent(begin, end, begin, frozenset(columns.arrays["sequence"].tolist()))
    elif batch.kind is RecordKind.ROWS:
        sequences = columns.arrays["sequence"].tolist()
        yield _Extent(begin, begin + batch.blob_offset, begin, frozenset(sequences))
        place = begin + batch.blob_offset
        for sequence, size in zip(sequences, columns.arrays["size"].tolist(), strict=True):
            yield _Extent(place, place + size, begin, frozenset({sequence}))
            place += size


def _facts_of_the_tail(
    batch: BatchHeader, columns: Columns, checkpoint: Checkpoint
) -> frozenset[int]:
    """Return the sequences of the facts that a start takes from a batch of the message_log."""
    facts = facts_stated(batch, columns)
    if facts is None:
        return frozenset()
    found = set()
    last_facts = {state.key: state.last_fact for state in checkpoint.segments}
    told = zip(facts.sequence.tolist(), facts.minute.tolist(), facts.record.tolist(), strict=True)
    for sequence, minute, record in told:
        spans = (Span.MINUTE, Span.HOUR, Span.DAY)
        keys = [key_of_minute(minute, span) for span in spans]
        if minute >= DEAD_MINUTES_FROM:
            keys = [dead_key(minute)]
        filed = max([checkpoint.sequence, *(last_facts.get(key, 0) for key in keys)])
        if record > filed:
            found.add(sequence)
    return frozenset(found)


def _filed_facts(
    position: int, columns: Columns, path: str, checkpoint: Checkpoint
) -> frozenset[int]:
    """Return the sequences of the facts that count of a batch in this file."""
    for state in checkpoint.segments:
        if state.key.facts_path == path and position < state.facts_length:
            return frozenset(columns.arrays["sequence"].tolist())
    return frozenset()


def recover(disk: OverlayDisk, directory: Populated) -> Aftermath:
    """Open an image, split and load everything that is not crossed off, and read its items.

    Dead letters are looked for and read as well.
    """
    aftermath = Aftermath()
    try:
        store, summary = start(
            disk,
            directory.settings,
            chance=random.Random(1),
            now_ms=directory.now_ms,
            on_damage=aftermath.damages.append,
        )
    except StorageError as error:
        aftermath.refused = error
        return aftermath
    aftermath.state = {
        "next sequence": store.message_log.next_sequence,
        "facts": summary.facts,
        "replayed": summary.replayed,
        "pending": store.schedule.pending,
        "floor": store.schedule.floor_minute,
        "epoch": store.schedule.epoch,
        "segments": {
            segment.key: (segment.rows, segment.facts, segment.last_sequence, segment.last_fact)
            for segment in store.schedule.segments.values()
        },
        "seals": store.seals_log.end,
        "identity": (store.identity.log_uuid, store.identity.node_id),
        "checkpoint": store.checkpoint,
        "quarantined": sorted(store.schedule.quarantined),
        "messages": [
            (batch.path, batch.position) if isinstance(batch, Damage) else batch.header.crc
            for batch in store.message_log.read(store.checkpoint.sequence + 1)
        ],
    }
    _deliver(store, disk, directory.end_ms, aftermath)
    _find_letters(store, disk, directory, aftermath)
    aftermath.state["dead letters"] = store.schedule.dead_pending
    aftermath.state["controls"] = _controls(store, disk, aftermath)
    aftermath.state["damages"] = [(damage.path, damage.position) for damage in aftermath.damages]
    store.close()
    return aftermath


def _controls(store: Store, disk: OverlayDisk, aftermath: Aftermath) -> Controls | None:
    """Return what an operator has closed, None where the node refuses to start for want of it."""
    try:
        return read_controls(disk, store.identity.log_uuid)
    except DamagedError as error:
        if "move it away" not in str(error):
            raise ViolationError(f"the refusal names no remedy: {error}") from error
        aftermath.damages.append(Damage(error.path, error.position, 0, error.reason))
        return None


def _deliver(store: Store, disk: OverlayDisk, end_ms: int, aftermath: Aftermath) -> None:
    schedule = store.schedule
    handout = schedule.hand_out()
    reader = ItemReader(disk, aftermath.damages.append)
    while (split := schedule.splits.begin(end_ms)) is not None:
        while not split.step(end_ms):
            pass
    while (load := handout.begin_load(end_ms, rows_max=1 << 30, now_ms=end_ms)) is not None:
        done = False
        while not done:
            entries, done = load.step(1 << 30)
            if len(entries):
                _read(reader, entries, aftermath)


def _read(reader: ItemReader, entries: Entries, aftermath: Aftermath) -> None:
    items, damaged = reader.read(entries)
    for place, sequence in enumerate(entries["sequence"].tolist()):
        if damaged is not None and damaged[place]:
            continue
        if sequence in aftermath.handed:
            aftermath.twice.append(sequence)
        aftermath.handed[sequence] = bytes(items[place])


def _find_letters(
    store: Store, disk: OverlayDisk, directory: Populated, aftermath: Aftermath
) -> None:
    schedule = store.schedule
    schedule.read_dead()
    for row in schedule.dead.rows.values():
        found = read_dead_item(disk, row)
        if found.item is None or found.reason is None:
            damage = Damage(dead_key(row.minute).path, row.position, row.row_size, found.fault)
            aftermath.damages.append(damage)
            continue
        # Of the index's own the minute before is none.
        known = directory.dead.get(row.sequence)
        minute = known.message.minute if known else 0
        message = Message(row.due_ms, minute, row.subject, found.item)
        letter = Dead(row.old_sequence, message, dead_key(row.minute), found.reason)
        aftermath.letters[row.sequence] = letter
