"""The judge of what a delay server makes of a meta server's rules notices what it is there for."""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple, cast
from uuid import UUID

import msgspec
import pytest
import trio
from trio.testing import MockClock

from delay_protocol.messages.items import FLAG_DELAY, Item, encode_item
from delay_protocol.nodes.controls import Controls, GroupControl, SubjectControl, encode_controls
from delay_server.server import DelayServer
from meta_server.known.model import ClusterControls, SaveControls
from sender.groups.group_status import GroupState
from tests.simulation.clock import SimClock
from tests.simulation.cluster_gating import MetaGating
from tests.simulation.cluster_judge import CONVERGED_S, Wellness
from tests.simulation.cluster_meta import SimMeta
from tests.simulation.determinism import derive
from tests.simulation.meta_store import Medium
from tests.simulation.network import SimNetwork
from tests.simulation.witness import Receipt, Witness

CLUSTER = "c"
PAUSED = SubjectControl(paused=True)
STORE = UUID(int=2, version=4)


@dataclass
class _Following:
    told: Controls | None = None
    taken: int = 0
    keeps: str = ""
    trouble: str = ""
    follow: Callable[..., Awaitable[bool]] | None = None


@dataclass
class _Outlet:
    applied: Controls = field(default_factory=Controls)


class _Group(NamedTuple):
    name: str
    weight: float
    state: GroupState = GroupState.UP


class _Server:
    """As much of a delay server as can be seen from outside."""

    def __init__(self) -> None:
        self.ready = trio.Event()
        self.ready.set()
        self.controls_sync = _Following()
        self.outlet = _Outlet()
        self.weights: dict[str, float] = {"g": 1.0}
        self.node = self.master = self.sender = self

    def status(self) -> list[_Group]:
        return [_Group(name, weight) for name, weight in self.weights.items()]

    def goes_by(self, controls: Controls) -> None:
        self.controls_sync.told = self.outlet.applied = controls
        self.controls_sync.taken += 1


@dataclass
class _Meta:
    medium: Medium


class Rig:
    """A judge, a store and a server."""

    def __init__(self) -> None:
        self.witness = Witness(SimClock())
        self.medium = Medium()
        self.well = Wellness()
        self.server = _Server()
        self.counts: Counter[str] = Counter()
        self.gating = MetaGating(
            derive(1, "gating"), self.witness, Counter(), length_s=100.0, groups=("g",)
        )
        self.gating.attach(
            cast(SimMeta, _Meta(self.medium)),
            well=self.well,
            network=SimNetwork(derive(1, "network")),
            counts=self.counts,
            cluster=CLUSTER,
        )

    def store(self, change: Callable[[Controls], Controls]) -> Controls:
        """Store what is made of the present rules; return it as it is told."""
        number = len(self.medium.commits)
        before = msgspec.structs.replace(
            self.medium.controls_at(CLUSTER, number), store=msgspec.UNSET
        )
        self.medium.commit(
            [SaveControls(ClusterControls(cluster=CLUSTER, controls=change(before)))]
        )
        return self.medium.controls_at(CLUSTER, number + 1)

    def pause(self, pattern: str) -> Controls:
        return self.store(lambda before: before.with_subject(pattern, PAUSED))

    def resume(self, pattern: str) -> Controls:
        return self.store(lambda before: before.with_subject(pattern, None))

    def standing(self) -> Controls | None:
        found = self.gating.standing(cast(DelayServer, self.server))
        return None if found is None else found.controls

    async def live(self, seconds: float) -> None:
        """Let the server live for so long."""
        self.gating.life_begins(slow_s=0.0)
        self.witness.server_started()
        with trio.move_on_after(seconds):
            await self.gating.run(cast(DelayServer, self.server))
        self.gating.end_life()
        self.witness.server_ended()

    def receive(self, name: str, subject: str) -> None:
        """Have a message come to group g."""
        message_id = name.encode()
        self.witness.items[message_id] = item = encode_item(
            Item(
                flag=FLAG_DELAY,
                create_ms=1,
                due_ms=1,
                subject=subject,
                message_id=name,
                attributes={},
            )
        )
        self.witness.receipts.append(Receipt(message_id, item, trio.current_time(), 0, "g"))

    def said(self) -> list[str]:
        return self.witness.complaints


