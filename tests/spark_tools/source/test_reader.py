"""What the data source reads, without Spark: the rows that a plain loop over the files finds.

Worlds with every fault in them, and directories that a server would leave.
"""

import pickle
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_tools.files.errors import DamagedInputError, OptionError, ReconcileError
from spark_tools.run.plan import Source
from spark_tools.run.source_options import ReadOptions, read_options
from spark_tools.source.parts import PartitionPlan, plan_partitions
from spark_tools.source.reader import read_partition
from storage.disk.disk import DirectoryDisk, File
from storage.disk.spans import DEAD_MINUTES_FROM, key_of_name
from storage.readers.manifest import Fault, Manifest, read_manifest
from tests.seeds import examples
from tests.spark_tools.oracle import MINUTES, tail_facts
from tests.spark_tools.worlds import FAULTS, T0, World, builder_of, world_of
from tests.storage.dead_rig import DeadRig
from tests.storage.plain_logs import Row, batches, plain_rows
from tests.storage.readers.test_arrow import DEAD, Segments, directory

TAILED = 6
"""The seed of a world with facts at the end of the message_log."""
RANGES = [(0, 10**9), (T0 - 3, T0 + 2), (T0 - 60, T0), (T0, T0 + 90), (T0 + 100, T0 + 3000)]


def options_of(kind: str, **given: str) -> ReadOptions:
    names = {"from_": "from"}
    return read_options(
        {"kind": kind, "roots": "a"} | {names.get(name, name): text for name, text in given.items()}
    )


def text_of(minute: int) -> str:
    import datetime as dt  # noqa: PLC0415 (here only)

    return dt.datetime.fromtimestamp(minute * 60, dt.UTC).isoformat()


def range_of(limits: tuple[int, int]) -> dict[str, str]:
    """Return the options of a range; none if it is everything."""
    if limits == RANGES[0]:
        return {}
    return {"from": text_of(limits[0]), "to": text_of(limits[1])}


def read(sources: Sequence[Source], options: ReadOptions) -> list[Row]:
    """Read all partitions, as Spark does: plans and tables come through pickles."""
    rows: list[Row] = []
    for plan in plan_partitions(sources, options):
        there: PartitionPlan = pickle.loads(pickle.dumps(plan))  # noqa: S301
        for table in read_partition(there, options):
            assert isinstance(table, pa.RecordBatch)
            assert table.schema.equals(options.schema)
            assert table.num_rows
            table.validate(full=True)
            rows += table.to_pylist()
    return rows


def segments_of(manifest: Manifest) -> list[Segments]:
    """Return the segments whose files are there."""
    found: list[Segments] = [*manifest.segments]
    return found + [one for one in manifest.sealed if not one.deleted]


def plain(world: World, kind: str) -> list[Row]:
    """Return every row of a kind that counts, in no order, with its filed minute."""
    manifest, rows = world.manifest, list[Row]()
    segments = segments_of(manifest)
    sealed = {one.file for one in manifest.sealed}
    for segment in segments:
        path, length = {
            "schedule": (segment.file, segment.length),
            "dispatch": (segment.facts_file, segment.facts_length),
        }.get(kind, ("", 0))
        if not length:
            continue
        key = key_of_name(path.rpartition("/")[2])
        assert key is not None
        for row in plain_rows(path, world.files[path], length):
            if kind == "schedule":
                row["is_sealed"] = segment.file in sealed
                minute = row["due_ms"] // 60_000  # type: ignore[operator]
                row["filed_minute"] = min(max(minute, key.start), key.end - 1)
            rows.append(row)
    if kind == "dispatch":
        rows += [
            row
            for row in tail_facts(world.files, manifest)
            if row["filed_minute"] < DEAD_MINUTES_FROM  # type: ignore[operator]
        ]
    if kind == "message":
        for log in manifest.message_log:
            rows += [
                row
                for row in plain_rows(log.file, world.files[log.file], log.length)
                if log.first_sequence <= row["sequence"] < log.next_sequence  # type: ignore[operator]
            ]
    return rows


def in_range(row: Row, limits: tuple[int, int]) -> bool:
    minute = row.get("filed_minute")
    return minute is not None and limits[0] <= minute < limits[1]  # type: ignore[operator]


