"""Each checker sees the promise broken that it holds; a run in which none is broken passes."""

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import trio

from delay_protocol.messages.items import FLAG_DELAY, Item, encode_item
from tests.simulation import independent_reader as reader
from tests.simulation.checkers import (
    check,
    check_end_of_life,
    whole_files,
)
from tests.simulation.clock import SimClock
from tests.simulation.determinism import run_deterministic
from tests.simulation.witness import Receipt, Witness
from tests.simulation.world import World, quiet

_SEED = 3
_BROKERS = ("g1", "g2")


@dataclass(slots=True)
class Story:
    """What a run left behind, to be lied about."""

    witness: Witness
    files: dict[str, bytes]
    at_stop: dict[str, bytes]

    def broken(self) -> list[str]:
        """Return the findings, in the order of the checks."""
        return check(self.witness, self.files, brokers=_BROKERS, at_stop=self.at_stop).violations

    def flip(self, path: str, position: int) -> int:
        """Flip a bit, and return the byte as it was."""
        data = bytearray(self.files[path])
        data[position] ^= 4
        self.files[path] = bytes(data)
        return data[position] ^ 4

    def segment(self) -> str:
        """Return the path of a sealed segment."""
        return max(path for path in self.files if path.endswith(".minute"))


@pytest.fixture(scope="module")
def told() -> Story:
    world = World(_SEED)
    with quiet():
        run_deterministic(_SEED, world.run, limit_s=world.limit_s)
    disk = world.node.revive()
    at_stop = disk.contents()
    disk.power_cut()
    witness = world.witness
    files = world.deleted.with_files(whole_files(witness, world.node.revive().contents()))
    at_stop = whole_files(witness, at_stop)
    witness.damage.clear()
    return Story(witness, files, at_stop)


@pytest.fixture
def story(told: Story) -> Story:
    return Story(copy.deepcopy(told.witness), dict(told.files), dict(told.at_stop))


def starts_with(promise: str, findings: list[str]) -> bool:
    return any(finding.startswith(f"{promise}:") for finding in findings)


def test_a_run_in_which_nothing_was_broken_passes(story: Story) -> None:
    assert story.broken() == []


def test_an_acknowledged_message_that_is_not_in_the_log_was_not_kept(story: Story) -> None:
    story.witness.acknowledged[b"nobody"] = 1.0
    assert starts_with("kept", story.broken())


def test_a_log_that_ends_before_its_durable_end_was_not_kept(story: Story) -> None:
    path = max(path for path in story.files if path.startswith("message_log/0"))
    *_, last = reader.read_batches(story.files[path])
    story.files[path] = story.files[path][: last.position]
    assert starts_with("kept", story.broken())


def test_damage_is_put_right_but_not_in_a_file_that_was_written_anew(story: Story) -> None:
    path = max(path for path in story.files if path.startswith("message_log/0"))
    whole = dict(story.files)
    story.witness.damage.append((path, 100, story.flip(path, 100)))
    assert whole_files(story.witness, story.files) == whole
    story.witness.damage.append((path, 200, whole[path][200] ^ 1))
    assert whole_files(story.witness, whole) == whole


def test_a_message_accepted_more_often_than_it_was_sent_is_in_the_log_twice(story: Story) -> None:
    story.witness.attempts[next(iter(story.witness.acknowledged))] = 0
    assert starts_with("once", story.broken())


def test_a_segment_in_the_place_of_another_one_is_seen(story: Story) -> None:
    paths = sorted(path for path in story.files if path.endswith(".minute"))
    first, second = [path for path in paths if path.startswith("schedule_log/")][:2]
    story.files[first], story.files[second] = story.files[second], story.files[first]
    assert story.broken()


def test_an_item_that_came_a_millisecond_early_is_seen(story: Story) -> None:
    receipt = story.witness.receipts[0]
    receipt.wall_ms = story.witness.due_ms[receipt.message_id] - 1
    assert starts_with("never early", story.broken())


def test_an_item_with_another_byte_is_seen(story: Story) -> None:
    receipt = story.witness.receipts[0]
    receipt.item = receipt.item[:-1] + bytes([receipt.item[-1] ^ 1])
    assert starts_with("whole", story.broken())


def test_an_acknowledged_message_that_no_broker_got_never_left(story: Story) -> None:
    witness = story.witness
    # What may have been cancelled need not come.
    sure = (one for one in witness.acknowledged if not witness.fates.is_touched(one.decode()))
    witness.received.discard(min(sure))
    assert starts_with("leaves", story.broken())


def test_a_fact_of_a_delivery_that_no_broker_saw_is_seen(story: Story) -> None:
    gone = story.witness.receipts[0].message_id
    receipts = story.witness.receipts
    story.witness.receipts = [one for one in receipts if one.message_id != gone]
    assert starts_with("leaves", story.broken())


def test_a_delivery_that_was_settled_and_comes_again_is_seen(story: Story) -> None:
    witness = story.witness
    settled = next(
        receipt
        for receipt in witness.receipts
        if receipt.sure and not witness.died_within(receipt.at_s, witness.fact_s)
    )
    again = copy.copy(settled)
    again.at_s += 1000
    witness.receipts.append(again)
    assert starts_with("few twice", story.broken())
    witness.doubled.add(settled.message_id)
    assert not starts_with("few twice", story.broken())


