"""What a data directory commits at one moment: the manifest that readers of its logs are given.

It is read beside a running server, which it neither asks nor disturbs: nothing is written, and the
lock is not taken. What it names is what counts, and only so much of each file: whoever reads that
reads the same at any time, for as long as the files are there. They are for the retirement grace at
least (`storage.retired_grace_ms`, an hour), less the seconds in which a checkpoint is written;
but for those that are listed as retired or as deleted, and unless the disk runs full. The format is
in docs/formats/manifest.md.

The order of reading makes it one moment, although the server goes on:

1. The checkpoint. It is replaced by a rename, so it is one or another, and it says which segments
   there are, how much of their files counts, and how much of the seals counts. These bytes stay as
   they are: files of segments and of seals only grow, and those that a later checkpoint replaces
   are retired by it, and deleted after the grace. A segment that is sealed later has its seal
   behind what this checkpoint counts: so no segment is both sealed and not.
2. The message_log's durable end. The log only grows, so it reaches at least as far as the
   checkpoint has applied it. What became of a message is a record of the same log, behind that of
   the message: where the log ends it ends for both, and a fact is never there without its message.
   Of a replica, which has promised something, only what is committed counts: what the checkpoint
   has applied, up to the last record of which a segment tells. What is durable behind that may be
   cut, and is at most a checkpoint's interval old.
3. The seals, up to where the checkpoint counts them.
4. The names of the files. What is needed from here on was there when the checkpoint was read.

What can break this is a file that leaves or is replaced in the middle: seals that are written anew
in fewer batches, or deleted for their age, and files of a disk that runs full. Then something is
missing or damaged that is not at the next try. Only what two tries in a row find alike, with the
same checkpoint, is taken for a fault; faults are told in the manifest, which is not complete then.
"""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from storage.batch.facts import Outcome
from storage.disk.disk import ListedDisk
from storage.disk.errors import (
    DamagedError,
    DataDirectoryError,
    NotPermittedError,
    UnsupportedFormatError,
)
from storage.disk.spans import SegmentKey, ends_of, key_of_code, key_of_name
from storage.logs.message_log import MESSAGE_LOG_DIRECTORY
from storage.logs.numbered_log import list_log_files, log_file
from storage.schedule.seals import SEALS_DIRECTORY, Seals, codes_of, read_last_seals, seals_end
from storage.state.checkpoint import CHECKPOINT_PATH, Checkpoint, SegmentState, read_checkpoint
from storage.state.durable_end import DURABLE_END_NAME, END_IS_GONE, DurableEnd, DurableEndReader
from storage.state.identity import Identity, read_identity
from storage.state.promise_file import PROMISE_PATH

MANIFEST_SCHEMA = 4
"""Counted up when a reader of an older version would misunderstand a newer one."""
_TRIES_MAX = 10
"""Readings of the directory before what was found last is taken as it is."""
_END_TRIES_MAX = 5
"""Readings of a durable end while one of its slots is being written."""
_END_PATH = f"{MESSAGE_LOG_DIRECTORY}/{DURABLE_END_NAME}"
_DIGEST_AT = b',\n"digest":"'
"""Where the digest begins, which is the last of a manifest."""
_COUNTED = ("length", "facts_length", "rows", "last_sequence")
_OF_STATES = (*_COUNTED, "earliest_due_ms", "facts", "last_fact")
_OF_SEALS = (*_COUNTED, "distinct", "sealed_ms")
"""Fields that a segment has here as the checkpoint has them, or its seal."""
_OUTCOMES = tuple(outcome.name.lower() for outcome in Outcome)

SpanName = Literal["minute", "hour", "day", "dead"]
Count = Annotated[int, msgspec.Meta(ge=0)]