def counted(rows: list[Row], names: Sequence[str]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.get(name) for name in names) for row in rows)


@examples(25)
@given(
    seed=st.integers(0, 2**32),
    faults=st.frozensets(st.sampled_from(FAULTS)),
    limits=st.sampled_from(RANGES),
    size=st.sampled_from([1, 900, 10**8]),
)
def test_what_is_read_is_what_a_plain_loop_finds(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    faults: frozenset[str],
    limits: tuple[int, int],
    size: int,
) -> None:
    world = world_of(seed, faults)
    source = world.written(tmp_path_factory.mktemp("world"))
    for kind in ("schedule", "dispatch", "message"):
        options = read_options(
            {"kind": kind, "roots": "a", "partition_bytes": str(size)}
            | range_of(limits)
            | ({"payload": "true"} if kind != "dispatch" else {})
        )
        wanted = plain(world, kind)
        if options.has_range:
            wanted = [row for row in wanted if in_range(row, limits)]
        names = options.columns[3:]
        rows = read([source], options)
        assert counted(rows, names) == counted(wanted, names)
        assert {(row["cluster"], row["group"], row["node"]) for row in rows} <= {("c", "g", "n1")}


@pytest.mark.parametrize("limits", RANGES)
@pytest.mark.parametrize("seed", range(4))
def test_what_is_filed_and_what_is_not_are_all_that_was_accepted_each_once(
    seed: int, limits: tuple[int, int], tmp_path: Path
) -> None:
    source = world_of(seed).written(tmp_path)
    more = range_of(limits) | {"columns": "sequence,filed_minute"}
    found: list[Row] = []
    for asked in ({"kind": "schedule"}, {"kind": "message", "unfiled": "true"}):
        found += read([source], read_options({"roots": "a"} | asked | more))
    accepted = [
        row for row in plain(world_of(seed), "message") if row["kind"] in {"message", "move"}
    ]
    wanted = [row for row in accepted if in_range(row, limits) or limits == RANGES[0]]
    assert counted(found, ["sequence"]) == counted(wanted, ["sequence"])
    assert max(counted(found, ["sequence"]).values(), default=1) == 1


