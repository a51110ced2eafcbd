"""Rows as administrators are shown them."""

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final, Literal, cast

import trio

from delay_protocol.meta.requests import BrokerState
from delay_protocol.nodes.clocks import difference
from delay_protocol.nodes.registration import NodeRole
from delay_transport.http.metric_families import installed_version
from meta_server.admin.admin_types import (
    BrokerGroupShown,
    BrokerShown,
    ControlsAtNode,
    ControlsShown,
    DelayGroupShown,
    Fit,
    Kind,
    NodeShown,
    PrefixRouteShown,
    RouteShown,
    RouteSummary,
    State,
    SubjectRouteShown,
    SubjectShown,
    Topology,
    UnservedShown,
    WaitingGroupShown,
)
from meta_server.admin.pages import Turns, slices_of
from meta_server.admin.parts import Parts
from meta_server.admin.plans import check_cluster
from meta_server.admin.status import note_of
from meta_server.groups.routing import delay_groups_for, why_unserved
from meta_server.known.model import (
    OWN_EXT,
    STATIC,
    Broker,
    BrokerGroup,
    DelayGroup,
    DelayNode,
    Route,
    Subject,
)

_EXAMPLES_MAX: Final = 5
"""Subjects named of those that are not served for one reason."""

_REASONS_MAX: Final = 50
"""Reasons told of."""


def show_group(parts: Parts, group: BrokerGroup) -> BrokerGroupShown:
    """Return a broker group."""
    return BrokerGroupShown(
        name=group.name,
        kind=cast("Kind", group.kind.name.lower()),
        address=group.master,
        state=cast("State", BrokerState(group.state).name),
        since_ms=group.updated_ms,
        liveness=parts.heard.groups.sign_of(group.name),
        heard_seconds_ago=_seconds_since(parts.heard.groups.heard_at(group.name)),
        tag=group.tag,
        weight=group.weight,
        ext={name: value for name, value in group.ext.items() if name not in OWN_EXT},
        static=STATIC in group.ext,
        entered=parts.registry.is_entered(group.name),
        read_only=group.is_read_only,
        retired=group.is_retired,
        version=group.version,
    )


def _seconds_since(at: float | None) -> float | None:
    return None if at is None else round(trio.current_time() - at, 3)


def show_broker(broker: Broker) -> BrokerShown:
    """Return a broker."""
    return BrokerShown(
        group=broker.group,
        role=broker.role.name,
        hostname=broker.hostname,
        serve_port=broker.serve_port,
        ip=broker.ip,
        sync_port=broker.sync_port,
        version=broker.version,
    )


def show_route(route: Route) -> RouteShown:
    """Return a route."""
    return RouteShown(
        name=route.name, groups=list(route.groups), chosen=route.is_chosen, version=route.version
    )


async def led_by_prefixes(parts: Parts) -> AsyncGenerator[list[tuple[str, Route]], None]:
    """Yield the subjects that the route of a prefix leads, as far as they are known, with it."""
    registry = parts.registry

    def led(names: list[str]) -> list[tuple[str, Route]]:
        return [
            (name, route)
            for name in names
            if name not in registry.routes and (route := registry.prefix_route(name)) is not None
        ]

    async with aclosing(slices_of(registry.subjects)) as subjects:
        async for some in subjects:
            yield led(some)
    async with aclosing(slices_of(await parts.pusher.used_subjects())) as subjects:
        async for some in subjects:
            yield led([name for name in some if name not in registry.subjects])


async def show_prefix(parts: Parts, route: Route) -> PrefixRouteShown:
    """Return the route of a prefix; subjects that come or go meanwhile may count or not."""
    registry, prefix = parts.registry, route.name
    led, kept = 0, 0
    examples: list[str] = []
    async with aclosing(slices_of(registry.routes)) as routes:
        async for some in routes:
            own = [name for name in some if name.startswith(prefix)]
            kept += len(own)
            examples += own[: _EXAMPLES_MAX - len(examples)]
    async with aclosing(led_by_prefixes(parts)) as subjects:
        async for pairs in subjects:
            led += sum(nearest.name == prefix for _, nearest in pairs)
    return PrefixRouteShown(
        name=prefix,
        groups=list(route.groups),
        chosen=route.is_chosen,
        version=route.version,
        subjects=led,
        kept=kept,
        kept_examples=examples,
    )