def test_a_flipped_bit_is_seen_unless_it_was_flipped_on_purpose(story: Story) -> None:
    path = story.segment()
    position = len(story.files[path]) - 1
    byte = story.flip(path, position)
    assert starts_with("whole", story.broken())
    story.witness.damage.append((path, position, byte))
    assert story.broken() == []


def test_a_file_that_nothing_names_is_seen(story: Story) -> None:
    story.at_stop["schedule_log/20991231T2359Z.minute"] = b""
    assert starts_with("bounded", story.broken())


def test_a_life_after_which_something_acknowledged_is_not_durable_is_seen(story: Story) -> None:
    story.witness.incarnation = 0
    check_end_of_life(story.witness, story.files)
    assert story.witness.complaints == []
    logs = [path for path in story.files if path.startswith(("message_log/0", "schedule_log/"))]
    for path in logs:
        del story.files[path]
    check_end_of_life(story.witness, story.files)
    assert starts_with("kept", story.witness.complaints)


def test_a_life_with_the_incarnation_of_the_one_before_is_seen(story: Story) -> None:
    story.witness.acknowledged_in_this_life = 1
    _, story.witness.incarnation = reader.read_incarnation(story.files["identity"])
    check_end_of_life(story.witness, story.files)
    assert starts_with("serves", story.witness.complaints)


# -- on time ---------------------------------------------------------------------------------------


def _item(message_id: str, subject: str) -> bytes:
    item = Item(
        flag=FLAG_DELAY,
        create_ms=0,
        due_ms=1,
        subject=subject,
        message_id=message_id,
        tags=(),
        attributes={},
    )
    return encode_item(item)


async def _deliver(witness: Witness, *, after_s: float) -> None:
    """Let a message be acknowledged, be due 100 s later, and arrive so long after that."""
    now_ms, key, item = witness.clock.now_ms(), b"m", _item("m", "hot")
    witness.items[key] = item
    witness.due_ms[key] = now_ms + 100_000
    witness.acknowledge(key)
    await trio.sleep(100 + after_s)
    receipt = Receipt(key, item, trio.current_time(), witness.clock.now_ms(), "g1")
    witness.take([receipt])


def _is_late(witness: Witness) -> bool:
    return starts_with("isolated", check(witness, {}, brokers=_BROKERS).violations)


@pytest.mark.parametrize(
    ("what", "after_s", "late"),
    [
        ("nothing", 19, False),
        ("nothing", 21, True),
        ("other broker down", 21, True),
        ("both brokers down", 21, False),
        ("other broker ill", 21, True),
        ("both brokers ill", 21, False),
        ("clock set", 21, False),
        ("excused", 21, False),
        ("restart", 21, False),
        ("started late", 21, False),
        ("hot", 21, False),
        ("hot", 23, True),
        ("other subject hot", 21, True),
    ],
)
def test_what_is_late_is_seen_if_a_broker_was_there(what: str, after_s: float, late: bool) -> None:
    async def run() -> None:
        witness = Witness(SimClock(), clock_heed_s=600)
        if what == "started late":
            await trio.sleep(1)
        witness.server_started()
        if what.endswith("down"):
            witness.broker_down("g1")
        elif what.endswith("ill"):
            witness.broker_ill("g1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: _deliver(witness, after_s=after_s))
            await trio.sleep(105)
            if what == "both brokers down":
                witness.broker_down("g2")
            elif what == "both brokers ill":
                witness.broker_ill("g2")
            elif what == "clock set":
                witness.clock_set(witness.clock.now_ms())
            elif what == "excused":
                witness.excuse_lateness(trio.current_time() + 1)
            elif what.endswith("hot"):
                # A broker is sent ten of one subject: of its own each costs a quarter of a second.
                for number in range(10):
                    key = f"{number}".encode()
                    witness.items[key] = _item(f"{number}", "hot" if what == "hot" else "other")
                    witness.sightings[key] = [(trio.current_time(), "g1")]
            elif what in {"restart", "started late"}:
                witness.server_ended()
                await trio.sleep(1)
                witness.server_started()
        assert _is_late(witness) is late

    run_deterministic(1, run, limit_s=1000)


def test_facts_that_no_record_states_or_that_are_filed_twice_are_seen(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = reader.facts_of
    path = story.segment().replace("schedule_log", "dispatch_log")
    [first, *_] = reader.read_batches(story.files[path])

    def lying(change: Callable[[list[reader.Fact]], list[reader.Fact]]) -> None:
        def facts_of(batch: reader.Batch) -> list[reader.Fact]:
            facts = list(plain(batch))
            return change(facts) if batch.crc == first.crc else facts

        monkeypatch.setattr(reader, "facts_of", facts_of)

    lying(lambda facts: facts)
    assert story.broken() == []
    for change in (
        lambda facts: [*facts, facts[0]],
        lambda facts: [dataclasses.replace(facts[0], at_ms=0), *facts[1:]],
        lambda facts: [dataclasses.replace(facts[0], target=b"nobody"), *facts[1:]],
        lambda facts: facts[1:],
    ):
        lying(change)
        assert starts_with("few twice", story.broken())