class UnsealedSegment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A segment that the checkpoint names. Of both files only the first bytes count.

    facts: filed, repeated ones included; last_sequence, last_fact: records of the message_log that
    make its last row, and that state its last filed fact (of a segment that was split, for each of
    its parts); start_minute: since 1970; lengths are bytes, 0 where there is no such file.
    """

    file: str
    facts_file: str
    start_minute: Count
    span: SpanName
    length: Count
    rows: Count
    last_sequence: Count
    earliest_due_ms: int
    facts_length: Count
    facts: Count
    last_fact: Count


class SealedSegment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A segment that is complete: each of its rows has a fact.

    outcomes: facts by outcome, repeated ones included, without zeros; digest, facts_digest: 32
    digits, as docs/formats/seals.md makes them; sealed_ms: wall clock; deleted: its files may be
    gone, and may leave at any moment.
    """

    file: str
    facts_file: str
    start_minute: Count
    span: SpanName
    length: Count
    facts_length: Count
    rows: Count
    distinct: Count
    last_sequence: Count
    digest: str
    facts_digest: str
    outcomes: dict[str, int]
    sealed_ms: int
    deleted: bool


class MessageLogFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of the message_log, and the sequences of its records; the second is exclusive."""

    file: str
    first_sequence: Count
    next_sequence: Count
    length: Count


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why the manifest is not complete: what of the directory could not be read, or is gone."""

    file: str
    position: Count
    reason: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a data directory commits at one moment; see the module's docstring."""

    schema: int = MANIFEST_SCHEMA
    made_ms: int
    """Wall clock at which the reading began, ms since 1970."""
    cluster: str
    group: str
    node_id: str
    log_uuid: str
    storage_uuid: str
    written_ms: int
    """When the checkpoint was written, wall ms; 0 if there is none yet."""
    sequence: Count
    """Records of the message_log up to this one are in the files of segments, rows and facts, or
    leave nothing there; so are some behind it, which each segment says for itself."""
    first_sequence: Count
    """The message_log is kept from this record on."""
    floor_minute: Count
    """Segments that end at or before this minute are closed: they get no rows any more."""
    hour_mark: Count
    """All minutes before this one are in minute segments."""
    day_mark: Count
    """All minutes before this one are in minute or hour segments."""
    log_next_sequence: Count
    """The message_log counts up to here, exclusive: it is durable and committed."""
    durable_next_sequence: Count
    """The message_log is durable up to here, exclusive."""
    deleted_from_minute: Count
    """Deleted segments that ended at or before this minute are not told of; 0: all are."""
    segments: tuple[UnsealedSegment, ...]
    dead_segments: tuple[UnsealedSegment, ...]
    """Of messages that were given up: their rows are none of accepted messages."""
    sealed: tuple[SealedSegment, ...]
    dead_sealed: tuple[SealedSegment, ...]
    message_log: tuple[MessageLogFile, ...]
    retired: tuple[str, ...]
    """Files that nothing needs any more; they may leave at any moment."""
    quarantined: tuple[str, ...]
    """Files that damage befell, or that may have what it took elsewhere; kept for salvage."""
    faults: tuple[Fault, ...]
    """If there are any, what is missing in the logs may be in what is missing here."""

    @property
    def lacks_segments(self) -> bool:
        """Whether there may be segments that it does not tell of: those of seals, or all."""
        return self.has_fault(SEALS_DIRECTORY) or self.has_fault(CHECKPOINT_PATH)

    def has_fault(self, path: str) -> bool:
        """Say whether something is wrong with a file, or with one in a directory."""
        return any(one.file == path or one.file.startswith(f"{path}/") for one in self.faults)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest as JSON: a line for itself, and one for each file it names.

    The last line has the digest of all before it: one that is changed by hand is none any more.
    """
    lines: list[bytes] = []
    for name in manifest.__struct_fields__:
        value = getattr(manifest, name)
        text = msgspec.json.encode(value)
        if isinstance(value, tuple) and value:
            text = b"[\n" + b",\n".join(map(msgspec.json.encode, value)) + b"\n]"
        lines.append(msgspec.json.encode(name) + b":" + text)
    text = b"{\n" + b",\n".join(lines)
    return text + _DIGEST_AT + _end_of(text)


def _end_of(text: bytes) -> bytes:
    """Return the digest of what comes before it, and all that follows."""
    return hashlib.blake2b(text, digest_size=16).hexdigest().encode() + b'"\n}\n'


class _Versioned(msgspec.Struct):
    schema: int


def decode_manifest(data: bytes, *, path: str) -> Manifest:
    """Return the manifest that was encoded. Raises DamagedError or UnsupportedFormatError."""
    found = _decoded(data, _Versioned, path)
    if found.schema != MANIFEST_SCHEMA:
        reason = f"manifest of schema {found.schema} (this one reads {MANIFEST_SCHEMA})"
        raise UnsupportedFormatError(path=path, position=0, reason=reason)
    text, _, end = data.rpartition(_DIGEST_AT)
    if end != _end_of(text):
        raise DamagedError(path=path, position=0, reason="manifest changed since it was made")
    return _decoded(text + b"}", Manifest, path)


_Decoded = TypeVar("_Decoded", _Versioned, Manifest)


def _decoded(data: bytes, as_type: type[_Decoded], path: str) -> _Decoded:
    try:
        return msgspec.json.decode(data, type=as_type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedError(path=path, position=0, reason=f"no manifest: {error}") from error


def read_manifest(
    disk: ListedDisk, *, now_ms: int, deleted_from_minute: int = 0, is_final: bool = False
) -> Manifest:
    """Return what the data directory commits now.

    now_ms: the wall clock. Of deleted segments only those that ended after `deleted_from_minute`
    are told of: seals are kept for years. Where that leaves none out the manifest says so: its
    `deleted_from_minute` is 0. is_final: no node of the group runs any more, so all that is durable
    counts as committed.

    Raises DataDirectoryError if this is no data directory, NotPermittedError for what this user may
    not read; DamagedError or UnsupportedFormatError for an identity or a checkpoint that cannot be
    read: without them nothing can be said.
    """
    before: Manifest | None = None
    for _ in range(_TRIES_MAX):
        found = _read_once(disk, now_ms, max(deleted_from_minute, 0), is_final=is_final)
        if not found.faults or (before is not None and _is_settled(before, found)):
            return found
        before = found
    assert before is not None
    return before


def _is_settled(before: Manifest, found: Manifest) -> bool:
    """Say whether two readings found the same faults, and no checkpoint came in between."""
    same = (before.written_ms, before.sequence) == (found.written_ms, found.sequence)
    return same and before.faults == found.faults


def _read_once(
    disk: ListedDisk, now_ms: int, deleted_from_minute: int, *, is_final: bool
) -> Manifest:
    identity = read_identity(disk)
    if identity is None:
        raise DataDirectoryError("there is no identity file: this is no data directory")
    return _Reading(disk, identity).run(now_ms, deleted_from_minute, is_final=is_final)


class _Reading:
    """One reading of a directory."""

    def __init__(self, disk: ListedDisk, identity: Identity) -> None:
        self._disk = disk
        self._identity = identity
        self._faults: list[Fault] = []
        self._names: dict[str, frozenset[str]] = {}
        """Names in a directory, once they were listed."""

    def run(self, now_ms: int, deleted_from_minute: int, *, is_final: bool) -> Manifest:
        """Return what is found; the order is told in the module's docstring."""
        disk, identity = self._disk, self._identity
        found = read_checkpoint(disk, identity.log_uuid)
        checkpoint = found or Checkpoint()
        end = self._durable_end()
        seals, damages, begin = read_last_seals(
            disk,
            identity.log_uuid,
            seals_end(checkpoint),
            retired={file.path for file in checkpoint.retired},
            deleted_from_minute=deleted_from_minute,
        )
        if begin == 1 and not damages and not _is_left_out(seals, deleted_from_minute).any():
            deleted_from_minute = 0  # All that were ever deleted are told of.
        self._faults += [Fault(file=d.path, position=d.position, reason=d.reason) for d in damages]
        unsealed = [_unsealed(state) for state in checkpoint.segments]
        sealed = list(_sealed(seals, checkpoint, deleted_from_minute))
        self._expect(unsealed, sealed)
        durable = max(checkpoint.sequence + 1, end.next_sequence if end is not None else 0)
        committed = durable
        if not is_final and PROMISE_PATH in disk.list(""):
            committed = min(checkpoint.last_known + 1, durable)
        log = tuple(self._message_log(found, end, committed))
        if found is None:
            self._require_nothing(durable)
        return Manifest(
            made_ms=now_ms,
            cluster=identity.cluster,
            group=identity.group,
            node_id=identity.node_id,
            log_uuid=str(identity.log_uuid),
            storage_uuid=str(identity.storage_uuid),
            written_ms=checkpoint.written_ms,
            sequence=checkpoint.sequence,
            first_sequence=checkpoint.first_sequence,
            floor_minute=checkpoint.floor_minute,
            hour_mark=checkpoint.hour_mark,
            day_mark=checkpoint.day_mark,
            log_next_sequence=committed,
            durable_next_sequence=durable,
            deleted_from_minute=deleted_from_minute,
            segments=tuple(one for one in unsealed if one.span != "dead"),
            dead_segments=tuple(one for one in unsealed if one.span == "dead"),
            sealed=tuple(one for one in sealed if one.span != "dead"),
            dead_sealed=tuple(one for one in sealed if one.span == "dead"),
            message_log=log,
            retired=tuple(file.path for file in checkpoint.retired),
            quarantined=checkpoint.quarantined,
            faults=tuple(self._faults),
        )

    def _fault(self, file: str, reason: str, position: int = 0) -> None:
        self._faults.append(Fault(file=file, position=position, reason=reason))

    def _durable_end(self) -> DurableEnd | None:
        """Return the durable end, None if there is none; what is wrong with it is a fault.

        So is one slot that is not intact: a server that is writing it will have done so at one of
        the tries. Else it may have been the newest, and what is durable behind the other is not
        named.
        """
        end, file = None, None
        damage: DamagedError | None = None
        for _ in range(_END_TRIES_MAX):
            file = DurableEndReader(
                self._disk, MESSAGE_LOG_DIRECTORY, log_uuid=self._identity.log_uuid
            )
            try:
                end, damage = file.read(), None
            except DamagedError as error:
                damage = error
            damage = damage or file.missing or file.damaged_slot
            if damage is None:
                break
        if damage is not None:
            reason = f"{damage.reason}; what was in this slot may have been the newest end"
            self._fault(damage.path, damage.reason if end is None else reason, damage.position)
        return end

    def _expect(self, unsealed: Sequence[UnsealedSegment], sealed: Sequence[SealedSegment]) -> None:
        """Note which files of segments are not there."""
        for segment in unsealed:
            if segment.length:
                self._require(segment.file)
            if segment.facts_length:
                self._require(segment.facts_file)
        for seal in sealed:
            if not seal.deleted:
                self._require(seal.file)
                self._require(seal.facts_file)

    def _require(self, path: str) -> None:
        directory, _, name = path.rpartition("/")
        if directory not in self._names:
            self._names[directory] = frozenset(self._disk.list(directory))
        if name not in self._names[directory]:
            self._fault(path, "the file is gone")

    def _require_nothing(self, next_sequence: int) -> None:
        """Note that there is no checkpoint, unless nothing was ever written.

        A server writes one before the first record or segment (`storage/node/store.py`).
        """
        there = [
            f"{directory}/{name}"
            for directory in ("schedule_log", "dispatch_log")
            for name in self._disk.list(directory)
            if key_of_name(name) is not None
        ]
        for directory in (SEALS_DIRECTORY, MESSAGE_LOG_DIRECTORY):
            there += [file.path for file in list_log_files(self._disk, directory)]
        if there or next_sequence > 1:
            what = f"{len(there)} file(s) of logs are there" if there else "there were records"
            self._fault(CHECKPOINT_PATH, f"the file is gone: {what}")

    # -- the message_log ---------------------------------------------------------------------

    def _message_log(
        self, found: Checkpoint | None, end: DurableEnd | None, committed: int
    ) -> Iterator[MessageLogFile]:
        """Yield the files that hold records from the first one kept on, below `committed`.

        found: the checkpoint, which is never without a durable end.
        """
        checkpoint = found or Checkpoint()
        directory, wanted = MESSAGE_LOG_DIRECTORY, checkpoint.first_sequence
        files = list_log_files(self._disk, directory)
        if not files and checkpoint.sequence >= wanted:
            self._fault(directory, "no file of the message_log is left")
        if end is None:
            is_told = any(fault.file == _END_PATH for fault in self._faults)
            if (files or found is not None) and not is_told:
                self._fault(_END_PATH, END_IS_GONE)
            return
        stop = min(end.next_sequence, committed)
        counted = [file for file in files if file.first_sequence < end.next_sequence]
        newest = log_file(directory, end.file_sequence)
        if end.position and newest not in counted:
            self._fault(newest.path, "the file is gone")
        next_sequence = wanted
        for file, after in zip_longest(counted, counted[1:]):
            following = end.next_sequence if after is None else after.first_sequence
            if following <= wanted or file.first_sequence >= stop:
                continue
            if file.first_sequence > next_sequence:
                missing = f"records {next_sequence} to {file.first_sequence - 1} are in no file"
                self._fault(file.path, missing)
            next_sequence = following = min(following, stop)
            length = end.position if file == newest else self._size(file.path)
            if length is not None:
                yield MessageLogFile(
                    file=file.path,
                    first_sequence=file.first_sequence,
                    next_sequence=following,
                    length=length,
                )
        if next_sequence < stop:
            missing = f"records {next_sequence} to {stop - 1} are in no file"
            self._fault(directory, missing)

    def _size(self, path: str) -> int | None:
        """Return the size of a file that nothing is added to any more; None if that is a fault."""
        try:
            file = self._disk.open_read(path)
            try:
                return file.size()
            finally:
                file.close()
        except NotPermittedError:
            raise
        except OSError as error:
            self._fault(path, f"cannot be read: {error}")
            return None


