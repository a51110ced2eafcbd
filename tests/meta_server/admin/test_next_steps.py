"""Tests of next_steps: one case, one sentence; a group that is well, or heals itself, has none."""

import re
import shlex
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner

from delay_protocol.nodes.controls import Controls, GroupControl
from delay_server.controls.meta_sync import why_kept
from delaywheel.main import main
from meta_server.admin.admin_types import (
    BrokerGroupShown,
    DelayGroupShown,
    NodeShown,
    ReceiverShown,
)
from meta_server.admin.next_steps import (
    next_steps,
    step_for_broker_group,
    step_for_delay_group,
    step_for_disabled,
    step_for_receiver,
    step_for_waiting,
)
from meta_server.known.model import BrokerGroup, GroupKind, Receiver, Webhook
from meta_server.wire.admission import WaitingGroup

START = "`systemctl start delaywheel-delay-server`"
SET_CLOCK = "set the clock right: `chronyc makestep`"
SILENT: Mapping[str, object] = {"heard_seconds_ago": None}
OUT: Mapping[str, object] = {
    "in_sync": False,
    "fitness": "excluded",
    "fitness_note": "its disk is not in sync",
}
UNFIT = {"fitness": "unfit", "fitness_note": "free disk has been below its floor for 5 s"}
OF_ANOTHER_STORE = Controls(store=UUID(int=1))
KEEPS = {"controls_note": why_kept(Controls(groups={"g1": GroupControl()}), OF_ANOTHER_STORE)}
AHEAD = {"clock_note": "its clock is 12.0 s ahead of the meta server's"}


def shown(row: type[Any], fields: Mapping[str, object]) -> Any:  # noqa: ANN401
    """Return a row with these fields; the others are not looked at."""
    return row(**{**dict.fromkeys(row.__struct_fields__), **fields})


def group(*nodes: Mapping[str, object], **fields: object) -> DelayGroupShown:
    """Return d1 with nodes n1, n2, …: n1 is the master, each is well but for its fields."""
    well = {"in_sync": True, "heard_seconds_ago": 1.0, "fitness": "fit"}
    well |= {"clock_note": "", "controls_note": ""}
    rows = [
        shown(
            NodeShown,
            {**well, "node_id": f"n{number}", "http_address": f"10.0.0.{number}:20811", **more},
        )
        for number, more in enumerate(nodes, 1)
    ]
    in_sync = [row.node_id for row in rows if row.in_sync]
    row = {"name": "d1", "master": "n1", "min_isr": 1, "refused": {}, "in_sync": in_sync}
    found: DelayGroupShown = shown(DelayGroupShown, {**row, "nodes": rows, **fields})
    return found


BELOW = (
    f"1 of 2 disks that must be in sync (min ISR) are heard: start n2: {START}, or let fewer be "
    "enough: `delaywheel admin min-isr d1 1`"
)
ALONE = (
    f"nobody in sync is heard: start n1: {START}; if that disk, the only one, is lost: "
    "`delaywheel admin give-up d1 n1`"
)
ANEW = f"no disk is in sync: the group begins anew with the node that you start: {START}"
NOBODY = f"nobody in sync is heard: start one of n1, n2: {START}"
OLDER = "this directory is an older copy: `approve`"
OF_META = "all clocks differ from this meta server's: set its clock right: `chronyc makestep`"
STATUS = "`delaywheel status --server 10.0.0.1:20811`"
FOLLOW = (
    "n2 keeps other rules: set here what is to hold, then have it take that: "
    "`delaywheel controls --follow --server 10.0.0.2:20811`"
)
STALE = (
    f"n3 is silent: start it: {START}; if it is gone for good: "
    "`delaywheel admin remove delay-node d1/n3`"
)


