"""Reconciling with the local engine: CPU seconds, wall seconds and resident memory.

Segments of 50,000 messages each, delivered once, and a message_log with all of them: the usual
case, in which nothing is wrong. A run is a process of its own, so that its memory is its own.
"""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

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
from storage.readers.manifest import encode_manifest
from storage.schedule.segment import Segment

_START_MINUTE = 29_000_000
_PER_SEGMENT = 50_000
_PER_BATCH = 2_000


def measure(directory: Path, scale: float) -> Iterator[tuple[str, object]]:
    """Write logs, reconcile them, and yield the figures."""
    yield "load of the machine before", f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    for messages in (int(1_000_000 * scale), int(10_000_000 * scale)):
        where = directory / f"reconcile-{messages}"
        where.mkdir()
        manifest = write_logs(where, messages)
        for processes in (1, 2):
            cpu, wall, mib = _run(where, manifest, processes)
            name = f"{messages:,} messages, {processes} process(es)"
            yield name, f"{wall:.1f} s, {cpu:.1f} s CPU, {cpu / messages * 1e6:.2f} us a message"
            yield "  resident memory of the largest process", f"{mib:.0f} MiB"
    yield "load of the machine after", f"{os.getloadavg()[0]:.1f}"


def _run(where: Path, manifest: Path, processes: int) -> tuple[float, float, float]:
    """Reconcile in a process of its own; return CPU and wall seconds, and MiB."""
    output = where / "result.json"
    command = [sys.executable, "-m", "delaywheel", "spark", "reconcile"]
    command += ["--engine", "local", "--processes", str(processes)]
    command += ["--manifest", f"{manifest}={where}"]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([*command, "--output", str(output)], check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, wall, after.ru_maxrss / 1024


def write_logs(where: Path, messages: int) -> Path:
    """Write the logs of so many messages; return their manifest."""
    disk = DirectoryDisk(where)
    for name in ("schedule_log", "dispatch_log", "message_log"):
        disk.make_directory(name)
    table, sealed = SubjectTable(), []
    log, _ = MessageLog.recover(
        disk, log_uuid=LOG_UUID, checkpoint_sequence=0, known_sequence=0, had_checkpoint=False
    )
    log.start_epoch(1, append_ms=0)
    segments = max(messages // _PER_SEGMENT, 1)
    for number in range(segments):
        key = SegmentKey(_START_MINUTE + number, Span.MINUTE)
        segment = Segment.new(disk, LOG_UUID, key)
        for first in range(0, _PER_SEGMENT, _PER_BATCH):
            # Sequences of all segments are mixed, as those of messages due at any time are.
            sequence = np.arange(first, first + _PER_BATCH, dtype=np.int64) * segments + number + 2
            block = messages_of(sequence, key.start, table)
            segment.append(block, table, epoch=1, append_ms=0)
            facts = delivered(block, block.due_ms + block.sequence % 50)
            segment.append_facts(facts, epoch=1, append_ms=0)
        segment.close()
        sealed.append(seal_of(segment))
    for first in range(0, segments * _PER_SEGMENT, _PER_BATCH):
        sequence = np.arange(first, first + _PER_BATCH, dtype=np.int64) + 2
        block = messages_of(sequence, _START_MINUTE + (sequence - 2) % segments, table)
        append_messages(log, block, table)
    files = files_of(log)
    log.close()
    manifest = manifest_of(
        where,
        made_ms=(_START_MINUTE + segments + 60) * MINUTE_MS,
        sealed=sealed,
        log_files=files,
        log_next=log.next_sequence,
    )
    path = where / "manifest.json"
    path.write_bytes(encode_manifest(manifest))
    return path