def _place_of(key: SegmentKey) -> dict[str, Any]:
    """Return the fields that the key of a segment tells."""
    return {
        "file": key.path,
        "facts_file": key.facts_path,
        "start_minute": key.start,
        "span": key.span.name.lower(),
    }


def _unsealed(state: SegmentState) -> UnsealedSegment:
    told = {name: getattr(state, name) for name in _OF_STATES}
    return UnsealedSegment(**_place_of(state.key), **told)


def _is_left_out(seals: Seals, deleted_from_minute: int) -> npt.NDArray[np.bool_]:
    """Say of each seal whether its segment is deleted, and ended so early that it is not told."""
    ends = ends_of(seals["start_minute"].astype(np.int64), seals["span"])
    found: npt.NDArray[np.bool_] = (seals["deleted"] != 0) & (ends <= deleted_from_minute)
    return found


def _sealed(
    seals: Seals, checkpoint: Checkpoint, deleted_from_minute: int
) -> Iterator[SealedSegment]:
    """Yield the last seal of each segment; where the checkpoint names one, that counts."""
    named = np.array([state.key.code for state in checkpoint.segments], np.int64)
    codes = codes_of(seals)
    kept = ~np.isin(codes, named)
    kept &= ~_is_left_out(seals, deleted_from_minute)
    arrays = {name: array[kept].tolist() for name, array in seals.items()}
    for place, code in enumerate(codes[kept].tolist()):
        key = key_of_code(code)
        outcomes = {name: arrays[name][place] for name in _OUTCOMES if arrays[name][place]}
        yield SealedSegment(
            **_place_of(key),
            **{name: arrays[name][place] for name in _OF_SEALS},
            digest=f"{arrays['digest_0'][place]:016x}{arrays['digest_1'][place]:016x}",
            facts_digest=(
                f"{arrays['facts_digest_0'][place]:016x}{arrays['facts_digest_1'][place]:016x}"
            ),
            outcomes=outcomes,
            deleted=bool(arrays["deleted"][place]),
        )