@pytest.mark.parametrize(
    ("known", "step"),
    [
        # All is well, or will be by itself: an election, a drop.
        (group({}, {}, {}, min_isr=2), ""),
        (group(SILENT, {}, {}, min_isr=2), ""),
        (group({}, SILENT, {}, min_isr=2), ""),
        (group(OUT, master=None, in_sync=[]), ANEW),
        (group(SILENT, OUT), ALONE),
        (group(SILENT, SILENT, {**SILENT, **OUT}, min_isr=2, master=None), NOBODY),
        (group({}, SILENT, {**SILENT, **OUT}, min_isr=2), BELOW),
        (group(SILENT, refused={"n1": OLDER}), f"n1 is refused: {OLDER}"),
        (group({}, SILENT, min_isr=2, refused={"n9": "it has another log"}), BELOW),
        (group({}, refused={"n9": "it has another log"}), "n9 is refused: it has another log"),
        (group({}, AHEAD, {}), f"n2: {AHEAD['clock_note']}: {SET_CLOCK}"),
        (group(AHEAD, AHEAD), OF_META),
        (group({}, KEEPS, {}), FOLLOW),
        (group({}, {"controls_note": "it applies version 1, the version here is 2"}), ""),
        (group(UNFIT, {}), f"n1 is unfit to be the master ({UNFIT['fitness_note']}): {STATUS}"),
        (group({}, {}, {**SILENT, **OUT}), STALE),
        (group({}, {}, OUT), f"n3 is not in sync; the master says why: {STATUS}"),
    ],
)
def test_a_group_of_delay_servers_has_one_step_or_none(known: DelayGroupShown, step: str) -> None:
    assert step_for_delay_group(known) == step


def test_where_an_operator_elects_a_silent_master_is_replaced_by_one() -> None:
    step = step_for_delay_group(group(SILENT, {}, min_isr=1), elects=False)
    assert step.endswith("is silent: have another one elected: `delaywheel admin elect d1`")


def test_the_nodes_of_a_retired_group_are_given_up() -> None:
    step = step_for_delay_group(group({}), is_retired=True)
    assert step.endswith("stop its nodes, then `delaywheel admin give-up d1 n1`")


def broker_group(**fields: object) -> BrokerGroupShown:
    row: Mapping[str, object] = {
        "name": "g1",
        "kind": GroupKind.NORMAL,
        "state": "RW",
        "heard_seconds_ago": 1.0,
    }
    found: BrokerGroupShown = shown(BrokerGroupShown, {**row, **fields})
    return found


AWAY: Mapping[str, object] = {"state": "NRW", "heard_seconds_ago": None}
REMOVE = "`delaywheel admin remove broker-group g1`"
RETIRE = "if it is gone for good: `delaywheel admin retire g1`"


@pytest.mark.parametrize(
    ("known", "is_routed", "step"),
    [
        (broker_group(), True, ""),
        (broker_group(**AWAY), False, ""),
        (broker_group(**AWAY, is_static=True), True, ""),
        (broker_group(state="NRW"), True, ""),
        (broker_group(**AWAY), True, f"it is away: start its broker; {RETIRE}"),
        (
            broker_group(**AWAY, is_entered=True, master="b:1"),
            False,
            f"it is away: start its broker at b:1; {RETIRE}",
        ),
        (broker_group(is_retired=True), False, ""),
        (
            broker_group(is_retired=True, heard_seconds_ago=None),
            False,
            f"it is retired: when all is consumed free its name: {REMOVE}",
        ),
    ],
)
def test_a_broker_group_has_one_step_or_none(
    known: BrokerGroupShown, *, is_routed: bool, step: str
) -> None:
    assert step_for_broker_group(known, is_routed=is_routed) == step


def waiting(**fields: Any) -> WaitingGroup:  # noqa: ANN401 (of the group)
    row: dict[str, Any] = {"name": "g9", "kind": GroupKind.NORMAL, "master": "10.6.6.6:1"}
    return WaitingGroup(BrokerGroup(**(row | fields)), "10.6.6.6", 0)


def receiver(*patterns: str, connected: int = 0, name: str = "r1") -> ReceiverShown:
    return ReceiverShown(name=name, patterns=patterns, connected=connected)


