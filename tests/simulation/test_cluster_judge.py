"""The judge of the cluster's world notices what is late, which no mutant shows."""

from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from delay_protocol.messages.items import FLAG_DELAY, Item, encode_item
from delay_protocol.meta.requests import BrokerState
from meta_server.known.model import BrokerGroup, GroupKind, Route, Save
from tests.simulation.clock import SimClock
from tests.simulation.cluster_judge import CONVERGED_S, LEFT_S, ClusterJudge, Wellness
from tests.simulation.meta_store import Medium
from tests.simulation.meta_witness import MetaWitness, Rules
from tests.simulation.witness import Receipt, Witness

BEGAN_S = 10.0
SUBJECT = "s"


class Rig:
    """A judge, and the little there is to be seen."""

    def __init__(self) -> None:
        self.witness = Witness(SimClock())
        self.witness.clock_heed_s = 60.0
        self.medium = Medium()
        meta = MetaWitness(
            self.medium,
            Rules(
                delay_groups_per_subject=1,
                groups_per_subject=1,
                broker_timeout_s=30,
                new_subjects_per_second=1,
                new_subjects_burst=2,
            ),
        )
        self.well = Wellness()
        self.judge = ClusterJudge(self.witness, meta, self.well, Counter())

    async def begin(self, *groups: str) -> None:
        """Have these groups, a subject that goes to them, and a server that lives."""
        for name in groups:
            row = BrokerGroup(name=name, kind=GroupKind.NORMAL, master="h:1", state=BrokerState.RW)
            self.medium.commit([Save(row)])
        self.medium.commit([Save(Route(name=SUBJECT, groups=groups))])
        self.witness.server_started()
        await trio.sleep(BEGAN_S)
        self.well.note("down", is_on=False)

    def receive(self, broker: str, *, due_s: float) -> None:
        """Have a message of the subject arrive now that was acknowledged long ago."""
        message_id = f"m{len(self.witness.receipts)}".encode()
        now_s, now_ms = trio.current_time(), self.witness.clock.now_ms()
        due_ms = now_ms - round((now_s - due_s) * 1000)
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


@pytest.mark.parametrize(("away", "late"), [("", True), ("g1", True), ("g1 g2", False)])
def test_what_has_a_group_that_does_its_work_leaves_in_time(away: str, late: bool) -> None:
    async def body(rig: Rig) -> None:
        await rig.begin("g1", "g2")
        await trio.sleep(CONVERGED_S + 1000)
        for name in away.split():
            rig.witness.broker_down(name)
        due_s = trio.current_time()
        await trio.sleep(LEFT_S + 1)
        rig.receive("g1", due_s=due_s)
        rig.judge.check_on_time({name: lambda _: "h:1" for name in ("g1", "g2")})
        assert rig.said() == ["isolated"] * late

    run(body)
