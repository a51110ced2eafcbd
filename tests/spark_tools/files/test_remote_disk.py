"""What is read from a store elsewhere is what is read here, in few requests; errors say what to do.

The store is pyarrow's own, or one that speaks S3 on loopback.
"""

import json
import os
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from spark_tools.files import remote_disk as module
from spark_tools.files.errors import DamagedInputError, RemoteError
from spark_tools.files.remote_disk import RemoteDisk, RemoteFile, remote_disk
from spark_tools.judge.account import FINDINGS_SCHEMA
from spark_tools.run.local import local_engine
from spark_tools.run.plan import Request, Source, make_plan
from spark_tools.run.reconcile import Verdict, reconcile
from spark_tools.run.report import encode_report, report
from spark_tools.run.source_options import read_options
from spark_tools.source.manifests import source_of_directory, source_of_file
from storage.batch.batches import Damage
from storage.batch.file_header import FileHeader, LogKind
from storage.batch.walk import walk_headers
from storage.disk.disk import DirectoryDisk
from storage.logs.message_log import MessageLog
from storage.readers.arrow import ArrowReader, Kind
from storage.readers.manifest import encode_manifest
from tests.delaywheel.spark.test_commands import directory
from tests.seeds import examples
from tests.spark_tools.run.test_reconcile import run
from tests.spark_tools.s3_server import Store
from tests.spark_tools.source.test_reader import read
from tests.spark_tools.worlds import FAULTS, World, world_of
from tests.storage.small_logs import LOG_UUID, NOW_MS, messages, recover
from tests.storage.small_segments import segment_disk


