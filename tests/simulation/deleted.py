"""What the server deleted while it ran, kept for the checkers, and whether it was right to do so.

A checkpoint deletes files that nothing needs any more. Their bytes are still needed here: the
checkers compare with everything that was ever accepted. `Deleted.with_files` puts back what the
checkpoint and the seals say was deleted on purpose, and nothing else: whatever is missing for
another reason stays missing.
"""

from collections.abc import Mapping

import trio

from tests.simulation import independent_reader as reader
from tests.simulation.checkers import whole_files
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimDisk
from tests.simulation.faults import running
from tests.simulation.independent_reader import Batch, Checkpoint, MismatchError
from tests.simulation.witness import Witness

CHECKPOINT = "checkpoint/checkpoint"

_by_a_checkpoint = running("CheckpointWork._unlink")


class Deleted:
    """Watches the unlinks of all lives of a disk."""

    def __init__(self, witness: Witness, clock: SimClock) -> None:
        self.witness = witness
        self._clock = clock
        self.files: dict[str, bytes] = {}
        """Each file that a checkpoint deleted, as it was then."""
        self.hurry_until_s = 0.0
        """Until then the disk is full, or was when what goes was chosen: graces are cut short."""

    def watch(self, disk: SimDisk, *, grace_ms: int) -> None:
        """Look at all that a life of the server deletes; it has to grant this grace."""

        def unlinked(kind: str, path: str, label: str) -> None:
            if _by_a_checkpoint(kind, path, label):
                self._look(disk, path, grace_ms)

        def created(_kind: str, path: str, _label: str) -> None:
            self.files.pop(path, None)

        disk.watch({"unlink"}, unlinked)
        disk.watch({"create"}, created)

    def _look(self, disk: SimDisk, path: str, grace_ms: int) -> None:
        data = disk.content(path)
        if data is None:
            return
        self.files[path] = data
        checkpoint = _checkpoint(disk.content(CHECKPOINT, durable=True))
        if checkpoint is None or path not in checkpoint.retired:
            self.witness.complain(f"kept: {path} is deleted, and no checkpoint lists it")
            return
        now_s = trio.current_time()
        age_ms = self._clock.now_ms() - checkpoint.retired[path]
        if now_s < self.hurry_until_s:
            return
        if age_ms < grace_ms and not self.witness.clock_was_set_between(now_s, now_s):
            self.witness.complain(f"kept: {path} is deleted after {age_ms} of {grace_ms} ms")

    def check_end_of_life(self, durable: Mapping[str, bytes]) -> None:
        """Complain of what the durable checkpoint makes of what is deleted, and is not there."""
        checkpoint = _checkpoint(durable.get(CHECKPOINT))
        if checkpoint is None:
            return
        listed = {*checkpoint.retired, *checkpoint.quarantined}
        for path in sorted(self.files.keys() & durable.keys() - listed):
            self.witness.complain(f"bounded: {path} was deleted, and is there unlisted")
        if checkpoint.first_sequence > checkpoint.sequence + 1:
            self.witness.complain(
                f"kept: the log is kept from record {checkpoint.first_sequence} on, "
                f"but filed only up to {checkpoint.sequence}"
            )

    def with_files(self, files: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the files, and with them those that were deleted for good reason."""
        found = dict(files)
        checkpoint = _checkpoint(files.get(CHECKPOINT))
        if not self.files or checkpoint is None:
            return found
        # What was damaged on purpose before it was deleted says now what it said at first.
        deleted = whole_files(self.witness, self.files)
        gone: dict[str, bool] = {}
        """Segments with seals, and whether the last one says that they are deleted."""
        for path in sorted({path for path in (*files, *deleted) if path.startswith("seals/0")}):
            batches = _batches(files.get(path, deleted.get(path, b"")))
            last = max((batch.base + batch.count - 1 for batch in batches), default=0)
            if last < checkpoint.seals_needed:
                found.setdefault(path, deleted.get(path, b""))
            for batch in batches:
                columns = batch.columns
                names = map(reader.segment_name, columns["start_minute"], columns["span"])
                gone.update(zip(names, map(bool, columns["deleted"]), strict=True))
        for path, data in deleted.items():
            directory, _, name = path.rpartition("/")
            if (directory == "message_log" and _is_below(name, checkpoint.first_sequence)) or (
                directory in {"schedule_log", "dispatch_log"} and gone.get(name)
            ):
                found.setdefault(path, data)
        return found


def _is_below(name: str, sequence: int) -> bool:
    return int(name.removesuffix(".log")) < sequence


def _batches(data: bytes) -> list[Batch]:
    """Return the batches of a file as far as they can be read."""
    found: list[Batch] = []
    try:
        for batch in reader.read_batches(data):
            found.append(batch)  # noqa: PERF402 (those before the damage count)
    except MismatchError:
        pass
    return found


def _checkpoint(data: bytes | None) -> Checkpoint | None:
    """Return the checkpoint; None if there is none, or a bit of it was flipped on purpose."""
    try:
        return reader.read_checkpoint(data) if data else None
    except MismatchError:
        return None
