"""Data directories with every kind of file; `python -m tests.golden.directory` writes them down.

`tests/golden/format-2.hex` holds the files of one that was used for two hours, and
`format-2.jsonl` what `delaywheel log dump` said of them; `format-2-dead` is of one with dead
letters, `format-2-slave` of a node that follows another one, and was the master before.
`format-1.hex` is a small one of the first format, which nothing writes any more and which is
refused.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from storage.disk.spans import MINUTE_MS
from storage.node.store import Store
from storage.state.durable_end import SLOT_POSITIONS, SLOT_SIZE
from storage.state.promise_file import Promised, PromiseFile
from storage.tools.inspect import dump_files
from tests.kit.dumped import records_of
from tests.simulation.disk import SimDisk
from tests.simulation.faults import CALM
from tests.storage.copying_rig import checkpoint, headers_from, unapplied
from tests.storage.dead_rig import DeadRig
from tests.storage.store_rig import START_MS, StoreRig

GOLDEN = Path(__file__).parent
_BYTES_A_LINE = 48


def golden_directory() -> dict[str, bytes]:
    """Return the files of a directory that was used for two hours, by path."""
    rig = StoreRig(20261121)
    rig.open()
    rig.split(100)
    for place in range(12):
        # Near, within hours, within days, and overdue already.
        for ahead_ms in (1000, 5 * MINUTE_MS, 150 * MINUTE_MS, 4000 * MINUTE_MS, -30_000):
            rig.commit([rig.now_ms + ahead_ms + place, rig.now_ms + ahead_ms + 7 * place])
        rig.file(100)
        rig.load(steps=1000)
        rig.now_ms += 2000
        rig.deliver()
        rig.cross_off()
        rig.flush()
        if place % 3 == 0:
            rig.checkpoint()
    for _ in range(6):
        # Minutes pass: what is complete is sealed, hours are split.
        rig.now_ms += 20 * MINUTE_MS
        rig.split(1000)
        rig.load(steps=1000)
        rig.deliver(15)
        rig.cross_off()
        rig.commit_floor()
        rig.file(100)
        rig.checkpoint()
    # What no checkpoint knows of yet: messages, and the facts about some.
    rig.commit([rig.now_ms + 10, rig.now_ms + 11, rig.now_ms + MINUTE_MS])
    rig.file(100)
    rig.load(steps=1000)
    rig.now_ms += 2000
    rig.deliver(1)
    rig.cross_off()
    rig.sync_durable_end()
    return rig.disk.contents()


def ends_by_newest_slot(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files, of each durable end only what its newest slot says.

    Which slot that is, and the counter that says so, is no matter of the format: at first the file
    was made of zeros, now it begins with an end in both slots.
    """
    return {
        path: _newest_slot(data) if path.endswith("/durable_end") else data
        for path, data in files.items()
    }


def _newest_slot(data: bytes) -> bytes:
    slots = [data[position : position + SLOT_SIZE] for position in SLOT_POSITIONS]
    newest = max(slots, key=lambda slot: int.from_bytes(slot[8:16], "little"))
    return newest[:8] + newest[16:-4]


def dead_directory() -> dict[str, bytes]:
    """Return the files of a directory in which messages were given up on three days."""
    rig = DeadRig(20261122)
    rig.open()
    rig.split(100)
    for day in range(3):
        for place in range(3):
            rig.commit([rig.now_ms + 100 * place, rig.now_ms + 100 * place + 7])
            rig.file(10)
            rig.load(steps=100)
            rig.now_ms += 1000
            rig.bury(4)
            rig.deliver()
            rig.file(10)
            rig.cross_off()
        if day < 2:
            # Of the first day all are settled, of the second some.
            rig.settle(2 - day, requeue=True)
            rig.settle(9 if not day else 1, requeue=False)
            rig.file(10)
            rig.load(steps=100)
            rig.deliver()
            rig.cross_off()
        rig.checkpoint()
        if day < 2:
            rig.now_ms += 24 * 60 * MINUTE_MS
            rig.split(1000)
            rig.commit_floor()
            rig.file(10)
            rig.checkpoint()
    # What no checkpoint knows of yet, the facts that records state among it.
    rig.commit([rig.now_ms])
    rig.file(10)
    rig.load(steps=100)
    rig.bury()
    rig.sync_durable_end()
    return rig.disk.contents()


PROMISED = Promised(epoch=9, told=msgspec.Raw(b'{"epoch":9,"version":21}'))


