"""The judge of the cluster's world notices what it is there for, and excuses what it has to."""

from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from delay_protocol.messages.items import FLAG_DELAY, Item, encode_item
from delay_protocol.meta.requests import (
    BrokerGroupInfo,
    BrokerState,
    ClientRegisterReply,
    ClientType,
    OnlineState,
)
from delay_server.settings.config import RoutesConfig
from meta_server.known.model import BrokerGroup, GroupKind, Route, SaveBrokerGroup, SaveRoute
from tests.simulation.clock import SimClock
from tests.simulation.cluster_judge import (
    CONVERGED_S,
    LEFT_S,
    TOLD_S,
    ClusterJudge,
    Wellness,
    turns_s,
)
from tests.simulation.determinism import derive
from tests.simulation.meta_peers import Known, SimClient
from tests.simulation.meta_store import Medium
from tests.simulation.meta_witness import MetaWitness, Rules, Use
from tests.simulation.network import SimNetwork
from tests.simulation.witness import Receipt, Witness

BEGAN_S = 10.0
SUBJECT = "s"


class Rig:
    """A judge, and the little there is to be seen."""

    def __init__(self) -> None:
        self.witness = Witness(SimClock())
        self.witness.clock_heed_s = 60.0
        self.medium = Medium()
        self.meta = MetaWitness(
            self.medium,
            Rules(
                delay_groups_per_subject=1,
                groups_per_subject=1,
                groups_per_subject_max=2,
                broker_timeout_s=30,
                new_subjects_per_second=1,
                new_subjects_burst=2,
            ),
        )
        self.well = Wellness()
        self.counts: Counter[str] = Counter()
        self.judge = ClusterJudge(self.witness, self.meta, self.well, self.counts)
        self.versions: Counter[str] = Counter()
        self.sent = 0

    async def begin(self, *groups: str) -> None:
        """Have these groups, a subject that goes to them, and a server that lives."""
        for name in ("g1", "g2"):
            self.save_group(name)
        self.route(*groups)
        self.witness.server_started()
        await trio.sleep(BEGAN_S)
        self.well.note("down", is_on=False)

    def save_group(
        self,
        name: str,
        *,
        master: str = "h:1",
        kind: GroupKind = GroupKind.NORMAL,
        state: BrokerState = BrokerState.RW,
    ) -> None:
        self.versions[name] += 1
        row = BrokerGroup(
            name=name,
            kind=kind,
            master=master,
            state=state,
            version=self.versions[name],
        )
        self.medium.commit([SaveBrokerGroup(row)])

    def route(self, *groups: str) -> None:
        self.versions["route"] += 1
        row = Route(name=SUBJECT, groups=groups, version=self.versions["route"])
        self.medium.commit([SaveRoute(row)])

    def receive(self, broker: str, *, due_s: float | None = None) -> None:
        """Have a message of the subject arrive now that was acknowledged long ago."""
        self.sent += 1
        message_id = f"m{self.sent}".encode()
        now_s, now_ms = trio.current_time(), self.witness.clock.now_ms()
        due_ms = now_ms - round((now_s - (now_s if due_s is None else due_s)) * 1000)
        self.witness.due_ms[message_id] = due_ms
        self.witness.acknowledged[message_id] = 0.0
        item = encode_item(
            Item(
                flag=FLAG_DELAY,
                create_ms=1,
                due_ms=due_ms,
                subject=SUBJECT,
                message_id=message_id.decode(),
                attributes={},
            )
        )
        self.witness.receipts.append(Receipt(message_id, item, now_s, now_ms, broker))

    def said(self) -> list[str]:
        return [one.partition(":")[0] for one in self.witness.complaints]


def run(body: Callable[[Rig], Awaitable[None]]) -> None:
    async def with_rig() -> None:
        await body(Rig())

    trio.run(with_rig, clock=MockClock(autojump_threshold=0))


