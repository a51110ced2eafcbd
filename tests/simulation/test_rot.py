"""A flipped bit hits something durable, once, and excuses no more than it has to."""

import random
from collections import Counter

import pytest

from storage.disk.errors import DamagedError, FatalDiskError
from tests.seeds import seeds_in_parts
from tests.simulation import independent_reader as reader
from tests.simulation.clock import SimClock
from tests.simulation.crash import Ending
from tests.simulation.determinism import derive, run_deterministic
from tests.simulation.disk import SimDisk
from tests.simulation.rot import LOST, Rot, ids_by_sequence, sequences_of
from tests.simulation.witness import Witness
from tests.simulation.world import World, quiet

LATER_MS = 1 << 45
_WAITING = 5
"""Batches of outcomes that are not filed: so many that a flipped bit hits one of them."""
Image = dict[str, bytes]


class Observed(World):
    """A world that keeps what was durable at the end of each life."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.images: list[Image] = []

    async def _live(self, *, count_steps: bool = False) -> Ending:
        ending = await super()._live(count_steps=count_steps)
        self.images.append(self.node.disk.contents(durable=True))
        return ending


@pytest.fixture(scope="module")
def image() -> Image:
    """What is durable in the middle of some story, with files of every kind."""
    for seed in range(33, 73):  # The first of them has all that is wanted, today.
        world = Observed(seed)
        with quiet():
            run_deterministic(seed, world.run)
        for found in world.images:
            spans = list(rot(1)[0]._spans(found, LATER_MS))
            kinds = {kind for kind, _ in spans}
            # Of outcomes that are filed nothing is lost: enough of them are not.
            waiting = [
                path
                for kind, (path, begin, _) in spans
                if kind == "outcomes" and reader.told_by(found, path, begin)
            ]
            has_all = kinds >= {"message_log", "segment", "facts", "seals"}
            if has_all and len(waiting) >= _WAITING and _has_whole_log(found):
                return found
    raise AssertionError("no story has files of all kinds")


def _has_whole_log(image: Image) -> bool:
    """Say whether nothing of the log was deleted that a segment still has."""
    rows = (sequences_of(data) for path, data in image.items() if path.startswith("schedule_log/"))
    return set(ids_by_sequence(image)) >= set().union(*rows)


def disk_of(image: Image) -> SimDisk:
    disk = SimDisk(derive(1, "disk"))
    for path, data in image.items():
        directory = path.rpartition("/")[0]
        disk.make_directory(directory)
        file = disk.open(path, create=True)
        file.write_at(0, [data])
        file.sync()
        while directory:
            disk.sync_directory(directory)
            directory = directory.rpartition("/")[0]
    disk.sync_directory("")
    return disk


def rot(seed: int) -> tuple[Rot, Witness, Counter[str]]:
    witness, faults = Witness(SimClock()), Counter[str]()
    return Rot(random.Random(seed), witness=witness, faults=faults), witness, faults


def loses_an_end(faults: Counter[str]) -> bool:
    return any(" lost: " in fault for fault in faults)


def test_every_kind_of_file_is_hit_and_one_bit_of_it(image: Image) -> None:
    kinds: Counter[str] = Counter()
    for seed in range(80):
        disk = disk_of(image)
        struck, witness, faults = rot(seed)
        assert struck.strike(disk, LATER_MS, running=False)
        assert not struck.strike(disk, LATER_MS, running=False)
        if loses_an_end(faults):
            continue
        after = disk.contents(durable=True)
        [path] = [path for path, data in image.items() if after[path] != data]
        differing = int.from_bytes(image[path], "big") ^ int.from_bytes(after[path], "big")
        assert differing.bit_count() == 1
        kinds.update(faults)
        for damaged, position, byte in witness.damage:
            assert damaged == path
            assert image[path][position] == byte != after[path][position]
    for kind in ("message_log", "outcomes", "segment", "facts", "seals", "identity"):
        assert kinds[f"bit flipped in {kind}"], kinds


@seeds_in_parts(100)
def test_what_is_replaced_now_and_then_is_left_alone_while_a_server_runs(
    seeds: range, image: Image
) -> None:
    for seed in seeds:
        disk = disk_of(image)
        assert rot(seed)[0].strike(disk, LATER_MS, running=True)
        after = disk.contents(durable=True)
        for path in ("identity", "checkpoint/checkpoint", "message_log/durable_end"):
            assert after[path] == image[path]


def test_only_messages_of_the_batch_that_is_hit_may_be_missing(image: Image) -> None:
    excused: Counter[str] = Counter()
    ids = ids_by_sequence(image)
    for seed in range(150):
        struck, witness, faults = rot(seed)
        struck.strike(disk_of(image), LATER_MS, running=False)
        if loses_an_end(faults):
            continue
        [what] = faults
        kind = what.removeprefix("bit flipped in ")
        assert not witness.lost or kind in {"message_log", "segment"}
        assert not witness.doubled or kind in {"facts", "outcomes"}
        assert witness.lost | witness.doubled <= set(ids.values())
        excused[kind] += len(witness.lost) + len(witness.doubled)
    assert set(+excused) == {"message_log", "segment", "facts", "outcomes"}
    assert max(excused.values()) < len(ids) * 150 / 8


def test_a_refusal_has_to_name_the_file_and_is_mended_once(image: Image) -> None:
    disk = disk_of(image)
    struck, witness, faults = rot(1)
    error = DamagedError(path="elsewhere", position=0, reason="no")
    assert not struck.refused(disk, error)
    assert struck.strike(disk, LATER_MS, running=False)
    assert not struck.refused(disk, FatalDiskError("of another kind"))
    assert struck.refused(disk, error)
    assert disk.contents(durable=True) == image
    assert faults["start refused"] == 1
    [complaint] = witness.complaints
    assert complaint.startswith("whole: ")
    assert not struck.refused(disk, error)


END = "message_log/durable_end"


def test_a_durable_end_is_lost_in_every_way_and_a_refusal_has_to_name_it(image: Image) -> None:
    ways: Counter[str] = Counter()
    for seed in range(40):
        disk = disk_of(image)
        struck, witness, faults = rot(seed)
        assert not struck.strike(disk, LATER_MS, running=True, only=LOST)
        assert struck.strike(disk, LATER_MS, running=False, only=LOST)
        assert not struck.strike(disk, LATER_MS, running=False)
        after = disk.contents(durable=True)
        changed = {name for name, data in image.items() if after.get(name) != data}
        assert changed == {END, *(name for name, _, _ in witness.damage)}
        assert witness.damage
        ways.update(kind for kind in faults if " lost: " in kind)
        error = DamagedError(path=END if seed % 2 else "elsewhere", position=0, reason="no")
        assert struck.refused(disk, error)
        assert disk.contents(durable=True) == image == disk.contents()
        assert len(witness.complaints) == 1 - seed % 2
        assert not struck.refused(disk, error)
    assert len(ways) == 5
