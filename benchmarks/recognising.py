"""CPU of the window of duplicates: `python -m benchmarks.recognising`.

For each message, with the window full, by messages in a commit: to look it up and to note it, which
is what every message costs; and what a repeat costs, which is read and compared. Medians, in one
process without a server.
"""

import random
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final
from uuid import UUID

import numpy as np

from delay_protocol.messages.items import FLAG_DELAY, Item, encode_item
from delay_server.accepting.admission import Admission, AdmissionConfig
from delay_server.accepting.duplicates import Duplicates, DuplicatesConfig
from delay_server.accepting.intake import Intake, MessageBatch
from storage.batch.batches import LogBatch, encode_batch
from storage.batch.columns import Columns, RecordKind, encode_columns
from storage.disk.disk import DirectoryDisk
from storage.logs.message_log import MessageLog

PER_COMMIT: Final = (1, 20, 100, 1000)
_MESSAGES: Final = 20_000
"""Measured of each kind."""
_FILLING: Final = 10_000
_FILLED: Final = 3
"""Windows of messages that came before: it has but its largest table then."""
_NOW_MS: Final = 1_788_220_800_000


def batches_of(per_commit: int, count: int, first: int) -> list[list[MessageBatch]]:
    """Return commits of messages that are numbered from `first` on, as an intake has them."""
    admission = Admission(AdmissionConfig())
    found = []
    for begin in range(first, first + count, per_commit):
        items = (
            Item(FLAG_DELAY, _NOW_MS, _NOW_MS + 1000, "orders", f"m{n}", (), {"data": "x" * 200})
            for n in range(begin, begin + per_commit)
        )
        intake = Intake()
        admission.admit(b"".join(map(encode_item, items)), _NOW_MS, intake)
        found.append(intake.batches())
    return found


def appended(batch: MessageBatch, sequence: int) -> LogBatch:
    """Return a batch as it is when it has been appended."""
    draft = batch.draft()
    header, _ = encode_batch(
        seed=0,
        kind=RecordKind.MESSAGE,
        epoch=1,
        base_sequence=sequence,
        count=len(batch),
        floor_minute=0,
        append_ms=_NOW_MS + sequence // 100,
        previous_crc=0,
        columns=encode_columns(draft.kind, draft.names, draft.arrays),
        blob=draft.blob,
    )
    return LogBatch(header, Columns(list(draft.names), dict(draft.arrays)), b"")


def fill(window: Duplicates, log: MessageLog, messages: int) -> int:
    """Note so many other messages; return the next record."""
    sequence, chance = log.next_sequence, np.random.default_rng(1)
    (batch,) = batches_of(1000, 1000, 0)[0]
    for _ in range(0, messages, _FILLING):
        count = _FILLING
        arrays = {name: np.resize(array, count) for name, array in batch.columns.arrays.items()} | {
            "id_hash": chance.integers(0, 2**64, count, dtype=np.uint64)
        }
        header, _ = encode_batch(
            seed=0,
            kind=RecordKind.MESSAGE,
            epoch=1,
            base_sequence=sequence,
            count=count,
            floor_minute=0,
            append_ms=_NOW_MS + sequence // 100,
            previous_crc=0,
            columns=b"",
            blob=(),
        )
        window.note([LogBatch(header, Columns(batch.subjects, arrays), b"")])
        sequence += count
    return sequence


def measure(window: Duplicates, per_commit: int, sequence: int) -> tuple[float, float, int]:
    """Return us a message to look up and to note, and the next record."""
    looked_up, noted = [], []
    for batches in batches_of(per_commit, _MESSAGES, random.Random(sequence).getrandbits(50)):
        began = time.perf_counter()
        kept, _ = window.sift(batches)
        looked_up.append(time.perf_counter() - began)
        written = []
        for batch in kept:
            written.append(appended(batch, sequence))
            sequence += len(batch)
        began = time.perf_counter()
        window.note(written)
        noted.append(time.perf_counter() - began)
    return median(looked_up) / per_commit * 1e6, median(noted) / per_commit * 1e6, sequence


def new_log(directory: Path) -> MessageLog:
    """Return a new log in a new directory."""
    directory.mkdir()
    disk = DirectoryDisk(directory)
    log, _ = MessageLog.recover(
        disk,
        log_uuid=UUID(int=1),
        checkpoint_sequence=0,
        known_sequence=0,
        had_checkpoint=False,
    )
    log.start_epoch(1, append_ms=_NOW_MS)
    return log


def measure_repeats(directory: Path, per_commit: int) -> float:
    """Return us for each message of commits that were all sent before."""
    log = new_log(directory)
    window = Duplicates(log, DuplicatesConfig(messages_max=100_000), now_ms=lambda: _NOW_MS)
    window.catch_up()
    commits = batches_of(per_commit, min(_MESSAGES, 100 * per_commit), 0)
    for batches in commits:
        window.note(log.append([one.draft() for one in batches], append_ms=_NOW_MS))
    took = []
    for batches in commits:
        began = time.perf_counter()
        assert len(window.sift(batches)[1]) == per_commit
        took.append(time.perf_counter() - began)
    log.close()
    return median(took) / per_commit * 1e6


def main() -> None:
    """Measure, and print."""
    print("messages a commit   look up   note   both   repeat      us a message")
    with tempfile.TemporaryDirectory() as scratch:
        log = new_log(Path(scratch) / "full")
        window = Duplicates(log, DuplicatesConfig(), now_ms=lambda: _NOW_MS)
        window.catch_up()
        sequence = fill(window, log, _FILLED * DuplicatesConfig().messages_max)
        for per_commit in PER_COMMIT:
            look, note, sequence = measure(window, per_commit, sequence)
            repeat = measure_repeats(Path(scratch) / f"of {per_commit}", per_commit)
            print(f"{per_commit:>17}{look:>10.2f}{note:>7.2f}{look + note:>7.2f}{repeat:>9.1f}")
        log.close()


if __name__ == "__main__":
    main()