def slave_directory() -> dict[str, bytes]:
    """Return the files of a slave that has followed two masters, the first one in vain at last."""
    first, second = _master(), _master()
    disk = SimDisk(random.Random(2), plan=CALM)
    unapplied(disk).adopt_log(first.store.identity.log_uuid)
    slave = unapplied(disk)
    slave.apply_tail(1, now_ms=START_MS)
    log, end = slave.message_log, first.store.message_log.next_sequence
    _copy(first.store, slave)
    slave.apply_tail(end, now_ms=START_MS)
    checkpoint(slave, START_MS + MINUTE_MS)
    # Nobody else gets what the first one appends now; the slave has it, and gives it up.
    _go_on(first, epoch=log.last_epoch + 1, rounds=2)
    _copy(first.store, slave)
    _go_on(second, epoch=log.last_epoch + 1, rounds=6)
    log.cut_to(second.store.message_log.last_epoch, end, not_below=end)
    slave.close()
    slave = unapplied(disk)
    log = slave.message_log
    slave.apply_tail(end, now_ms=START_MS)
    _copy(second.store, slave)
    # All but the last batches are committed; the checkpoint knows of some.
    slave.apply_tail(_end_below(slave, end + 12), now_ms=START_MS)
    checkpoint(slave, START_MS + 2 * MINUTE_MS)
    slave.apply_tail(_end_below(slave, log.next_sequence - 6), now_ms=START_MS)
    PromiseFile(disk, slave.identity.storage_uuid).write(PROMISED)
    log.sync_durable_end()
    return disk.contents()


def _master() -> StoreRig:
    """Return a node that was used for a while; each one has the same log."""
    rig = StoreRig(20261127)
    rig.open()
    rig.split(100)
    _go_on(rig, epoch=2, rounds=5)
    return rig


def _go_on(rig: StoreRig, *, epoch: int, rounds: int) -> None:
    """Begin an epoch; take messages for now and later, and deliver what is due."""
    rig.store.begin_epoch(epoch, now_ms=rig.now_ms)
    for place in range(rounds):
        rig.commit([rig.now_ms + 500, rig.now_ms + 200 * MINUTE_MS + place])
        rig.file(100)
        rig.load(steps=1000)
        rig.now_ms += 2000
        rig.deliver(1)
        rig.cross_off()


def _copy(master: Store, slave: Store) -> None:
    """Append all that a slave lacks, as it comes from its master."""
    log = slave.message_log
    while log.next_sequence < master.message_log.next_sequence:
        log.append_copied(master.message_log.read_raw(log.next_sequence, bytes_max=1000).data)


def _end_below(store: Store, sequence: int) -> int:
    """Return the last end of a batch that is not above a record."""
    headers = headers_from(store, 1)
    return max(one.next_sequence for one in headers if one.next_sequence <= sequence)


def encoded(files: Mapping[str, bytes]) -> str:
    """Return files as text: a line with the path, lines of hex digits, an empty line."""
    parts = []
    for path, data in sorted(files.items()):
        lines = [
            data[place : place + _BYTES_A_LINE].hex()
            for place in range(0, len(data), _BYTES_A_LINE)
        ]
        parts.append("\n".join([path, *lines, "", ""]))
    return "".join(parts)


def decoded(text: str) -> dict[str, bytes]:
    """Return the files that `encoded` made text of."""
    files = {}
    for part in text.split("\n\n"):
        if part:
            path, *lines = part.split("\n")
            files[path] = bytes.fromhex("".join(lines))
    return files


def written(files: Mapping[str, bytes], root: Path) -> Path:
    """Write the files below a directory, and return that."""
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


def dumped(root: Path) -> list[str]:
    """Return what `log dump` says of a directory, a line of JSON each."""
    return [msgspec.json.encode(line, enc_hook=str).decode() for line in dump_files(root)]


def records_in(name: str) -> Iterator[dict[str, Any]]:
    """Yield the records of a golden directory, as `log dump` showed its batches."""
    return records_of(map(json.loads, (GOLDEN / f"{name}.jsonl").read_text().splitlines()))


DIRECTORIES: Final[Mapping[str, Callable[[], dict[str, bytes]]]] = {
    "format-2": golden_directory,
    "format-2-dead": dead_directory,
    "format-2-slave": slave_directory,
}
"""Those of the present format, by the names of their files; each is made anew by a call."""


def main() -> None:
    """Write the golden files of the present formats."""
    for name, made in DIRECTORIES.items():
        files = made()
        (GOLDEN / f"{name}.hex").write_text(encoded(files), encoding="utf-8")
        with TemporaryDirectory() as root:
            lines = dumped(written(files, Path(root)))
        (GOLDEN / f"{name}.jsonl").write_text(
            "".join(f"{line}\n" for line in lines), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