def test_who_hears_of_a_change_by_a_push_need_not_ask_but_after_a_reset_it_has_to() -> None:
    async def body(rig: Rig) -> None:
        await rig.begin("g1")
        well = rig.well
        at_s = BEGAN_S + CONVERGED_S
        assert well.heard_until(at_s - 1, ()) == -float("inf")
        assert well.heard_until(at_s, ()) == at_s - TOLD_S
        assert well.heard_until(at_s, (BEGAN_S + 1,)) == BEGAN_S
        assert well.heard_until(at_s, (BEGAN_S - 1, at_s + 1)) == at_s - TOLD_S
        await trio.sleep_until(at_s)
        well.begin("split")
        well.begin("store")
        await trio.sleep(500)
        well.end("split")
        assert not well.lasted(at_s - 1, at_s + 1)
        assert well.since_s == float("inf")
        # What it knew then it knows still.
        assert well.heard_until(trio.current_time(), ()) == at_s - TOLD_S
        well.end("store")
        assert well.since_s == trio.current_time()
        assert well.lasted(BEGAN_S, at_s)

    run(body)


@pytest.mark.parametrize(("wait_s", "wrong"), [(TOLD_S - 5, False), (TOLD_S + 5, True)])
def test_a_message_goes_where_its_route_led_a_short_while_ago(wait_s: float, wrong: bool) -> None:
    async def body(rig: Rig) -> None:
        await rig.begin("g1")
        await trio.sleep(CONVERGED_S + 100)
        rig.receive("g1")
        rig.route("g2")
        await trio.sleep(wait_s)
        rig.receive("g2")
        rig.receive("g1")
        rig.judge.check_routed(())
        assert rig.said() == ["routed"] * wrong
        assert rig.counts["deliveries judged by routes of the last minutes"] == 3

    run(body)


def test_a_server_that_has_just_begun_knows_no_route_of_before() -> None:
    async def body(rig: Rig) -> None:
        await rig.begin("g1")
        rig.well.begin("store")
        await trio.sleep(300)
        rig.route("g2")
        rig.receive("g1")
        rig.witness.server_ended()
        await trio.sleep(10)
        rig.witness.server_started()
        await trio.sleep(10)
        rig.judge.check_routed(())
        assert rig.said() == []
        rig.receive("g1")
        rig.judge.check_routed(())
        assert rig.said() == ["routed"]

    run(body)


def test_what_is_due_leaves_soon_after_all_faults() -> None:
    async def body(rig: Rig) -> None:
        await rig.begin("g1")
        await trio.sleep(1000)
        calm_s = trio.current_time()
        limit_s = CONVERGED_S + LEFT_S + rig.witness.clock_heed_s
        await trio.sleep(limit_s)
        rig.receive("g1", due_s=5)
        rig.judge.check_stuck(calm_s)
        assert rig.said() == []
        await trio.sleep(1)
        rig.receive("g1", due_s=calm_s + 20)
        rig.judge.check_stuck(calm_s)
        assert rig.said() == []
        rig.receive("g1", due_s=5)
        rig.judge.check_stuck(calm_s)
        assert rig.said() == ["stuck"]

    run(body)