@pytest.mark.parametrize("is_filed", [True, False])
def test_dead_letters_and_what_became_of_them_are_apart(is_filed: bool, tmp_path: Path) -> None:
    files, manifest = directory(DEAD[0])
    if not is_filed:
        rig = DeadRig(4)
        rig.open()
        for _ in range(700):
            rig.random_step()
        files, manifest = rig.disk.contents(), read_manifest(rig.disk, now_ms=rig.now_ms)
    world = World(dict(files), manifest)
    source = world.written(tmp_path)
    dead: list[Segments] = [*manifest.dead_segments]
    dead += [one for one in manifest.dead_sealed if not one.deleted]
    wanted = [row for one in dead for row in plain_rows(one.file, files[one.file], one.length)]
    rows = read([source], options_of("dead", payload="true"))
    names = ["sequence", "old_sequence", "old_minute", "dead_ms", "reason", "payload", "file"]
    assert wanted
    assert counted(rows, names) == counted(wanted, names)
    limit = sorted(row["old_minute"] for row in wanted)[len(wanted) // 2]  # type: ignore[type-var]
    assert isinstance(limit, int)
    rows = read([source], options_of("dead", from_=text_of(limit)))
    assert 0 < len(rows) == sum(row["old_minute"] >= limit for row in wanted)  # type: ignore[operator]
    facts = [
        row
        for one in dead
        if one.facts_length
        for row in plain_rows(one.facts_file, files[one.facts_file], one.facts_length)
    ]
    tail = [
        row
        for row in tail_facts(files, manifest)
        if row["filed_minute"] >= DEAD_MINUTES_FROM  # type: ignore[operator]
    ]
    assert is_filed or tail
    facts += tail
    names = ["sequence", "filed_minute", "at_ms", "outcome", "record"]
    assert counted(read([source], options_of("dispatch", about="dead")), names) == counted(
        facts, names
    )
    assert counted(read([source], options_of("dispatch")), names) == counted(
        plain(world, "dispatch"), names
    )


def test_segments_outside_of_the_range_are_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of(3)
    source = world.written(tmp_path)
    opened: list[str] = []
    plainly = DirectoryDisk.open_read

    def counting(disk: DirectoryDisk, path: str) -> File:
        opened.append(path)
        return plainly(disk, path)

    monkeypatch.setattr(DirectoryDisk, "open_read", counting)
    limits = (T0 - 2, T0 + 61)
    segments = segments_of(world.manifest)
    for kind, files in (
        ("schedule", {one.file: one for one in segments if one.length}),
        ("dispatch", {one.facts_file: one for one in segments if one.facts_length}),
    ):
        wanted = [
            file
            for file, one in files.items()
            if one.start_minute < limits[1] and one.start_minute + MINUTES[one.span] > limits[0]
        ]
        opened.clear()
        read([source], read_options({"kind": kind, "roots": "a"} | range_of(limits)))
        assert 0 < len(wanted) < len(files)
        assert sorted(path for path in opened if "message_log" not in path) == sorted(wanted)
    opened.clear()
    read([source], options_of("message", unfiled="true"))
    unfiled = [
        one.file
        for one in world.manifest.message_log
        if one.next_sequence > world.manifest.sequence + 1
    ]
    assert opened == unfiled
    assert len(unfiled) < len(world.manifest.message_log)


def test_small_files_go_together_and_a_large_one_is_alone(tmp_path: Path) -> None:
    world = world_of(3)
    source = world.written(tmp_path)
    files = len(world.manifest.segments) + len(world.manifest.sealed)
    assert len(plan_partitions([source], options_of("schedule"))) == 1
    few = plan_partitions([source], options_of("schedule", partition_bytes="300000"))
    assert 1 < len(few) < files
    many = plan_partitions([source], options_of("schedule", partition_bytes="400"))
    assert {len(plan.parts) for plan in many} == {1}
    for plan in few:
        assert len(plan.parts) == 1 or sum(part.weight for part in plan.parts) <= 300_000
    # A row is work, however small it is.
    [dispatch] = plan_partitions([source], options_of("dispatch"))
    assert all(part.weight == 256 * (part.count or 0) for part in dispatch.parts if part.count)
    # Rows come in the order of the files, however many go together.
    orders = [
        [
            (row["file"], row["position"], row["sequence"])
            for row in read([source], options_of("schedule", partition_bytes=size))
        ]
        for size in ("1", "400", "300000", "100000000")
    ]
    assert orders[0] == orders[1] == orders[2] == orders[3]


def test_without_any_rows_there_is_no_partition(tmp_path: Path) -> None:
    builder = builder_of(1, count=0)
    source = builder.build().written(tmp_path)
    for kind in ("schedule", "dispatch", "dead"):
        assert plan_partitions([source], options_of(kind)) == []


# -- nodes and groups ------------------------------------------------------------------------


def test_the_node_that_got_furthest_is_read_or_all_of_them(tmp_path: Path) -> None:
    builder = builder_of(4)
    sources = [builder.build(node=node).written(tmp_path / node) for node in ("n1", "n2")]
    columns = "node,sequence"
    alone = read(sources, options_of("schedule", columns=columns))
    assert {row["node"] for row in alone} == {"n2"}, "of equals the last by name"
    both = read(sources, options_of("schedule", columns=columns, replicas="all"))
    assert len(both) == 2 * len(alone)
    assert {row["node"] for row in both} == {"n1", "n2"}


def test_groups_are_chosen_by_name_and_must_be_there(tmp_path: Path) -> None:
    sources = [
        builder_of(seed).build(group=f"g{seed}").written(tmp_path / f"{seed}") for seed in (1, 2)
    ]
    found = read(sources, options_of("schedule", groups="g2", columns="group"))
    assert {row["group"] for row in found} == {"g2"}
    assert {row["group"] for row in read(sources, options_of("schedule"))} == {"g1", "g2"}
    with pytest.raises(OptionError, match="no manifest is of group g3"):
        plan_partitions(sources, options_of("schedule", groups="g1,g3"))


def test_nodes_that_are_no_replicas_and_directories_named_twice_are_refused(
    tmp_path: Path,
) -> None:
    source = world_of(1).written(tmp_path)
    with pytest.raises(ReconcileError, match="more than once"):
        plan_partitions([source, source], options_of("schedule"))
    other = msgspec.structs.replace(
        source.manifest, log_uuid="00000000-0000-4000-8000-000000000001", storage_uuid="x"
    )
    with pytest.raises(ReconcileError, match="not copies of each other"):
        plan_partitions([source, Source(other, source.root)], options_of("schedule"))


# -- what is not whole -----------------------------------------------------------------------


def hurt(world: World, path: str, chance: random.Random) -> None:
    """Spoil the columns of some batch."""
    data = world.files[path]
    hurt_at(world, path, chance.choice([position for position, _ in batches(data, len(data))]))


def hurt_at(world: World, path: str, position: int) -> None:
    """Spoil the columns of the batch at a position."""
    data = world.files[path]
    world.files[path] = data[: position + 90] + b"\xff\xfe\xfd" + data[position + 93 :]


def first_file(world: World, kind: str) -> str:
    manifest = world.manifest
    segment = max(segments_of(manifest), key=lambda one: one.length)
    return {
        "schedule": segment.file,
        "dispatch": segment.facts_file,
        "message": manifest.message_log[0].file,
        "tail": str(tail_facts(world.files, manifest)[0]["file"]),
    }[kind]


@pytest.mark.parametrize("size", ["1", "100000000"])
@pytest.mark.parametrize("kind", ["schedule", "dispatch", "message", "tail"])
def test_damage_ends_a_read_or_has_a_row_of_its_own(kind: str, size: str, tmp_path: Path) -> None:
    world = world_of(TAILED)
    path = first_file(world, kind)
    read_kind = "dispatch" if kind == "tail" else kind
    whole = read([world.written(tmp_path)], options_of(read_kind))
    [position, *_] = sorted({int(row["position"]) for row in whole if row["file"] == path})  # type: ignore[call-overload]
    hurt_at(world, path, position)
    source = world.written(tmp_path)
    with pytest.raises(DamagedInputError) as error:
        read([source], options_of(read_kind, partition_bytes=size))
    text = str(error.value)
    assert f"{path} at " in text
    assert f"`delaywheel log verify {tmp_path}`" in text
    assert "damage=skip" in text
    assert "node n1 of group g" in text
    options = options_of(read_kind, partition_bytes=size, damage="skip")
    rows = read([source], options)
    told = [row for row in rows if row["damage"] is not None]
    there = [row for row in rows if row["damage"] is None]
    assert told
    assert {row["file"] for row in told} == {path}
    assert all(row["node"] == "n1" and row["position"] is not None for row in told)
    assert all(row["sequence"] is None for row in told)
    assert 0 < len(there) < len(whole)
    assert not counted(there, ["sequence", "file"]) - counted(whole, ["sequence", "file"])
    only = read([source], options_of(read_kind, partition_bytes=size, damage="only"))
    assert only == told


def test_fewer_rows_than_the_manifest_says_are_damage(tmp_path: Path) -> None:
    world = world_of(TAILED)
    first, *others = world.manifest.sealed
    changed = msgspec.structs.replace(first, rows=first.rows + 1)
    world.manifest = msgspec.structs.replace(world.manifest, sealed=(changed, *others))
    source = world.written(tmp_path)
    for size in ("1", "100000000"):
        with pytest.raises(DamagedInputError, match=f"{first.file} has .* rows, not "):
            read([source], options_of("schedule", partition_bytes=size))
        told = read([source], options_of("schedule", damage="only", partition_bytes=size))
        assert [row["file"] for row in told] == [first.file]


def test_what_a_manifest_lacks_is_damage_whatever_is_read(tmp_path: Path) -> None:
    world = world_of(TAILED)
    world.manifest = msgspec.structs.replace(
        world.manifest,
        faults=(Fault(file="seals", position=3, reason="bad"),),
        quarantined=("quarantine/x",),
    )
    source = world.written(tmp_path)
    for kind in ("schedule", "dispatch", "message", "dead"):
        with pytest.raises(DamagedInputError, match="seals at 3: bad"):
            read([source], options_of(kind))
        only = read([source], options_of(kind, damage="only"))
        assert [(row["file"], row["position"]) for row in only] == [
            ("seals", None),
            ("quarantine/x", None),
        ]
        assert "put aside" in str(only[1]["damage"])
