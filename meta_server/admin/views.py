"""Rows as administrators are shown them: their fields, and what is known beside them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Literal, TypeVar, cast

import trio
from msgspec.structs import asdict, astuple

from delay_protocol.nodes.clocks import difference
from delay_protocol.nodes.controls import Controls, GroupControl, SubjectControl
from delay_transport.http.pages import Turns, slices_of
from meta_server.admin.admin_types import (
    BrokerGroupShown,
    BrokerShown,
    ClusterShown,
    DelayGroupShown,
    Fit,
    GroupRuleKey,
    GroupRuleShown,
    NodeShown,
    ReceiverShown,
    RouteKey,
    RouteShown,
    SubjectRuleKey,
    SubjectRuleShown,
    Topology,
    Unserved,
)
from meta_server.admin.next_steps import next_steps
from meta_server.admin.parts import Parts
from meta_server.admin.rules import check_cluster, subject_of
from meta_server.groups.routing import is_routed, why_unserved
from meta_server.known.errors import NotFoundError
from meta_server.known.model import (
    Broker,
    BrokerGroup,
    DelayGroup,
    DelayNode,
    Receiver,
    Route,
    Row,
)
from meta_server.known.registry import Registry

_EXAMPLES_MAX: Final = 5
"""Patterns named of those that are not served for one reason."""

_REASONS_MAX: Final = 50
"""Reasons told of."""

R = TypeVar("R")
S = TypeVar("S")


def _fields(row: Row) -> dict[str, Any]:
    """Return the fields of a row; numbers that have names by these."""
    return {
        name: value.name if isinstance(value, IntEnum) else value
        for name, value in asdict(row).items()
    }


def _seconds_since(at: float | None) -> float | None:
    return None if at is None else round(trio.current_time() - at, 3)


def show_group(parts: Parts, group: BrokerGroup) -> BrokerGroupShown:
    """Return a broker group."""
    return BrokerGroupShown(
        **(_fields(group) | {"is_entered": parts.registry.is_entered(group.name)}),
        heard_seconds_ago=_seconds_since(parts.heard.heard_at(group.name, parts.now)),
    )


def show_broker(_: Parts, broker: Broker) -> BrokerShown:
    """Return a broker."""
    return BrokerShown(**_fields(broker))


def show_route(parts: Parts, route: Route) -> RouteShown:
    """Return a route."""
    return RouteShown(
        **asdict(route),
        pattern=route.pattern,
        follows=route.pattern,
        unserved=why_unserved(parts.registry, route.groups),
    )


def show_route_of(parts: Parts, key: RouteKey) -> RouteShown:
    """Return where a pattern leads, and why; raise NotFoundError for a prefix without a route."""
    name, is_prefix = subject_of(key.pattern)
    registry = parts.registry
    own = registry.of(Route).get((name, is_prefix))
    if own and not (own.is_chosen and registry.receivers_of(name)):
        return show_route(parts, own)
    if is_prefix:
        raise NotFoundError(f"the prefix {name!a} has no route of its own")
    prefix = registry.prefix_route(name)
    groups = () if prefix is None else prefix.groups
    receivers = tuple(row.name for row in registry.receivers_of(name))
    why = "" if receivers else why_unserved(registry, None if prefix is None else groups)
    return RouteShown(
        **asdict(Route(name=name, groups=receivers or groups, is_chosen=False, version=0)),
        pattern=key.pattern,
        follows="" if prefix is None else prefix.pattern,
        unserved=why,
    )


def show_receiver(parts: Parts, receiver: Receiver) -> ReceiverShown:
    """Return a name of receivers."""
    attached = sum(session.receiver == receiver.name for session in parts.handlers.sessions)
    return ReceiverShown(**_fields(receiver), connected=attached)


def show_delay_group(parts: Parts, group: DelayGroup) -> DelayGroupShown:
    """Return a delay group with its nodes."""
    record, changes = group.record, parts.handlers.group_changes
    nodes = parts.registry.nodes_in(group.cluster, group.name)
    master = None if record.master is None else record.master.node_id
    return DelayGroupShown(
        **(asdict(record) | {"master": master, "in_sync": sorted(record.in_sync)}),
        name=group.name,
        cluster=group.cluster,
        log_uuid=group.log_uuid,
        election=changes.sentence_of(group.name),
        controls_version=parts.registry.controls_of(group.cluster).version,
        nodes=[show_node(parts, node) for node in nodes],
        refused=changes.state_of(group.name).refusals(
            {node.node_id: node.registered_ms for node in nodes}, now_ms=parts.now_ms
        ),
    )


def show_node(parts: Parts, node: DelayNode) -> NodeShown:
    """Return a delay server."""
    group = parts.registry.delay_groups[node.group]
    changes = parts.handlers.group_changes
    now = parts.now
    state = changes.state_of(group.name)
    heard = state.heard_of(node)
    rank, sentence = state.fitness(group.record, node.node_id, now=now)
    version, controls_note = changes.controls_at(node.key)
    return NodeShown(
        **(asdict(node) | {"last_sequence": None if heard is None else heard.node.last_sequence}),
        role=group.role_of(node).value,
        in_sync=group.has_in_sync(node),
        committed=None if heard is None else heard.node.committed,
        uncommitted=None if heard is None else heard.node.uncommitted,
        heard_seconds_ago=_seconds_since(changes.heard_at(node.key)),
        controls_version=version,
        controls_note=controls_note,
        clock_note=difference(0 if heard is None else heard.node.clock_ahead_ms),
        fitness=cast("Fit", rank.name.lower()),
        fitness_note=sentence,
    )


# Clusters and their rules


def show_cluster(parts: Parts, cluster: str) -> ClusterShown:
    """Return a cluster with its nodes."""
    registry = parts.registry
    controls = registry.controls_of(cluster)
    return ClusterShown(
        name=cluster,
        version=controls.version,
        rules=len(controls.subjects) + len(controls.groups),
        store=parts.store.uuid,
        unknown_groups=sorted(
            controls.groups.keys() - registry.groups.keys() - registry.receivers.keys()
        ),
        nodes=[
            show_node(parts, node)
            for _, node in sorted(registry.nodes.items())
            if node.cluster == cluster
        ],
    )


RuleKey = SubjectRuleKey | GroupRuleKey
RuleShown = SubjectRuleShown | GroupRuleShown
Control = SubjectControl | GroupControl


@dataclass(frozen=True, slots=True)
class RuleViews:
    """The rules of subjects, or of broker groups, in all clusters, as administrators see them."""

    of: Literal["subject", "group"]
    """The field that names one."""
    key: type[RuleKey]
    shown: type[RuleShown]
    none: Control
    """The rule that changes nothing."""

    def rows(self, registry: Registry) -> list[RuleShown]:
        """Return all there are."""
        return [
            self._shown(cluster, name, row.version, rule)
            for cluster, row in registry.controls.items()
            for name, rule in self._rules(row.controls).items()
        ]

    def find(self, registry: Registry, key: RuleKey) -> RuleShown | None:
        """Return the rule of a key, if there is one."""
        cluster, name = astuple(key)
        controls = registry.controls_of(cluster)
        rule = self._rules(controls).get(name)
        return None if rule is None else self._shown(cluster, name, controls.version, rule)

    def show(self, parts: Parts, key: RuleKey) -> RuleShown:
        """Return the rule of a key; if there is none one that changes nothing."""
        cluster, name = astuple(key)
        check_cluster(parts.registry, cluster)
        return self.find(parts.registry, key) or self._shown(cluster, name, 0, self.none)

    def _rules(self, controls: Controls) -> Mapping[str, Control]:
        return controls.subjects if self.of == "subject" else controls.groups

    def _shown(self, cluster: str, name: str, version: int, rule: Control) -> RuleShown:
        fields: dict[str, Any] = asdict(rule) | {"cluster": cluster, self.of: name}
        return self.shown(version=version, **fields)


SUBJECT_RULES: Final = RuleViews("subject", SubjectRuleKey, SubjectRuleShown, SubjectControl())

GROUP_RULES: Final = RuleViews("group", GroupRuleKey, GroupRuleShown, GroupControl())


# Everything


async def routes_of(registry: Registry) -> tuple[dict[str, int], list[Unserved]]:
    """Return how many routes lead to each group, and routes that no group serves.

    What changes meanwhile may count or not.
    """
    by_group: Counter[str] = Counter()
    unserved: defaultdict[str, list[str]] = defaultdict(list)
    async with aclosing(slices_of(registry.of(Route).values())) as routes:
        async for some in routes:
            for route in some:
                if route.is_chosen and registry.receivers_of(route.name):
                    continue
                by_group.update(route.groups)
                unserved[why_unserved(registry, route.groups)].append(route.pattern)
    async with aclosing(slices_of(registry.subjects)) as subjects:
        async for names in subjects:
            for name in names:
                if not is_routed(registry, name):
                    unserved[why_unserved(registry, None)].append(name)
    unserved.pop("", None)
    most = sorted(unserved.items(), key=lambda item: -len(item[1]))[:_REASONS_MAX]
    return dict(sorted(by_group.items())), [
        Unserved(why=why, patterns=len(found), examples=sorted(found)[:_EXAMPLES_MAX])
        for why, found in most
    ]


async def _all_shown(parts: Parts, rows: dict[str, R], show: Callable[[Parts, R], S]) -> list[S]:
    """Return rows as they are shown, by name, some in each turn of the loop."""
    turns, shown = Turns(), []
    for name in sorted(rows):
        if row := rows.get(name):
            shown.append(show(parts, row))
        await turns.pause()
    return shown


async def topology_of(parts: Parts, failing: list[str]) -> Topology:
    """Return everything at a glance."""
    registry = parts.registry
    groups = await _all_shown(parts, registry.groups, show_group)
    delay_groups = await _all_shown(parts, registry.delay_groups, show_delay_group)
    receivers = await _all_shown(parts, registry.receivers, show_receiver)
    routes_by_group, unserved = await routes_of(registry)
    return Topology(
        now_ms=parts.now_ms,
        failing=failing,
        next_steps=next_steps(
            delay_groups,
            groups,
            receivers,
            parts.handlers.admission.waiting.values(),
            registry.webhooks.values(),
            behind=parts.set_backs.all_behind(),
            routed={*routes_by_group},
            hears_all=parts.config.is_alone,
            elects=parts.config.registration.elect == "automatic",
        ),
        broker_groups=groups,
        receivers=receivers,
        delay_groups=delay_groups,
        routes_by_group=routes_by_group,
        unserved=unserved,
    )
