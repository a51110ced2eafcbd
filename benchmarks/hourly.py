"""Reconciling by the hour against everything at once; and segments larger than memory should be.

Two days of messages that are due within two hours of being taken, an hour each run. And one minute
in which so many messages are due that they are judged in parts. Each run is a process of its own,
so that its memory is its own.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.written_logs import (
    LOG_UUID,
    append_messages,
    delivered,
    files_of,
    manifest_of,
    messages_of,
    seal_of,
)
from storage.batch.entries import SubjectTable
from storage.disk.disk import DirectoryDisk
from storage.disk.spans import MINUTE_MS, SegmentKey, Span
from storage.logs.message_log import MessageLog
from storage.readers.manifest import MessageLogFile, SealedSegment, encode_manifest
from storage.schedule.segment import Segment

_START_MINUTE = 29_000_040
"""A full hour."""
_HOURS = 48
_AHEAD_MINUTES = 120
_PER_BATCH = 2_000


@dataclass(frozen=True, slots=True)
class Cost:
    """What a process took: wall and CPU seconds, MiB at the most."""

    wall: float
    cpu: float
    mib: float

    def __str__(self) -> str:
        """Return it for people."""
        return f"{self.wall:.1f} s, {self.cpu:.1f} s CPU, {self.mib:.0f} MiB"


def measure(directory: Path, scale: float) -> Iterator[tuple[str, object]]:
    """Write logs, reconcile them, and yield the figures."""
    yield "load of the machine before", f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    yield from _by_hour(directory / "hourly", int(1000 * scale))
    for rows in (int(5_000_000 * scale), int(20_000_000 * scale)):
        yield from _large(directory / f"large-{rows}", rows)
    yield "load of the machine after", f"{os.getloadavg()[0]:.1f}"


_MEASURED = """
import atexit, resource, sys
from delaywheel.main import main

def told():
    used = resource.getrusage(resource.RUSAGE_SELF)
    # What getrusage says of memory counts the process that started this one.
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    with open(place, "w") as file:
        print(used.ru_utime + used.ru_stime, status["VmHWM"].split()[0], file=file)

