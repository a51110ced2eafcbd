"""Each manifest of a directory hangs together, and one that does not is told from it, by field."""

from typing import Any

import msgspec
import pytest

from storage.readers.manifest import (
    Fault,
    Manifest,
    decode_manifest,
    encode_manifest,
    read_manifest,
)
from storage.readers.manifest_check import Contradiction, contradiction_in
from tests.damage.directory import populated
from tests.storage.dead_rig import DeadRig
from tests.storage.small_logs import disk_of
from tests.storage.store_rig import StoreRig


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return dict(populated(3).files)


@pytest.fixture(scope="module")
def manifest(files: dict[str, bytes]) -> Manifest:
    found = read_manifest(disk_of(files), now_ms=10**12)
    assert found.faults == ()
    assert found.sealed
    assert found.segments
    assert any(one.facts for one in found.segments)
    assert len(found.message_log) > 1
    return found


@pytest.mark.parametrize("rig_class", [StoreRig, DeadRig])
@pytest.mark.parametrize("seed", range(3))
def test_what_a_node_leaves_at_any_moment_hangs_together(
    rig_class: type[StoreRig], seed: int
) -> None:
    rig = rig_class(seed)
    rig.open()
    for _ in range(12):
        for _ in range(rig.chance.randrange(30)):
            rig.random_step()
        found = read_manifest(rig.disk, now_ms=rig.now_ms)
        assert found.faults == ()
        assert contradiction_in(found) is None


def test_what_is_gone_is_a_fault_and_no_contradiction(files: dict[str, bytes]) -> None:
    for path in sorted(files):
        if path == "identity":
            continue
        found = read_manifest(
            disk_of({name: data for name, data in files.items() if name != path}), now_ms=1
        )
        assert contradiction_in(found) is None, path


ENDS = ("log_next_sequence", "durable_next_sequence")


def changed_in(manifest: Manifest, name: str, **changes: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the change of the first file of a list; segments with facts come first."""
    first, *others = sorted(getattr(manifest, name), key=lambda one: not getattr(one, "facts", 0))
    return {name: (msgspec.structs.replace(first, **changes), *others)}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda _: {"message_log": ()}, "message_log"),
        (lambda one: {"message_log": one.message_log[1:]}, "message_log[0]"),
        (lambda one: {"message_log": one.message_log[::2]}, "message_log[1]"),
        (lambda _: {"log_next_sequence": 0}, "sequence"),
        (lambda one: {"log_next_sequence": one.log_next_sequence + 9}, "log_next_sequence"),
        (lambda one: dict.fromkeys(ENDS, one.log_next_sequence + 9), "message_log"),
        (lambda _: {"first_sequence": 2**62}, "first_sequence"),
        (lambda one: changed_in(one, "message_log", file="../x"), "message_log[0].file"),
        (
            lambda one: changed_in(one, "message_log", first_sequence=2),
            "message_log[0].first_sequence",
        ),
        (lambda one: changed_in(one, "sealed", start_minute=5), "sealed[0].start_minute"),
        (lambda one: changed_in(one, "sealed", span="day"), "sealed[0].span"),
        (lambda one: changed_in(one, "sealed", digest="x"), "sealed[0].digest"),
        (lambda one: changed_in(one, "sealed", sealed_ms=10**18), "sealed[0].sealed_ms"),
        (lambda one: changed_in(one, "sealed", outcomes={"known": -1}), "sealed[0].outcomes"),
        (lambda one: changed_in(one, "segments", file="x"), "segments[0].file"),
        (lambda one: changed_in(one, "segments", facts_file="x"), "segments[0].facts_file"),
        (lambda one: changed_in(one, "segments", rows=2**63), "segments[0].rows"),
        (lambda one: changed_in(one, "segments", last_fact=0), "segments[0].last_fact"),
        (lambda one: changed_in(one, "segments", last_fact=2**63), "segments[0].last_fact"),
        (lambda one: {"dead_sealed": one.sealed[:1]}, "dead_sealed[0].span"),
        (lambda _: {"made_ms": 10**18}, "made_ms"),
        (lambda _: {"log_uuid": "x"}, "log_uuid"),
        (lambda _: {"floor_minute": 2**70}, "floor_minute"),
    ],
)
def test_what_was_changed_is_named_by_its_field(
    manifest: Manifest,
    change: Any,  # noqa: ANN401 (a lambda for each)
    field: str,
) -> None:
    other = decode_manifest(
        encode_manifest(msgspec.structs.replace(manifest, **change(manifest))), path="m"
    )
    found = contradiction_in(other)
    assert isinstance(found, Contradiction)
    assert found.field == field, found


def test_a_fault_may_tell_why_a_log_does_not_hang_together(manifest: Manifest) -> None:
    fault = Fault(file="message_log/x", position=0, reason="gone")
    changed = msgspec.structs.replace(manifest, message_log=(), faults=(fault,))
    assert contradiction_in(changed) is None