@pytest.mark.parametrize(
    ("excuse", "late"),
    [
        ("", True),
        ("no group did its work", False),
        ("the other group did its work", True),
        ("the group had moved", False),
        ("the group is elsewhere", False),
        ("the route was new", False),
        ("the clock was set", False),
        ("the clock had been ahead", False),
        ("nobody could be asked", False),
        ("nobody could be asked, but it had just been used", True),
    ],
)
def test_what_has_a_group_that_does_its_work_leaves_in_time(excuse: str, late: bool) -> None:
    async def body(rig: Rig) -> None:
        await rig.begin("g1", "g2")
        await trio.sleep(CONVERGED_S + 1000)
        if excuse == "the clock had been ahead":
            rig.witness.clock_set(rig.witness.clock.now_ms() + 2_000_000)
            await trio.sleep(1900)
        if excuse.startswith("no group") or excuse == "the group is elsewhere":
            rig.witness.broker_down("g2")
        if excuse.endswith("group did its work"):
            rig.witness.broker_down("g1")
        if excuse == "the group had moved":
            rig.save_group("g1", master="h:2")
            rig.save_group("g2", master="h:3")
        if excuse == "the route was new":
            rig.route("g3")
            rig.route("g1", "g2")
            rig.route("g3")
            await trio.sleep(30)
            rig.route("g1")
        if excuse.startswith("nobody"):
            if excuse.endswith("used"):
                rig.receive("g1")
            await trio.sleep(1)
            rig.well.begin("store")
        if excuse.endswith("used"):
            for _ in range(5):
                rig.receive("g1")
                await trio.sleep(40)
        elif excuse.startswith("nobody"):
            await trio.sleep(200)
        due_s = trio.current_time()
        if excuse == "the clock was set":
            rig.witness.clock_set(0)
        place = "h:9" if excuse == "the group is elsewhere" else "h:1"
        await trio.sleep(LEFT_S + 1)
        rig.receive("g1", due_s=due_s)
        rig.judge.check_on_time({"g1": lambda _: place, "g2": lambda _: "h:1"})
        assert rig.said() == ["isolated"] * late
        away = rig.counts["had to be on time while the meta server was away"]
        assert bool(away) is excuse.endswith("used")

    run(body)


def test_clients_know_in_the_end_what_is_there() -> None:
    async def body(rig: Rig) -> None:
        await rig.begin("g1")
        network = SimNetwork(derive(1, "network"))
        client = SimClient("c", network=network, chance=derive(1, "c"), witness=rig.meta, uses=[])

        def told(use: Use, name: str, master: str) -> None:
            known = client.known[use] = Known()
            known.reply = ClientRegisterReply(
                timestamp_ms=5,
                subject=SUBJECT,
                consumer_group="",
                online_state=OnlineState.ONLINE,
                client_type=use.client_type,
                groups=(
                    BrokerGroupInfo(name=name, master=master, updated_ms=0, state=BrokerState.RW),
                ),
            )

        def check() -> list[str]:
            rig.witness.complaints.clear()
            rig.judge.check_found([client], group="dg", address="d:1", since_s=BEGAN_S)
            return rig.said()

        rig.save_group("dg", master="d:1", kind=GroupKind.DELAY)
        delayed = Use(ClientType.DELAY_PRODUCER, SUBJECT, "", "c")
        plain = Use(ClientType.PRODUCER, SUBJECT, "", "c")
        told(delayed, "dg", "d:1")
        told(plain, "g1", "h:1")
        assert check() == []
        told(delayed, "dg", "d:2")
        assert check() == ["found"]
        told(plain, "g2", "h:1")
        assert check() == ["found", "found"]
        client.known = {plain: Known()}
        assert check() == ["found"]
        rig.save_group("dg", master="d:1", kind=GroupKind.DELAY, state=BrokerState.NRW)
        client.known = {}
        assert check() == ["found"]
        # Seed 41: what was kept late the meta server need not know.
        rig.save_group("dg", master="d:1", kind=GroupKind.DELAY)
        rig.medium.hide()
        rig.save_group("dg", master="d:1", kind=GroupKind.DELAY, state=BrokerState.NRW)
        rig.medium.kept_late()
        assert check() == []

    run(body)


@pytest.mark.parametrize(("subjects", "turns"), [(5, 0), (29, 0), (30, 1), (65, 2)])
def test_subjects_beyond_the_places_for_routes_may_wait_until_others_are_forgotten(
    subjects: int, turns: int
) -> None:
    few = RoutesConfig(subjects_max=30, unused_ms=600_000)
    assert turns_s(subjects, few) == turns * 1200
    assert turns_s(subjects, RoutesConfig()) == 0
