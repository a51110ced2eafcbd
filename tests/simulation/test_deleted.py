"""The checkers get back what was deleted for good reason, and hear of everything else."""

from collections import Counter
from uuid import UUID

import pytest

from storage.state.checkpoint import Checkpoint, RetiredFile, write_checkpoint
from tests.simulation import independent_reader as reader
from tests.simulation.deleted import CHECKPOINT, Deleted
from tests.simulation.determinism import run_deterministic
from tests.simulation.disk import SimDisk
from tests.simulation.mutant_scenarios import GRACE
from tests.simulation.witness import Witness
from tests.simulation.world import World, quiet

_SEED = 1


@pytest.fixture(scope="module")
def world() -> World:
    world = World(_SEED, scenario=GRACE)
    with quiet():
        run_deterministic(_SEED, world.run, limit_s=world.length_s * 2 + 20 * 86_400)
    assert world.witness.complaints == []
    return world


def directories(paths: set[str]) -> Counter[str]:
    return Counter(path.rpartition("/")[0] for path in paths)


class CheckpointWork:
    """Deletes as the server's does."""

    def _unlink(self, disk: SimDisk, path: str) -> None:
        disk.unlink(path)


def test_what_was_deleted_for_good_reason_is_put_back(world: World) -> None:
    files = world.node.disk.contents()
    whole = world.deleted.with_files(files)
    back = directories(set(whole) - set(files))
    assert set(back) == {"message_log", "schedule_log", "dispatch_log", "seals"}
    assert min(name for name in whole if name.startswith("message_log/0")).endswith("0001.log")
    assert whole.items() >= files.items()
    split = {path for path in world.deleted.files if path.endswith((".hour", ".day"))}
    assert split
    assert not split & set(whole)


def test_what_is_missing_for_another_reason_stays_missing(world: World) -> None:
    files = world.node.disk.contents()
    checkpoint = reader.read_checkpoint(files[CHECKPOINT])
    newest = max(path for path in files if path.startswith("message_log/0"))
    assert int(newest[-24:-4]) >= checkpoint.first_sequence
    deleted = Deleted(world.witness, world.clock)
    deleted.files = dict(world.deleted.files) | {newest: files.pop(newest)}
    segment = "schedule_log/20300101T0000Z.minute"
    deleted.files[segment] = b"of which no seal tells"
    assert not {newest, segment} & deleted.with_files(files).keys()


@pytest.mark.parametrize(
    ("since_ms", "finding"),
    [
        (None, "kept: x is deleted, and no checkpoint lists it"),
        (-5000, "kept: x is deleted after 5000 of 60000 ms"),
        (-60_000, None),
    ],
)
def test_a_file_that_is_deleted_unlisted_or_too_early_is_found(
    since_ms: int | None, finding: str | None
) -> None:
    world = World(_SEED)

    async def delete() -> None:
        disk = world.node.disk
        disk.open("x", create=True).write_at(0, [b"data"])
        disk.make_directory("checkpoint")
        disk.sync_directory("")
        retired = [] if since_ms is None else [RetiredFile("x", world.clock.now_ms() + since_ms)]
        write_checkpoint(disk, UUID(int=1), Checkpoint(retired=tuple(retired)))
        world.deleted.watch(disk, grace_ms=60_000)
        CheckpointWork()._unlink(disk, "x")

    run_deterministic(_SEED, delete, limit_s=10)
    assert world.witness.complaints == ([finding] if finding else [])
    assert world.deleted.files == {"x": b"data"}


def test_a_deleted_name_that_is_back_unlisted_is_found(world: World) -> None:
    files = world.node.disk.contents(durable=True)
    deleted = Deleted(Witness(world.clock), world.clock)
    deleted.files = dict(world.deleted.files)
    deleted.check_end_of_life(files)
    assert deleted.witness.complaints == []
    path = min(deleted.files)
    deleted.check_end_of_life(files | {path: b"back"})
    assert deleted.witness.complaints == [f"bounded: {path} was deleted, and is there unlisted"]
