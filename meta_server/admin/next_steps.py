"""Decides what an operator does next for each group: one sentence with its command. Pure.

It goes by what the API shows of a group. The first case that applies counts; in most groups none
does. What mends itself within seconds, as an election does, is no case.

    delay group                                    step
    its store was set back                         start who has not reported; else `recover`
    a disk in sync is refused                      as the refusal says
    no disk is in sync                             start a node: the group begins anew with it
    no member in sync is heard                     start them; `give-up` of the only disk, if lost
    its master is silent, and an operator elects   `elect`
    fewer members are heard than min ISR           start the others, or a lower `min-isr`
    another node is refused                        as the refusal says
    the clock of a node is wrong                   set it right
    a node keeps other rules than those set here   set what is to hold, then `controls --follow`
    a member is unfit: its disk is full, damaged   look at its status
    a node that is not in sync is silent           start it, or remove it
    a node is not in sync                          the status of the master says why
    it was retired                                 stop its nodes, and give them up

    broker group                                   step
    it waits for approval                          `approve`
    it is retired and silent                       remove it
    it is away, and entered or in routes           start its broker, or `retire`

    receivers                                      step
    their name has no pattern                      set one
    nobody receives under their name               start a receiver, or remove the name

    webhook                                        step
    it is disabled, as after an answer 410         enable it
"""

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from meta_server.admin.admin_types import (
    BrokerGroupShown,
    DelayGroupShown,
    NextStep,
    NodeShown,
    ReceiverShown,
)
from meta_server.groups.receiver_groups import NAMES_MAX
from meta_server.known.model import Webhook
from meta_server.wire.admission import WaitingGroup

_START: Final = "`systemctl start delaywheel-delay-server`"
_SET_CLOCK: Final = "`chronyc makestep`"
_FOLLOW: Final = "controls --follow"
"""Is in the note of a node that keeps its rules until it is told to follow."""


def next_steps(
    delay_groups: Iterable[DelayGroupShown],
    broker_groups: Iterable[BrokerGroupShown],
    receivers: Iterable[ReceiverShown],
    waiting: Iterable[WaitingGroup],
    webhooks: Iterable[Webhook],
    *,
    behind: Mapping[str, str],
    routed: Collection[str],
    hears_all: bool,
    elects: bool,
) -> list[NextStep]:
    """Return the next step for each group for which there is one.

    behind: delay groups whose newest record the store lacks, with what they wait for; routed:
    groups to which a route leads; hears_all: no receiver is connected to another meta server;
    elects: the meta server begins elections by itself
    """
    shown = {group.name: group for group in broker_groups}
    ours = {group.name: group for group in delay_groups}
    steps = {
        name: step_for_delay_group(
            group, is_retired=name in shown and shown[name].is_retired, elects=elects
        )
        for name, group in ours.items()
    }
    steps |= {
        name: step_for_broker_group(group, is_routed=name in routed)
        for name, group in shown.items()
        if name not in ours
    }
    steps |= {one.name: step_for_receiver(one) for one in receivers if hears_all}
    steps |= {one.name: step_for_disabled(one) for one in webhooks if one.disabled}
    steps |= {one.row.name: step_for_waiting(one) for one in waiting} | {**behind}
    return [NextStep(group=name, step=step) for name, step in steps.items() if step]


def step_for_delay_group(
    group: DelayGroupShown, *, is_retired: bool = False, elects: bool = True
) -> str:
    """Return the next step for a group of delay servers; empty if there is none."""
    heard = [node for node in group.nodes if node.heard_seconds_ago is not None]
    members = [node for node in heard if node.in_sync]
    refused = {node: f"{node} is refused: {why}" for node, why in sorted(group.refused.items())}
    steps = (
        *(step for node, step in refused.items() if node in group.in_sync),
        *_steps_to_serve(group, members, elects=elects),
        *refused.values(),
        *_steps_for_clocks(heard),
        *_steps_for_nodes(group, heard, members),
    )
    if is_retired and members:
        give_up = _admin("give-up", group.name, members[0].node_id)
        steps += (f"it is retired: when nothing is pending stop its nodes, then {give_up}",)
    return next(iter(steps), "")


