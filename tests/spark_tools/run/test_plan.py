"""Promise: where seals, or the checkpoint, cannot be read, nothing is said to be wrong for it.

Which minutes a lost seal was of nobody knows: so of minutes without a segment nobody can say which
records have a row, and what became of them.
"""

import random
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_tools.files.errors import ReconcileError
from spark_tools.page.figures import done, due, times
from spark_tools.page.page import page
from spark_tools.repair.repair import Why
from spark_tools.run.document import document_of
from spark_tools.run.plan import Request, Source
from spark_tools.run.reconcile import FINDING_CLASSES, Verdict
from spark_tools.run.report import report
from spark_tools.source.manifests import source_of_file
from storage.readers.manifest import Fault, encode_manifest, read_manifest
from tests.seeds import examples
from tests.spark_tools.repair.test_repair import found_in, repaired, whys
from tests.spark_tools.repair_worlds import sealed_builder
from tests.spark_tools.run.test_reconcile import at, check, run, whole, whole_builder
from tests.spark_tools.worlds import FAULTS, World, builder_of
from tests.storage.dead_rig import DeadRig
from tests.storage.plain_logs import batches

SEALS = "seals/00000000000000000001.log"


def without_seals(world: World, chance: random.Random, file: str = SEALS) -> World:
    """Return a world of which some seals cannot be read."""
    kept = tuple(one for one in world.manifest.sealed if chance.random() < 0.5)
    fault = Fault(file=file, position=64, reason="bad")
    return World(world.files, msgspec.structs.replace(world.manifest, sealed=kept, faults=(fault,)))


@examples(40)
@given(seed=st.integers(0, 2**32), faults=st.frozensets(st.sampled_from(FAULTS)))
@example(seed=1698, faults=frozenset({"deleted"}))
def test_less_is_found_without_seals_and_never_more(seed: int, faults: frozenset[str]) -> None:
    world = builder_of(seed, faults).build()
    with TemporaryDirectory() as root:
        before, found_before = run([world.written(Path(root, "a"))])
        lacking = without_seals(world, random.Random(seed))
        after, found = run([lacking.written(Path(root, "b"))])
        assert after.problems
        assert after.verdict is not Verdict.CLEAN
        columns = ("class", "sequence")
        names = Counter(zip(*(found[name].to_pylist() for name in columns), strict=True))
        known = Counter(zip(*(found_before[name].to_pylist() for name in columns), strict=True))
        more = {one for one in names - known if one[0] in FINDING_CLASSES}
        assert not more
        # What is held against rows is one or the other.
        totals, whole_totals = after.groups[0].account.totals, before.groups[0].account.totals
        assert totals["missing"] <= whole_totals["missing"]


@pytest.mark.parametrize("file", [SEALS, "seals", "checkpoint/checkpoint"])
def test_what_no_known_segment_covers_is_unchecked(file: str, tmp_path: Path) -> None:
    world = whole()
    [seal] = world.manifest.sealed
    lacking = without_seals(world, random.Random(1), file)
    lacking.manifest = msgspec.structs.replace(lacking.manifest, sealed=())
    result, findings = run([lacking.written(tmp_path)])
    totals = result.groups[0].account.totals
    assert (result.verdict, findings.num_rows) == (Verdict.INCOMPLETE, 0)
    assert (totals["unchecked"], totals["missing"]) == (seal.rows, 0)


def test_replicas_of_which_one_lacks_seals_are_not_compared(tmp_path: Path) -> None:
    builder = builder_of(4)
    first, second = builder.build(node="n1"), builder.build(node="n2")
    for number, sources in enumerate(
        (
            [without_seals(first, random.Random(1)), second],
            [first, without_seals(second, random.Random(1))],
        )
    ):
        result, _ = run(
            [one.written(tmp_path / f"{number}{one.manifest.node_id}") for one in sources]
        )
        assert result.problems
        assert not result.findings["replica_differs"]


@pytest.mark.parametrize("file", [SEALS, "checkpoint/checkpoint", "message_log/durable_end"])
def test_repair_sends_nothing_that_may_be_in_what_cannot_be_read(file: str, tmp_path: Path) -> None:
    builder = sealed_builder(lost=0, missing=12)
    source = builder.build().written(tmp_path / "data")
    bare = Source(msgspec.structs.replace(source.manifest, sealed=()), source.root)
    found = found_in(bare)
    assert found[0].findings["missing"] == 12
    assert len(repaired(bare, found)[0]) == 12
    fault = Fault(file=file, position=0, reason="bad")
    for changes in ({"faults": (fault,)}, {"deleted_from_minute": 2**31}):
        lacking = Source(msgspec.structs.replace(bare.manifest, **changes), bare.root)
        result, _ = found_in(lacking)
        assert result.problems
        assert repaired(lacking)[0] == []
        # As if the findings were of a time when all was there.
        messages, left = repaired(lacking, (result, found[1]))
        assert messages == []
        assert whys(left) == {Why.UNREADABLE: 12}


def test_lost_in_a_segment_that_is_known_is_sent_without_other_seals(tmp_path: Path) -> None:
    source = sealed_builder(lost=3).build().written(tmp_path / "data")
    fault = Fault(file=SEALS, position=0, reason="bad")
    lacking = Source(msgspec.structs.replace(source.manifest, faults=(fault,)), source.root)
    assert found_in(lacking)[0].problems
    assert len(repaired(lacking)[0]) == 3


