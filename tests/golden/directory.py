"""Data directories with every kind of file; `python -m tests.golden.directory` writes them down.

`tests/golden/format-2.hex` holds the files of one that was used for two hours, and
`format-2.jsonl` what `delaywheel log dump` said of them; `format-2-dead` is of one with dead
letters. `format-1.hex` is a small one of the first format, which nothing writes any more and which
is refused.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from storage.disk.spans import MINUTE_MS
from storage.state.durable_end import SLOT_POSITIONS, SLOT_SIZE
from storage.tools.inspect import dump_records
from tests.storage.dead_rig import DeadRig
from tests.storage.store_rig import StoreRig

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
    return [json.dumps(record, sort_keys=True, default=str) for record in dump_records(root)]


def main() -> None:
    """Write the golden files of the present formats."""
    for name, files in (("format-2", golden_directory()), ("format-2-dead", dead_directory())):
        (GOLDEN / f"{name}.hex").write_text(encoded(files), encoding="utf-8")
        with TemporaryDirectory() as root:
            lines = dumped(written(files, Path(root)))
        (GOLDEN / f"{name}.jsonl").write_text(
            "".join(f"{line}\n" for line in lines), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