def show_subject(subject: Subject) -> SubjectShown:
    """Return a subject."""
    return SubjectShown(
        name=subject.name, tag=subject.tag, created_ms=subject.created_ms, version=subject.version
    )


def show_way(parts: Parts, subject: str) -> SubjectRouteShown:
    """Return where a subject leads, and why."""
    registry = parts.registry
    own, prefix = registry.routes.get(subject), registry.prefix_route(subject)
    route = own or prefix
    source: Literal["subject", "prefix", "none"] = "none"
    if route is not None:
        source = "subject" if own is not None else "prefix"
    return SubjectRouteShown(
        subject=subject,
        groups=[] if route is None else list(route.groups),
        delay_groups=[
            info.name for info in delay_groups_for(registry, subject, parts.config.routing)
        ],
        source=source,
        prefix=prefix.name if prefix is not None and own is None else "",
        chosen=own is not None and own.is_chosen,
        version=own.version if own is not None else 0,
        unserved=why_unserved(registry, subject),
    )


def show_delay_group(parts: Parts, group: DelayGroup) -> DelayGroupShown:
    """Return a delay group with its nodes."""
    record, changes = group.record, parts.handlers.group_changes
    return DelayGroupShown(
        name=group.name,
        cluster=group.cluster,
        log_uuid=str(group.log_uuid),
        epoch=record.epoch,
        version=record.version,
        phase=record.phase.value,
        election=changes.sentence_of(group.name),
        master=None if record.master is None else record.master.node_id,
        in_sync=sorted(record.in_sync),
        min_isr=record.min_isr,
        controls_version=parts.registry.controls_of(group.cluster).version,
        nodes=[
            _show_node(parts, group, node)
            for node in parts.registry.nodes_in(group.cluster, group.name)
        ],
    )


def _may_deliver(group: DelayGroup | None, node: DelayNode) -> bool:
    # One that was the master may go on until it hears otherwise.
    return group is None or group.has_in_sync(node)


def _show_node(parts: Parts, group: DelayGroup, node: DelayNode) -> NodeShown:
    in_sync, role = group.has_in_sync(node), group.role_of(node)
    state = parts.handlers.group_changes.state_of(group.name)
    heard = state.heard_of(node)
    rank, sentence = state.fitness(group.record, node.node_id, now=trio.current_time())
    key = (node.cluster, node.group, node.node_id)
    return NodeShown(
        node_id=node.node_id,
        role=role.value,
        in_sync=in_sync,
        accepts=role is NodeRole.MASTER,
        may_deliver=_may_deliver(group, node),
        note=note_of(group, node),
        last_sequence=None if heard is None else heard.end - 1,
        committed=None if heard is None else heard.committed,
        uncommitted=None if heard is None else heard.uncommitted,
        address=node.address,
        http_address=node.http_address,
        storage_uuid=str(node.storage_uuid),
        incarnation=node.incarnation,
        software=node.software,
        registered_ms=node.registered_ms,
        liveness=parts.heard.nodes.sign_of(key),
        heard_seconds_ago=_seconds_since(parts.heard.nodes.heard_at(key)),
        controls_version=parts.telling.version_at(key),
        controls_note=parts.telling.note_of(key),
        clock_note=difference(0 if heard is None else heard.clock_ahead_ms),
        fitness=cast("Fit", rank.name.lower()),
        fitness_note=sentence,
    )