place = sys.argv.pop(1)
atexit.register(told)
main()
"""
"""Runs a command of delaywheel, and writes down what it took: CPU seconds and KiB."""


def _run(where: Path, *options: str) -> Cost:
    """Run a command of `delaywheel spark` in a process of its own."""
    place, began = where / "cost", time.perf_counter()
    command = [sys.executable, "-c", _MEASURED, str(place), "spark", *options]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    wall = time.perf_counter() - began
    cpu, kib = place.read_text().split()
    return Cost(wall, float(cpu), int(kib) / 1024)


def _by_hour(where: Path, per_minute: int) -> Iterator[tuple[str, object]]:
    where.mkdir(parents=True)
    began = time.perf_counter()
    manifests = _write_hours(where, per_minute)
    count = _HOURS * 60 * per_minute
    yield f"{count:,} messages of {_HOURS} hours written", f"{time.perf_counter() - began:.0f} s"
    given = [f"{path}={where}" for path in manifests]
    begin, end = (
        datetime.fromtimestamp((_START_MINUTE + hour * 60) * 60, UTC).isoformat()
        for hour in (0, _HOURS)
    )
    whole = ("reconcile", "--engine", "local", "--manifest", given[1], "--from", begin, "--to", end)
    yield "  all hours in one run", _run(where, *whole)
    hours = ("hours", "--engine", "local", "--state", str(where / "state"), "--manifest")
    yield f"  {_HOURS - 1} hours, one by one", _run(where, *hours, given[0])
    yield "  then the last hour", _run(where, *hours, given[1])
    yield "  then nothing new", _run(where, *hours, given[1])
    index = where / "state" / "index" / str(LOG_UUID)
    sizes = [path.stat().st_size for path in index.iterdir()]
    yield "  index of the message_log", f"{sum(sizes):,} bytes in {len(sizes)} pieces"
    shutil.rmtree(where)


def _write_hours(where: Path, per_minute: int) -> list[Path]:
    """Write the logs; return manifests of them an hour before the end, and at the end."""
    disk, table = DirectoryDisk(where), SubjectTable()
    for name in ("schedule_log", "dispatch_log", "message_log"):
        disk.make_directory(name)
    chance = np.random.default_rng(1)
    minutes = _HOURS * 60
    accepted = np.repeat(np.arange(-_AHEAD_MINUTES, minutes), per_minute)
    due = accepted + chance.integers(1, _AHEAD_MINUTES, len(accepted))
    sequence = np.arange(len(due), dtype=np.int64) + 2
    log, _ = MessageLog.recover(
        disk, log_uuid=LOG_UUID, checkpoint_sequence=0, known_sequence=0, had_checkpoint=False
    )
    log.start_epoch(1, append_ms=0)
    lengths: list[tuple[list[tuple[str, int, int]], int, list[int]]] = []
    for minute in range(-_AHEAD_MINUTES, minutes + 1):
        if minute in {minutes - 60, minutes}:
            files = files_of(log)
            sizes = [(where / file).stat().st_size for file, _, _ in files]
            lengths.append((files, log.next_sequence, sizes))
        mine = sequence[accepted == minute]
        for first in range(0, len(mine), _PER_BATCH):
            part = mine[first : first + _PER_BATCH]
            block = messages_of(part, _START_MINUTE + due[part - 2], table)
            append_messages(log, block, table, floor_minute=_START_MINUTE + minute)
    log.close()
    seals: list[SealedSegment] = []
    order = np.argsort(due, kind="stable")
    edges = np.searchsorted(due[order], np.arange(minutes + 1))
    for minute in range(minutes):
        rows = sequence[order[edges[minute] : edges[minute + 1]]]
        seals.append(_segment(disk, _START_MINUTE + minute, rows, table))
    paths: list[Path] = []
    for files, next_sequence, sizes in lengths:
        end = _START_MINUTE + (minutes - 60 if not paths else minutes)
        manifest = manifest_of(
            where,
            made_ms=(end + 5) * MINUTE_MS,
            sealed=[one for one in seals if one.start_minute < end],
            log_files=files,
            log_next=next_sequence,
            floor_minute=end,
        )
        log_files = tuple(
            MessageLogFile(file=file, first_sequence=first, next_sequence=after, length=size)
            for (file, first, after), size in zip(files, sizes, strict=True)
        )
        manifest = msgspec.structs.replace(manifest, message_log=log_files)
        paths.append(where / f"manifest-{end}.json")
        paths[-1].write_bytes(encode_manifest(manifest))
    return paths


def _segment(
    disk: DirectoryDisk,
    minute: int,
    sequence: np.ndarray[tuple[int], np.dtype[np.int64]],
    table: SubjectTable,
) -> SealedSegment:
    """Write a segment in which all was delivered once; return its seal."""
    segment = Segment.new(disk, LOG_UUID, SegmentKey(minute, Span.MINUTE))
    for first in range(0, len(sequence), _PER_BATCH):
        block = messages_of(sequence[first : first + _PER_BATCH], minute, table)
        segment.append(block, table, epoch=1, append_ms=0)
        segment.append_facts(
            delivered(block, block.due_ms + block.sequence % 50), epoch=1, append_ms=0
        )
    segment.close()
    return seal_of(segment)


def _large(where: Path, rows: int) -> Iterator[tuple[str, object]]:
    where.mkdir(parents=True)
    disk, table = DirectoryDisk(where), SubjectTable()
    for name in ("schedule_log", "dispatch_log"):
        disk.make_directory(name)
    sequence = np.arange(rows, dtype=np.int64) + 2
    seal = _segment(disk, _START_MINUTE, sequence, table)
    manifest = manifest_of(
        where,
        made_ms=(_START_MINUTE + 60) * MINUTE_MS,
        sealed=[seal],
        log_files=[],
        log_next=rows + 2,
    )
    path = where / "manifest.json"
    path.write_bytes(encode_manifest(manifest))
    given = ["reconcile", "--engine", "local", "--manifest", f"{path}={where}"]
    yield f"a segment of {rows:,} rows, 4,000,000 at once", _run(where, *given)
    yield "  all at once", _run(where, *given, "--rows-at-once", str(rows))
    shutil.rmtree(where)