# -- what is accepted and missing ------------------------------------------------------------


def test_what_is_missing_is_not_complete(tmp_path: Path) -> None:
    source = sealed_builder(lost=2, missing=3, count=12).build().written(tmp_path)
    result, _ = run([source], Request())
    document = document_of(report(result))
    [column] = times(document, columns_max=9).columns
    there = sum(document.groups[0].rows.values())
    assert due(column.counts) == there + 3 == done(column.counts) + 5
    text = page(document)
    assert "3 more were accepted and are missing" in text
    assert "All that this run looks at could be read" not in text


def test_missing_is_counted_by_hour_and_subject(tmp_path: Path) -> None:
    found = 0
    for seed in range(3):
        world = builder_of(seed, frozenset({"missing"})).build()
        result = check(world, tmp_path / f"{seed}")
        rows = report(result)["groups"][0]["by_subject"]
        keys = [(row["hour"], row["subject"]) for row in rows]
        assert len(set(keys)) == len(keys)
        told = sum(row.get("missing", 0) for row in rows)
        assert told == result.findings["missing"]
        found += told
    assert found


def test_the_page_says_what_a_run_leaves_out(tmp_path: Path) -> None:
    builder = whole_builder()
    [key] = builder.rows
    late = builder.messages[0]
    late.due_ms -= 86_400_000
    late.floor = key.start
    worlds = [builder.build(node=node) for node in ("n1", "n2")]
    del worlds[0].files[key.facts_path]
    sources = [one.written(tmp_path / one.manifest.node_id) for one in worlds]
    text = page(document_of(report(run(sources)[0])))
    _, _, left_out = text.partition("What this run leaves out")
    for said in (
        "bytes were not looked at",
        "What became of dead letters",
        "The message_log of replicas",
        "1 message sent past due and delivered",
        "1 hour not compared between replicas",
    ):
        assert said in left_out, said


def with_damaged_item(world: World, prefix: str) -> str:
    """Change a byte of a message in the file that begins so; return its path."""
    path = at(world, prefix)
    data = world.files[path]
    # The largest batch has messages: their bytes are at its end.
    position, size = max(batches(data, len(data)), key=lambda one: one[1])
    end = position + size - 3
    world.files[path] = data[:end] + bytes([data[end] ^ 1]) + data[end + 1 :]
    return path


@pytest.mark.parametrize("prefix", ["schedule_log", "message_log"])
def test_damaged_payload_is_found_if_asked_for(prefix: str, tmp_path: Path) -> None:
    world = whole()
    checked = Request(check_payload=True)
    clean, _ = run([world.written(tmp_path / "whole")], checked)
    assert clean.verdict is Verdict.CLEAN
    document = report(clean)
    assert document["parameters"]["payload_checked"] is True
    assert "bytes were not looked at" not in page(document_of(document))
    path = with_damaged_item(world, prefix)
    source = world.written(tmp_path / "damaged")
    blind, _ = run([source], Request())
    assert blind.verdict is Verdict.CLEAN, "as docs/reconciliation.md says"
    result, findings = run([source], checked)
    assert (result.verdict, findings.num_rows) == (Verdict.INCOMPLETE, 0)
    assert result.groups[0].account.totals == blind.groups[0].account.totals
    assert all(path in problem for *_, problem in result.problems)


@pytest.mark.parametrize("prefix", ["schedule_log", "dispatch_log"])
def test_damaged_dead_letters_are_found_if_asked_for(prefix: str, tmp_path: Path) -> None:
    rig = DeadRig(7)
    rig.open()
    rig.split(100)
    rig.commit([rig.now_ms + 10 * place for place in range(6)])
    rig.file(10)
    rig.load(steps=100)
    rig.now_ms += 1000
    rig.bury(4)
    rig.deliver()
    rig.file(10)
    rig.settle(1, requeue=False)
    rig.file(10)
    rig.load(steps=100)
    rig.cross_off()
    rig.checkpoint()
    world = World(rig.disk.contents(), read_manifest(rig.disk, now_ms=rig.now_ms))
    checked = Request(check_payload=True)
    whole_, _ = run([world.written(tmp_path / "whole")], checked)
    assert whole_.verdict is Verdict.CLEAN, whole_.problems
    [dead] = world.manifest.dead_segments
    path, length = {
        "schedule_log": (dead.file, dead.length),
        "dispatch_log": (dead.facts_file, dead.facts_length),
    }[prefix]
    data = world.files[path]
    world.files[path] = data[: length - 3] + bytes([data[length - 3] ^ 1]) + data[length - 2 :]
    result, findings = run([world.written(tmp_path / "damaged")], checked)
    assert (result.verdict, findings.num_rows) == (Verdict.INCOMPLETE, 0)
    assert path in result.problems[0][-1]


# -- manifests that were changed -------------------------------------------------------------


def test_a_manifest_that_was_changed_is_refused(tmp_path: Path) -> None:
    source = whole().written(tmp_path)
    file = tmp_path / "m.json"
    text = encode_manifest(source.manifest)
    file.write_bytes(text)
    assert source_of_file(f"{file}={tmp_path}") == source
    file.write_bytes(text.replace(b'"rows":', b'"rows":1', 1))
    with pytest.raises(ReconcileError, match=r"m\.json: manifest changed .*; make it again with"):
        source_of_file(f"{file}={tmp_path}")