def _steps_to_serve(
    group: DelayGroupShown, members: list[NodeShown], *, elects: bool
) -> Iterator[str]:
    """Yield what gets a group a master that may acknowledge; members: in sync, and heard."""
    present = {node.node_id for node in members}
    away = [node for node in group.in_sync if node not in present]
    if not group.in_sync:
        yield f"no disk is in sync: the group begins anew with the node that you start: {_START}"
    elif not members:
        start = f"nobody in sync is heard: start {_one_of(away)}: {_START}"
        lost = f"; if that disk, the only one, is lost: {_admin('give-up', group.name, *away)}"
        yield start + (lost if len(away) == 1 else "")
    if not elects and members and group.master in away:
        elect = _admin("elect", group.name)
        yield f"the master {group.master} is silent: have another one elected: {elect}"
    if 0 < len(members) < group.min_isr:
        fewer = _admin("min-isr", group.name, str(len(members)))
        yield (
            f"{len(members)} of {group.min_isr} disks that must be in sync (min ISR) are heard: "
            f"start {_one_of(away)}: {_START}, or let fewer be enough: {fewer}"
        )


def _steps_for_clocks(heard: list[NodeShown]) -> Iterator[str]:
    wrong = [node for node in heard if node.clock_note]
    if wrong and len(wrong) == len(heard) > 1:
        yield f"all clocks differ from this meta server's: set its clock right: {_SET_CLOCK}"
    for node in wrong:
        yield f"{node.node_id}: {node.clock_note}: set the clock right: {_SET_CLOCK}"


def _steps_for_nodes(
    group: DelayGroupShown, heard: list[NodeShown], members: list[NodeShown]
) -> Iterator[str]:
    """Yield what gets a group all of its copies, by the same rules."""
    for node in heard:
        if _FOLLOW in node.controls_note:
            take = f"set here what is to hold, then have it take that: {_at(node, _FOLLOW)}"
            yield f"{node.node_id} keeps other rules: {take}"
    for node in members:
        if node.fitness == "unfit":
            look = _at(node, "status")
            yield f"{node.node_id} is unfit to be the master ({node.fitness_note}): {look}"
    for node in group.nodes:
        if node not in heard and node.node_id not in group.in_sync:
            remove = _admin("remove", "delay-node", f"{group.name}/{node.node_id}")
            yield f"{node.node_id} is silent: start it: {_START}; if it is gone for good: {remove}"
    for master in members:
        outside = [node.node_id for node in heard if not node.in_sync]
        if master.node_id == group.master and outside:
            yield f"{outside[0]} is not in sync; the master says why: {_at(master, 'status')}"


def step_for_receiver(receiver: ReceiverShown) -> str:
    """Return the next step for a name of receivers; empty if there is none."""
    if not receiver.patterns:
        subjects = _admin("set", "receiver", receiver.name, "patterns=SUBJECT")
        return f"it gets no subject, of which each has at most {NAMES_MAX} names: {subjects}"
    remove = _admin("remove", "receiver", receiver.name)
    lack = f"nobody receives under its name: start a receiver; if it is gone for good: {remove}"
    return "" if receiver.connected else lack


def step_for_disabled(webhook: Webhook) -> str:
    """Return the next step for a webhook that is disabled; why may be an endpoint's own text."""
    enable = _admin("set", "webhook", webhook.name, "disabled=")
    return f"its webhook is disabled ({webhook.disabled!r}); once its endpoint works: {enable}"


def step_for_broker_group(group: BrokerGroupShown, *, is_routed: bool) -> str:
    """Return the next step for a group that is none of delay servers; empty if there is none."""
    is_silent = group.heard_seconds_ago is None
    if group.is_retired:
        remove = _admin("remove", "broker-group", group.name)
        return f"it is retired: when all is consumed free its name: {remove}" if is_silent else ""
    is_missed = is_silent and (is_routed or group.is_entered)
    if group.state != "NRW" or group.is_static or not is_missed:
        return ""
    where = f" at {group.master}" if group.master else ""
    return f"it is away: start its broker{where}; if it is gone for good: " + _admin(
        "retire", group.name
    )


def step_for_waiting(waiting: WaitingGroup) -> str:
    """Return how a group is let in that waits for that."""
    return f"it asks from {waiting.where}; if it is yours, let it in: {_admin(*waiting.remedy)}"


def _one_of(nodes: list[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"one of {', '.join(nodes)}"


def _at(node: NodeShown, command: str) -> str:
    """Return a command that asks a node."""
    server = f" --server {shlex.quote(node.http_address)}" if node.http_address else ""
    return f"`delaywheel {command}{server}`"


def _admin(*words: str) -> str:
    """Return a command as it is typed: whoever registers chooses names."""
    return f"`delaywheel admin {shlex.join(words)}`"