class Counting:
    """A source that tells what it was asked for."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[tuple[int, int]] = []

    def size(self) -> int:
        return len(self.data)

    def read_at(self, size: int, position: int) -> bytes:
        assert 0 <= position <= position + size <= len(self.data)
        self.asked.append((position, size))
        return self.data[position : position + size]


READS = st.lists(st.tuples(st.integers(0, 320), st.integers(0, 150)), max_size=12)


@examples(200)
@given(size=st.integers(0, 300), least=st.integers(1, 90), reads=READS)
def test_every_read_is_that_of_a_local_file(
    size: int, least: int, reads: list[tuple[int, int]]
) -> None:
    source = Counting(bytes(range(256)) * 2)
    source.data = source.data[:size]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "READ_BYTES", least)
        file = RemoteFile("a", "s3://b/a", source)
        for position, wanted in reads:
            assert file.read_at(position, wanted) == source.data[position : position + wanted]
            assert len(file._window) <= max(wanted for _, wanted in reads) + least
    assert file.size() == size


@given(steps=st.lists(st.integers(1, 70), min_size=1), least=st.integers(1, 200))
def test_what_is_read_in_order_is_asked_for_once_and_in_large_pieces(
    steps: list[int], least: int
) -> None:
    source = Counting(bytes(sum(steps)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "READ_BYTES", least)
        file, position = RemoteFile("a", "s3://b/a", source), 0
        for step in steps:
            # A reader looks at a header before it reads what follows.
            file.read_at(position, 5)
            file.read_at(position, step)
            position += step
    assert sum(size for _, size in source.asked) == position
    assert all(size >= least for _, size in source.asked[:-1])


def test_names_and_what_is_missing_are_those_of_a_local_disk(tmp_path: Path) -> None:
    for name in ("a/x", "a/y", "a/deep/z"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    here = DirectoryDisk(tmp_path)
    below = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    there = RemoteDisk(str(tmp_path), below, "")
    for name in ("a", "a/deep", "b", "a/x/none"):
        assert there.exists(name) == here.exists(name)
        if not (tmp_path / name).is_file() and name != "a/x/none":
            assert there.list(name) == here.list(name)
    file = there.open_read("a/deep/z")
    assert (file.path, file.size(), file.read_at(2, 100)) == ("a/deep/z", 8, b"deep/z")
    file.close()
    for disk in (here, there):
        with pytest.raises(FileNotFoundError, match="No such file or directory") as error:
            disk.open_read("a/none")
        assert isinstance(disk, DirectoryDisk) or error.value.filename == f"{tmp_path}/a/none"


def test_a_wrong_name_at_the_beginning_is_no_missing_file() -> None:
    system = fs._MockFileSystem()
    system.create_dir("logs/node")
    with pytest.raises(FileNotFoundError):
        RemoteDisk("mock://logs/node", system, "logs/node").open_read("identity")
    with pytest.raises(RemoteError, match="mock://log/node is nowhere: there is no log; look at"):
        RemoteDisk("mock://log/node", system, "log/node").open_read("identity")


# -- a store that speaks S3 --------------------------------------------------------------------


def stored(world: World, store: Store, bucket: str) -> Source:
    """Write a world, and its manifest beside it; return it as it is here."""
    source = world.written(store.root / bucket / "n=1")
    (store.root / bucket / "m.json").write_bytes(encode_manifest(world.manifest))
    return source


def found(source: Source) -> tuple[bytes, list[dict[str, Any]]]:
    result, findings = run([source], Request(max_late_ms=1000, rows_at_once=20))
    text = encode_report(report(result))
    return text.replace(source.root.encode(), b"ROOT"), findings.to_pylist()


def cut_short(world: World) -> None:
    path = max(world.manifest.sealed, key=lambda one: one.length).file
    world.files[path] = world.files[path][:-9]


def taken_away(world: World) -> None:
    del world.files[max(world.manifest.sealed, key=lambda one: one.length).file]


@pytest.mark.parametrize("wrong", [None, cut_short, taken_away])
def test_a_run_on_a_copy_finds_what_a_run_here_does_byte_for_byte(
    wrong: Callable[[World], None] | None, s3: Store, request: pytest.FixtureRequest
) -> None:
    bucket = f"run-{request.node.callspec.indices['wrong']}"
    for seed in (6, 7):
        world = world_of(seed, frozenset(FAULTS) - {"deleted"})
        if wrong is not None:
            wrong(world)
        here = stored(world, s3, bucket)
        there = source_of_file(f"s3://{bucket}/m.json=s3://{bucket}/n=1")
        assert there.manifest == here.manifest
        first, second = found(here), found(there)
        assert second == first
        assert len(first[1]) > 5
        assert wrong is None or not json.loads(first[0])["complete"]


def test_a_file_that_is_shorter_than_it_should_be_is_never_no_loss(s3: Store) -> None:
    world = world_of(3)
    stored(world, s3, "short")
    source = source_of_file("s3://short/m.json=s3://short/n=1")
    assert run([source], Request())[0].verdict is Verdict.CLEAN
    cut_short(world)
    stored(world, s3, "short")
    result, _ = run([source], Request())
    assert result.verdict is Verdict.INCOMPLETE
    with pytest.raises(DamagedInputError, match="hold it against its original, or copy it anew"):
        read([source], read_options({"kind": "schedule", "roots": "a"}))


def test_processes_of_their_own_make_their_own_connections(s3: Store) -> None:
    stored(world_of(6, frozenset(FAULTS)), s3, "spawned")
    source = source_of_file("s3://spawned/m.json=s3://spawned/n=1")
    tables: list[pa.Table] = []
    engine = local_engine(2)
    reconcile(make_plan([source], Request(max_late_ms=1000)), engine, tables.append)
    rows = [row for table in tables for row in table.to_pylist()]
    assert sorted(map(repr, rows)) == sorted(map(repr, run([source])[1].to_pylist()))
    assert rows
    assert set(rows[0]) == set(FINDINGS_SCHEMA.names)


def test_the_manifest_of_a_copy_is_that_of_the_directory(s3: Store) -> None:
    data = directory(s3.root / "manifests" / "a" / "node")
    here = source_of_directory(str(data), now_ms=NOW_MS, from_minute=0)
    there = source_of_directory("s3a://manifests/a/node/", now_ms=NOW_MS, from_minute=0)
    assert there.manifest == here.manifest
    assert here.manifest.log_next_sequence > 5
    (data / "message_log" / "00000000000000000001.log").unlink()
    there = source_of_directory("s3://manifests/a/node", now_ms=NOW_MS, from_minute=0)
    assert there.manifest.faults


def test_what_nobody_asks_for_is_not_sent(s3: Store) -> None:
    disk = segment_disk()
    log, _ = recover(disk, file_bytes_max=1 << 30)
    item = os.urandom(700_000)
    for _ in range(8):
        _append(log, [item] * 4)
    [(path, data)] = [(p, d) for p, d in disk.contents().items() if p.endswith(".log")]
    (s3.root / "hopped" / "message_log").mkdir(parents=True)
    (s3.root / "hopped" / path).write_bytes(data)
    s3.read, s3.asked["GET"] = 0, 0
    reader = ArrowReader(remote_disk("s3://hopped"), LOG_UUID, Kind.MESSAGE, ["sequence"])
    tables = list(
        reader.messages(path, length=len(data), first_sequence=1, next_sequence=log.next_sequence)
    )
    rows = [table.num_rows for table in tables if not isinstance(table, Damage)]
    assert sum(rows) == log.next_sequence - 1
    assert s3.asked["GET"] <= 10
    assert s3.read < len(data) / 2
    # Headers of small batches lie close together: one request brings many.
    disk = segment_disk()
    log, _ = recover(disk, file_bytes_max=1 << 30)
    for _ in range(300):
        _append(log, [item[:2000]] * 4)
    [(path, data)] = [(p, d) for p, d in disk.contents().items() if p.endswith(".log")]
    (s3.root / "hopped" / path).write_bytes(data)
    s3.asked["GET"] = 0
    header = FileHeader(kind=LogKind.MESSAGE_LOG, log_uuid=LOG_UUID)
    headers = list(walk_headers(remote_disk("s3://hopped"), path, len(data), header))
    assert len(headers) == 301
    assert len(data) > 2_000_000
    assert s3.asked["GET"] <= 5


def _append(log: MessageLog, items: list[bytes]) -> None:
    log.append([messages(items)], append_ms=NOW_MS)


# -- errors ------------------------------------------------------------------------------------


def complaint(root: str) -> str:
    with pytest.raises(RemoteError) as error:
        source_of_directory(root, now_ms=NOW_MS, from_minute=0)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 700
    return str(error.value)


def test_no_bucket_no_credentials_and_no_network_are_told_with_what_to_do(
    s3: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ATTEMPTS", 1)
    for name in ("HADOOP_HOME", "ARROW_LIBHDFS_DIR", "CLASSPATH"):
        monkeypatch.delenv(name, raising=False)
    said = complaint("hdfs://127.0.0.1:1/node")
    assert "hdfs://127.0.0.1:1/node" in said
    assert "look at JAVA_HOME, HADOOP_HOME and CLASSPATH" in said
    directory(s3.root / "erring" / "node")
    assert "s3://errin/node is nowhere: there is no errin; look at" in complaint("s3://errin/node")
    s3.failing["node/identity"] = HTTPStatus.INTERNAL_SERVER_ERROR
    try:
        assert "cannot be reached: look at the network" in complaint("s3://erring/node")
    finally:
        s3.failing.clear()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    said = complaint("s3://erring/node")
    assert said.startswith("s3://erring/node/identity may not be read with these credentials")
    assert "set AWS_ACCESS_KEY_ID" in said
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    said = complaint("s3://erring/node")
    assert "s3://erring/node/identity cannot be reached: look at the network and AWS_ENDP" in said


def test_a_request_that_fails_now_and_then_is_made_again(
    s3: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory(s3.root / "flaky" / "node")
    monkeypatch.setattr(s3, "failing_once", {"identity", "checkpoint", "durable_end"})
    source = source_of_directory("s3://flaky/node", now_ms=NOW_MS, from_minute=0)
    assert not source.manifest.faults
    assert not s3.failing_once


def test_a_read_that_fails_in_the_middle_ends_the_run_and_is_no_damage(
    s3: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ATTEMPTS", 1)
    world = world_of(6)
    stored(world, s3, "middle")
    source = source_of_file("s3://middle/m.json=s3://middle/n=1")
    s3.failing[max(world.manifest.sealed, key=lambda one: one.length).file] = (
        HTTPStatus.SERVICE_UNAVAILABLE
    )
    try:
        with pytest.raises(RemoteError, match="cannot be reached"):
            run([source])
    finally:
        s3.failing.clear()


@pytest.mark.parametrize(
    ("root", "wanted"),
    [
        ("s3://key:hush@logs/node", "a s3 URI must have no secret in it"),
        ("abfs://logs@account/node?client_secret=hush", "must have no secret in it"),
        ("s3://somebody@logs/node", "begin with the name of a bucket"),
        ("s3:///node", "begin with the name of a bucket"),
        ("s3://logs/node?colour=red", "unknown parameter colour"),
        ("floppy://logs/node", "Unrecognized filesystem type"),
        ("file://elsewhere/node", "is of another machine"),
    ],
)
def test_a_uri_that_names_nothing_or_a_secret_is_refused(root: str, wanted: str) -> None:
    said = complaint(root)
    assert wanted in said
    assert "hush" not in said


def test_a_bucket_is_asked_for_its_region_only_where_nobody_says_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def region_of(root: str) -> str:
        return str(remote_disk(root)._system.region)

    asked: list[str] = []

    def answer(bucket: str) -> str:
        asked.append(bucket)
        return "eu-west-3"

    monkeypatch.setattr(fs, "resolve_s3_region", answer)
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    assert region_of("s3://logs/a?region=eu-west-1") == "eu-west-1"
    assert asked == []
    assert region_of("s3://logs/b") == "eu-west-3"
    assert asked == ["logs"]
    monkeypatch.setenv("AWS_REGION", "eu-west-2")
    assert region_of("s3://logs/b") == "eu-west-2"
    assert region_of("s3://logs/b?region=eu-west-1") == "eu-west-1"
    assert asked == ["logs"]


def test_file_uris_are_directories_of_this_machine() -> None:
    with TemporaryDirectory() as name:
        data = directory(Path(name) / "with space")
        for root in (data.as_uri(), f"file:{data.as_uri().removeprefix('file://')}"):
            source = source_of_directory(root, now_ms=NOW_MS, from_minute=0)
            assert run([source])[0].verdict is Verdict.CLEAN
            (data / "m.json").write_bytes(encode_manifest(source.manifest))
            assert source_of_file(f"{root}/m.json").root == root
