"""Manifests of a running server's directory commit each message once, whenever they are read."""

import time
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from storage.batch.batches import Damage
from storage.disk.disk import DirectoryDisk
from storage.disk.spans import key_of_name
from storage.readers.arrow import ArrowReader, Kind
from storage.readers.manifest import Manifest, SealedSegment, UnsealedSegment, read_manifest
from tests.processes.real_processes import (
    Producer,
    RecordingBroker,
    make_item,
    server,
    wall_ms,
)

pytestmark = [pytest.mark.process, pytest.mark.long]
SECONDS = 8.0
OPTIONS = (
    "--set",
    "storage.checkpoint_interval_ms=400",
    "--set",
    "storage.message_log_file_bytes_max=1048576",
)


def rows(disk: DirectoryDisk, manifest: Manifest, kind: Kind) -> list[dict[str, Any]]:
    """Return what the manifest commits; nothing of it may be damaged."""
    reader = ArrowReader(disk, UUID(manifest.log_uuid), kind)
    segments: list[UnsealedSegment | SealedSegment] = [*manifest.segments, *manifest.sealed]
    found: list[Any] = []
    if kind is Kind.SCHEDULE:
        for segment in segments:
            found += reader.rows(segment.file, length=segment.length)
    elif kind is Kind.DISPATCH:
        for segment in segments:
            found += reader.filed_facts(segment.facts_file, length=segment.facts_length)
        for log in manifest.message_log:
            found += reader.stated_facts(
                log.file,
                length=log.length,
                first_sequence=log.first_sequence,
                next_sequence=log.next_sequence,
            )
    else:
        for log in manifest.message_log:
            found += reader.messages(
                log.file,
                length=log.length,
                first_sequence=log.first_sequence,
                next_sequence=log.next_sequence,
            )
    assert not [one for one in found if isinstance(one, Damage)]
    return [row for table in found for row in table.to_pylist()]


def check(disk: DirectoryDisk, manifest: Manifest, acknowledged: set[str]) -> None:
    """Each message that was acknowledged before is there once, and has at most one fact."""
    assert manifest.faults == ()
    unsealed = {
        minute: segment
        for segment in manifest.segments
        if (key := key_of_name(segment.file.rpartition("/")[2])) is not None
        for minute in range(key.start, key.end)
    }

    def is_filed(record: int, minute: int, name: str) -> bool:
        """Say whether a record is in the files of segments, up to the last one of this name."""
        home = unsealed.get(minute)
        return record <= max(manifest.sequence, 0 if home is None else getattr(home, name))

    filed = rows(disk, manifest, Kind.SCHEDULE)
    log = [row for row in rows(disk, manifest, Kind.MESSAGE) if row["kind"] == "message"]
    waiting = [
        row for row in log if not is_filed(row["sequence"], row["filed_minute"], "last_sequence")
    ]
    ids = Counter(row["message_id"] for row in (*filed, *waiting))
    assert set(ids.values()) <= {1}
    assert acknowledged <= ids.keys()
    assert {row["message_id"] for row in log} == ids.keys(), "nothing has left yet"
    minutes = unsealed.keys() | {row["filed_minute"] for row in waiting}
    facts = Counter(
        row["sequence"]
        for row in rows(disk, manifest, Kind.DISPATCH)
        if row["is_filed"]
        or (
            row["filed_minute"] in minutes
            and not is_filed(row["record"], row["filed_minute"], "last_fact")
        )
    )
    assert set(facts.values()) <= {1}
    assert facts.keys() <= {row["sequence"] for row in (*filed, *waiting)}


def test_manifests_that_are_read_while_a_server_works_contradict_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    acknowledged: set[str] = set()
    manifests = 0
    moments: set[tuple[int, int]] = set()
    with (
        RecordingBroker() as broker,
        server(data, broker_port=broker.port, options=OPTIONS) as node,
    ):
        node.wait_ready()
        disk, until = DirectoryDisk(data), time.monotonic() + SECONDS
        with Producer(node.port) as producer:
            while time.monotonic() < until:
                for _ in range(5):
                    now_ms = wall_ms()
                    numbers = range(len(acknowledged), len(acknowledged) + 100)
                    items = [
                        make_item(f"m{n}", now_ms + n % 7 * 300 + (n % 5 == 0) * 5_000_000)
                        for n in numbers
                    ]
                    assert producer.send(items) == {}
                    acknowledged |= {f"m{n}" for n in numbers}
                manifest = read_manifest(disk, now_ms=wall_ms())
                check(disk, manifest, acknowledged)
                manifests += 1
                moments.add((manifest.sequence, manifest.log_next_sequence))
        assert node.terminate() < 15
        check(disk, read_manifest(disk, now_ms=wall_ms()), acknowledged)
    assert manifests >= 5
    assert len(moments) >= 5, "the server did not get on"