def run(body: Callable[[Rig, trio.Nursery], Awaitable[None]]) -> None:
    async def with_rig() -> None:
        async with trio.open_nursery() as nursery:
            await body(Rig(), nursery)
            nursery.cancel_scope.cancel()

    trio.run(with_rig, clock=MockClock(autojump_threshold=0))


def test_what_was_stored_may_hold_until_the_server_says_so_and_then_nothing_of_before_may() -> None:
    async def body(rig: Rig, nursery: trio.Nursery) -> None:
        nursery.start_soon(rig.live, 1000)
        await trio.sleep(2)
        assert rig.standing() == Controls()
        first = rig.pause("a")
        assert rig.standing() is None
        rig.receive("1", "a")
        await trio.sleep(10)
        rig.receive("2", "a")
        rig.server.goes_by(first)
        await trio.sleep(10)
        assert rig.standing() == first
        assert rig.gating.is_gated("a", 0, 30)
        assert not rig.gating.is_gated("b", 0, 30)
        second = rig.resume("a")
        await trio.sleep(10)
        # It may have heard of that.
        rig.receive("3", "a")
        assert rig.gating.check() == []
        rig.server.goes_by(second)
        await trio.sleep(10)
        rig.receive("4", "a")
        assert rig.gating.check() == []
        assert rig.said() == []

    run(body)


@pytest.mark.parametrize("is_group", [False, True])
def test_what_leaves_although_it_is_paused_by_all_that_may_hold_is_complained_of(
    is_group: bool,
) -> None:
    async def body(rig: Rig, nursery: trio.Nursery) -> None:
        nursery.start_soon(rig.live, 1000)
        await trio.sleep(2)
        if is_group:
            paused = rig.store(lambda before: before.with_group("g", GroupControl(paused=True)))
        else:
            paused = rig.pause("a")
        rig.server.goes_by(paused)
        await trio.sleep(10)
        rig.pause("b")
        await trio.sleep(10)
        rig.receive("1", "a")
        assert [one.partition(":")[0] for one in rig.gating.check()] == ["paused"]

    run(body)


def test_rules_that_were_never_stored_or_are_of_before_are_complained_of() -> None:
    async def body(rig: Rig, nursery: trio.Nursery) -> None:
        nursery.start_soon(rig.live, 1000)
        await trio.sleep(2)
        first, second = rig.pause("a"), rig.pause("b")
        rig.server.goes_by(second)
        await trio.sleep(5)
        assert rig.said() == []
        rig.server.goes_by(first)
        await trio.sleep(5)
        assert len(rig.said()) == 1
        rig.server.goes_by(msgspec.structs.replace(second, version=3))
        await trio.sleep(5)
        assert len(rig.said()) == 2

    run(body)


def test_a_store_that_is_set_back_is_not_followed_and_another_one_only_if_it_opens_nothing() -> (
    None
):
    async def body(rig: Rig, nursery: trio.Nursery) -> None:
        nursery.start_soon(rig.live, 1000)
        await trio.sleep(2)
        paused = rig.pause("a")
        rig.server.goes_by(paused)
        await trio.sleep(5)
        rig.medium.set_back(1, uuid=STORE)
        stricter = rig.pause("b*")
        assert stricter.store == STORE
        rig.server.goes_by(stricter)
        await trio.sleep(5)
        assert rig.standing() == stricter
        opened = rig.resume("a")
        rig.server.goes_by(opened)
        await trio.sleep(5)
        # A newer one of the same store may open.
        assert rig.said() == []
        rig.medium.set_back(0, uuid=UUID(int=3, version=4))
        rig.pause("a")
        rig.server.goes_by(rig.resume("a"))
        await trio.sleep(5)
        assert ["opens" in one for one in rig.said()] == [True]

    run(body)


def test_a_store_that_is_set_back_is_not_followed_to_what_opens_nothing_either() -> None:
    async def body(rig: Rig, nursery: trio.Nursery) -> None:
        nursery.start_soon(rig.live, 1000)
        await trio.sleep(2)
        paused = rig.pause("a")
        rig.server.goes_by(rig.resume("a"))
        await trio.sleep(5)
        rig.medium.set_back(1)
        await trio.sleep(5)
        assert rig.said() == []
        rig.server.goes_by(paused)
        await trio.sleep(5)
        assert len(rig.said()) == 1

    run(body)


