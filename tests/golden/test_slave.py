"""A slave's directory is read and written alike, its promise among it."""

from pathlib import Path

from storage.disk.disk import DirectoryDisk
from storage.readers.manifest import read_manifest
from storage.state.promise_file import PromiseFile
from tests.golden.directory import (
    GOLDEN,
    PROMISED,
    decoded,
    records_in,
    written,
)
from tests.storage.copying_rig import told_of, unapplied
from tests.storage.store_rig import START_MS

HEX = GOLDEN / "format-2-slave.hex"
DUMP = list(records_in("format-2-slave"))


def test_a_promise_is_among_the_files() -> None:
    paths = list(decoded(HEX.read_text()))
    assert "promise" in paths
    assert {"MESSAGE", "EPOCH_START", "FACTS"} <= {record["kind"] for record in DUMP}


def test_a_node_goes_on_with_it_and_knows_what_it_promised_and_what_is_committed(
    tmp_path: Path,
) -> None:
    disk = DirectoryDisk(written(decoded(HEX.read_text()), tmp_path))
    manifest = read_manifest(disk, now_ms=START_MS)
    assert manifest.faults == ()
    store = unapplied(disk)
    assert PromiseFile(disk, store.identity.storage_uuid).read() == PROMISED
    # A start knows of its checkpoint alone that it is committed; the end of the log waits.
    assert manifest.log_next_sequence <= store.schedule.last_filed + 1
    assert store.schedule.last_filed + 1 < store.message_log.next_sequence
    assert store.message_log.next_sequence == manifest.durable_next_sequence
    store.apply_tail(store.message_log.next_sequence, now_ms=START_MS)
    messages = {one["sequence"] for one in DUMP if one["kind"] == "MESSAGE"}
    stated = {one["sequence"] for one in DUMP if one["kind"] == "FACTS"}
    assert stated & messages
    assert store.schedule.pending == len(messages - stated)
    assert told_of(store)["epoch"] == max(
        one["epoch"] for one in DUMP if one["kind"] == "EPOCH_START"
    )
    store.close()