def show_controls(parts: Parts, cluster: str) -> ControlsShown:
    """Return the controls of a cluster; raise NotFoundError."""
    registry, telling = parts.registry, parts.telling
    check_cluster(registry, cluster)
    controls = registry.controls_of(cluster)
    return ControlsShown(
        cluster=cluster,
        version=controls.version,
        store=str(parts.store.uuid),
        subjects=controls.subjects,
        groups=controls.groups,
        unknown_groups=sorted(controls.groups.keys() - registry.groups.keys()),
        nodes=[
            ControlsAtNode(
                group=key[1],
                node_id=key[2],
                version=telling.version_at(key),
                note=telling.note_of(key),
                may_deliver=_may_deliver(registry.delay_groups.get(key[1]), node),
                liveness=parts.heard.nodes.sign_of(key),
            )
            for key, node in sorted(registry.nodes.items())
            if key[0] == cluster
        ],
    )


# Everything


class _Unserved:
    """Gathers subjects whose messages no broker group takes."""

    def __init__(self, parts: Parts) -> None:
        self._registry = parts.registry
        self._subjects: Counter[str] = Counter()
        self._examples: dict[str, list[str]] = {}

    def look_at(self, subject: str) -> None:
        """Count a subject if that is so."""
        why = why_unserved(self._registry, subject)
        if not why:
            return
        self._subjects[why] += 1
        examples = self._examples.setdefault(why, [])
        if len(examples) < _EXAMPLES_MAX:
            examples.append(subject)

    @property
    def total(self) -> int:
        """How many there are."""
        return self._subjects.total()

    def shown(self) -> list[UnservedShown]:
        """Return them by their reasons."""
        return [
            UnservedShown(why=why, subjects=count, examples=sorted(self._examples[why]))
            for why, count in self._subjects.most_common(_REASONS_MAX)
        ]


async def summary_of(parts: Parts) -> RouteSummary:
    """Return all routes, counted; what changes meanwhile may count or not."""
    registry = parts.registry
    by_group: Counter[str] = Counter()
    unserved = _Unserved(parts)
    async with aclosing(slices_of(registry.routes.values())) as routes:
        async for some in routes:
            for route in some:
                by_group.update(route.groups)
                unserved.look_at(route.name)
    without = 0
    async with aclosing(slices_of(registry.subjects)) as subjects:
        async for names in subjects:
            for name in names:
                if name not in registry.routes and registry.prefix_route(name) is None:
                    without += 1
                    unserved.look_at(name)
    async with aclosing(led_by_prefixes(parts)) as led:
        async for pairs in led:
            for name, _ in pairs:
                unserved.look_at(name)
    return RouteSummary(
        subjects=len(registry.subjects),
        routes=len(registry.routes),
        prefixes=len(registry.prefixes),
        without_route=without,
        subjects_by_group=dict(sorted(by_group.items())),
        unserved=unserved.total,
        unserved_why=unserved.shown(),
    )


async def topology_of(parts: Parts, failing: list[str]) -> Topology:
    """Return everything at a glance."""
    registry = parts.registry
    turns = Turns()
    groups: list[Any] = []
    for name in sorted(registry.groups):
        if group := registry.groups.get(name):
            groups.append(show_group(parts, group))
        await turns.pause()
    delay_groups: list[Any] = []
    for name in sorted(registry.delay_groups):
        if delay_group := registry.delay_groups.get(name):
            delay_groups.append(show_delay_group(parts, delay_group))
        await turns.pause()
    return Topology(
        version=installed_version(),
        now_ms=parts.clock.now_ms(),
        ready=not failing,
        failing=[
            *failing,
            *(f"{name}: {why}" for name, why in parts.set_backs.all_behind().items()),
        ],
        broker_groups=groups,
        waiting=[
            WaitingGroupShown(
                name=group.name,
                kind=cast("Kind", group.kind.name.lower()),
                address=group.address,
                patterns=list(group.patterns),
                speaks_from=group.where,
                waits_seconds=round(trio.current_time() - group.since, 3),
            )
            for group in parts.handlers.admission.waiting.all(trio.current_time())
        ],
        delay_groups=delay_groups,
        routes=await summary_of(parts),
    )