def test_what_an_operator_has_it_follow_may_be_long_on_its_way_to_the_disk() -> None:
    """Seed 2600049 of the cluster: a follow took ten seconds, and the judge looked meanwhile."""

    async def body(rig: Rig, nursery: trio.Nursery) -> None:
        nursery.start_soon(rig.live, 1000)
        await trio.sleep(2)
        older = rig.pause("a")
        rig.server.goes_by(rig.resume("a"))
        await trio.sleep(5)
        rig.medium.set_back(1)
        rig.server.controls_sync.told = older

        async def follow(**_: str) -> bool:
            await trio.sleep(10)
            rig.server.goes_by(older)
            return True

        rig.server.controls_sync.follow = follow
        await rig.gating._follow()
        await trio.sleep(5)
        assert rig.said() == []
        assert rig.gating._goes_by == older

    run(body)


def test_what_a_store_has_lost_may_hold_until_all_has_been_well_for_long() -> None:
    async def body(rig: Rig, nursery: trio.Nursery) -> None:
        nursery.start_soon(rig.live, 1000)
        await trio.sleep(2)
        first = rig.pause("a")
        rig.server.goes_by(first)
        await trio.sleep(5)
        rig.pause("b")
        rig.medium.set_back(1)
        await trio.sleep(CONVERGED_S + 10)
        assert rig.standing() is None
        rig.well.note("down", is_on=False)
        await trio.sleep(CONVERGED_S - 10)
        assert rig.standing() is None
        await trio.sleep(20)
        assert rig.standing() == first
        assert rig.said() == []

    run(body)


def test_rules_that_are_not_on_the_disk_when_a_life_has_ended_are_complained_of() -> None:
    async def body(rig: Rig, nursery: trio.Nursery) -> None:
        del nursery
        paused = rig.pause("a")
        rig.server.goes_by(paused)
        await rig.live(5)
        document = encode_controls(paused)
        rig.gating.check_kept(
            {"controls": bytes(64) + len(document).to_bytes(4, "little") + bytes(4) + document}
        )
        assert rig.said() == []
        assert rig.counts.total() == 1
        rig.gating.check_kept({})
        assert len(rig.said()) == 1

    run(body)


@pytest.mark.parametrize(("well_s", "wrong"), [(CONVERGED_S + 10, True), (10.0, False)])
def test_when_all_is_well_what_is_stored_is_known_within_a_second(
    well_s: float, wrong: bool
) -> None:
    async def body(rig: Rig, nursery: trio.Nursery) -> None:
        nursery.start_soon(rig.live, 1000)
        rig.well.note("down", is_on=False)
        await trio.sleep(well_s)
        rig.pause("a")
        await rig.gating._see_told()
        assert bool(rig.said()) is wrong
        assert rig.counts["controls that had to be known soon"] == wrong

    run(body)


@pytest.mark.parametrize("knows", [False, True])
def test_a_server_that_starts_hears_first_what_is_paused(knows: bool) -> None:
    async def body(rig: Rig, nursery: trio.Nursery) -> None:
        rig.well.note("down", is_on=False)
        await trio.sleep(CONVERGED_S + 10)
        paused = rig.pause("a")
        await trio.sleep(10)
        if knows:
            rig.server.goes_by(paused)
        nursery.start_soon(rig.live, 1000)
        await trio.sleep(2)
        assert bool(rig.said()) is not knows

    run(body)


def test_groups_weigh_what_they_are_told_to() -> None:
    async def body(rig: Rig, nursery: trio.Nursery) -> None:
        nursery.start_soon(rig.live, 1000)
        await trio.sleep(2)
        weighed = rig.store(lambda before: before.with_group("g", GroupControl(weight=3.0)))
        rig.server.weights["g"] = 3.0
        rig.server.goes_by(weighed)
        await trio.sleep(5)
        assert rig.said() == []
        assert not rig.gating._closed
        rig.server.weights["g"] = 1.0
        await trio.sleep(2)
        assert rig.said()

    run(body)