@pytest.mark.parametrize(
    ("known", "step"),
    [
        (receiver("a", connected=1), ""),
        (
            receiver(),
            (
                "it gets no subject, of which each has at most 16 names: `delaywheel admin set "
                "receiver r1 patterns=SUBJECT`"
            ),
        ),
        (
            receiver("a"),
            (
                "nobody receives under its name: start a receiver; if it is gone for good: "
                "`delaywheel admin remove receiver r1`"
            ),
        ),
    ],
)
def test_receivers_that_are_gone_are_started_or_removed(known: ReceiverShown, step: str) -> None:
    assert step_for_receiver(known) == step


@pytest.mark.parametrize("hears_all", [True, False])
def test_a_webhook_that_is_disabled_is_enabled_and_one_that_is_not_is_as_its_receivers(
    *, hears_all: bool
) -> None:
    gone = Webhook(name="r1", disabled="410 X: moved\nto b, to message 7")
    found = next_steps(
        [],
        [],
        [receiver("a"), receiver("a", name="r2"), receiver("a", name="r3", connected=1)],
        [],
        [gone, Webhook(name="r2"), Webhook(name="r3")],
        behind={},
        routed=(),
        hears_all=hears_all,
        elects=True,
    )
    assert found[0].step == (
        "its webhook is disabled ('410 X: moved\\nto b, to message 7'); once its endpoint works: "
        "`delaywheel admin set webhook r1 disabled=`"
    )
    assert [row.group for row in found] == ["r1", "r2"][: 1 + hears_all]


def test_a_group_that_waits_is_let_in_at_its_address_and_its_name_cannot_add_to_the_command() -> (
    None
):
    assert step_for_waiting(waiting()) == (
        "it asks from 10.6.6.6; if it is yours, let it in: "
        "`delaywheel admin approve g9 --address 10.6.6.6:1`"
    )
    asks = Receiver(name="r;reboot", patterns=("a.*", "b"))
    receiver = WaitingGroup(asks, "10.6.6.6", 0)
    assert step_for_waiting(receiver) == (
        "it asks from 10.6.6.6; if it is yours, let it in: "
        "`delaywheel admin set receiver 'r;reboot' 'patterns=a.*,b'`"
    )


def test_each_group_is_named_once_and_what_was_lost_comes_before_all_else() -> None:
    shown_twice = broker_group(name="d1", kind=GroupKind.DELAY, **AWAY)
    found = next_steps(
        [group({}, OUT)],
        [shown_twice, broker_group()],
        [receiver("a")],
        [WaitingGroup(Receiver(name="r1", patterns=("a",)), "10.6.6.6", 0)],
        [],
        behind={"d1": "it was set back", "d2": "it was set back, too"},
        routed={"r1"},
        hears_all=True,
        elects=True,
    )
    assert [(row.group, row.step.split(":")[0]) for row in found] == [
        ("d1", "it was set back"),
        ("r1", "it asks from 10.6.6.6; if it is yours, let it in"),
        ("d2", "it was set back, too"),
    ]


def test_each_command_of_a_step_can_be_typed_as_it_stands() -> None:
    steps = [BELOW, ALONE, STALE, RETIRE, REMOVE]
    steps += [step_for_waiting(waiting()), step_for_delay_group(group({}), is_retired=True)]
    steps.append(step_for_delay_group(group(SILENT, {}), elects=False))
    steps += [step_for_receiver(one) for one in (receiver(), receiver("a"))]
    steps.append(step_for_disabled(Webhook(name="r;reboot", disabled="410")))
    commands = {found for step in steps for found in re.findall("`delaywheel admin (.*?)`", step)}
    assert len(commands) == 10
    for command in commands:
        words = ["admin", "--meta", "127.0.0.1:1", *shlex.split(command)]
        result = CliRunner().invoke(main, words)
        assert (result.exit_code, "no meta server answers" in result.output) == (6, True), command
