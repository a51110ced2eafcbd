"""All rows in memory, and how a change alters them. Pure: what is durable is decided elsewhere.

The registry is given changes only after the store has them, so whatever is read here would survive
a restart. It checks the same conditions as a store does; that one of them fails here, after the
store accepted it, means that somebody else writes to the store.
"""

from collections.abc import Callable, Hashable, Iterator, MutableMapping, Sequence
from typing import Any, TypeVar

from delay_protocol.meta.requests import BrokerRole
from delay_protocol.nodes.controls import Controls
from meta_server.known.errors import ConflictError
from meta_server.known.model import (
    ENTERED,
    STATIC,
    Audit,
    Broker,
    BrokerGroup,
    Change,
    ClusterControls,
    Contents,
    DelayGroup,
    DelayNode,
    ForgetAudit,
    RaiseTimestamp,
    RemoveBroker,
    RemoveBrokerGroup,
    RemoveDelayGroup,
    RemoveDelayNode,
    RemoveRoute,
    RemoveSubject,
    Route,
    SaveBroker,
    SaveBrokerGroup,
    SaveControls,
    SaveDelayGroup,
    SaveDelayNode,
    SaveRoute,
    SaveSubject,
    Subject,
)

BrokerKey = tuple[str, int]
"""Hostname and serve port."""

NodeKey = tuple[str, str, str]
"""Cluster, group and node id."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_Undo = Callable[[], object]


class Registry:
    """Rows by their keys, and the few other ways to find them.

    Read the mappings; change them through `apply` only.
    """

    def __init__(self, contents: Contents) -> None:
        self.groups: dict[str, BrokerGroup] = {}
        self.brokers: dict[BrokerKey, Broker] = {}
        self.subjects: dict[str, Subject] = {}
        self.routes: dict[str, Route] = {}
        """Routes of single subjects."""
        self.prefixes: dict[str, Route] = {}
        """Routes of prefixes."""
        self.brought: dict[str, Route] = {}
        """Those of all routes that receivers brought, by pattern."""
        self.nodes: dict[NodeKey, DelayNode] = {}
        self.delay_groups: dict[str, DelayGroup] = {}
        self.controls: dict[str, ClusterControls] = {}
        """Rules by cluster: pauses, limits, weights."""
        self.timestamp_ms = 0
        # Other ways to find rows.
        self._brokers_in: dict[str, dict[BrokerKey, None]] = {}
        self._nodes_in: dict[tuple[str, str], dict[NodeKey, None]] = {}
        self._prefix_lengths: tuple[int, ...] = ()
        self._take_over(contents)

    def adopt(self, other: "Registry") -> None:
        """Exchange everything with another registry; what was said once stays said."""
        other.timestamp_ms = max(self.timestamp_ms, other.timestamp_ms)
        own = dict(vars(self))
        vars(self).update(vars(other))
        vars(other).update(own)

    def dismantle(self, count: int) -> bool:
        """Drop up to so many rows; say whether there were any. For one that is used no more.

        Dropping a hundred thousand at once would take tens of milliseconds.
        """
        for table in vars(self).values():
            if isinstance(table, dict) and table:
                for _ in range(min(count, len(table))):
                    table.popitem()
                return True
        return False

    def _take_over(self, contents: Contents) -> None:
        self.groups = {group.name: group for group in contents.broker_groups}
        self.brokers = {(row.hostname, row.serve_port): row for row in contents.brokers}
        self.subjects = {subject.name: subject for subject in contents.subjects}
        self.routes = {route.name: route for route in contents.routes if not route.is_prefix}
        self.prefixes = {route.name: route for route in contents.routes if route.is_prefix}
        self.brought = {route.pattern: route for route in contents.routes if route.is_brought}
        self.nodes = {_node_key(node): node for node in contents.delay_nodes}
        self.delay_groups = {group.name: group for group in contents.delay_groups}
        self.controls = {row.cluster: row for row in contents.controls}
        self.timestamp_ms = contents.timestamp_ms
        self._brokers_in = _index(self.brokers, lambda row: row.group)
        self._nodes_in = _index(self.nodes, lambda row: (row.cluster, row.group))
        self._measure_prefixes()

    def contents(self) -> Contents:
        """Return all rows, as a store would."""
        return Contents(
            broker_groups=tuple(self.groups.values()),
            brokers=tuple(self.brokers.values()),
            subjects=tuple(self.subjects.values()),
            routes=(*self.routes.values(), *self.prefixes.values()),
            delay_nodes=tuple(self.nodes.values()),
            delay_groups=tuple(self.delay_groups.values()),
            controls=tuple(self.controls.values()),
            timestamp_ms=self.timestamp_ms,
        )

    # Looking up

    def controls_of(self, cluster: str) -> Controls:
        """Return the rules of a cluster; version 0 if none was ever set."""
        row = self.controls.get(cluster)
        return Controls() if row is None else row.controls

    def is_entered(self, name: str) -> bool:
        """Say whether an operator said that there is a broker group of this name, or its broker."""
        group = self.groups.get(name)
        ext = {} if group is None else group.ext
        return ENTERED in ext or STATIC in ext or bool(self._brokers_in.get(name))

    def brokers_in(self, group: str) -> tuple[Broker, ...]:
        """Return the brokers that belong to a group."""
        return tuple(self.brokers[key] for key in self._brokers_in.get(group, ()))

    def broker_with_role(self, group: str, *roles: BrokerRole) -> Broker | None:
        """Return the broker that has one of these roles in a group."""
        return next((row for row in self.brokers_in(group) if row.role in roles), None)

    def nodes_in(self, cluster: str, group: str) -> tuple[DelayNode, ...]:
        """Return the delay nodes of a group, in the order in which they came."""
        return tuple(self.nodes[key] for key in self._nodes_in.get((cluster, group), ()))

    def prefix_route(self, subject: str) -> Route | None:
        """Return the route of the longest prefix of a subject that has one."""
        for length in self._prefix_lengths:
            if route := self.prefixes.get(subject[:length]):
                return route
        return None

    # Changing

    def apply(self, changes: Sequence[Change]) -> None:
        """Make these changes, or raise ConflictError and make none of them."""
        undo: list[_Undo] = []
        try:
            for change in changes:
                undo += self._apply(change)
        except ConflictError:
            for step in reversed(undo):
                step()
            self._measure_prefixes()
            raise

    def _apply(self, change: Change) -> Iterator[_Undo]:  # noqa: C901, PLR0912 (a table)
        match change:
            case SaveBrokerGroup(group):
                _check_version("broker group", group.name, self.groups, group.version)
                yield _put(self.groups, group.name, group)
            case RemoveBrokerGroup(group):
                _check_version("broker group", group.name, self.groups, group.version + 1)
                yield _take(self.groups, group.name)
            case SaveBroker(broker):
                yield from self._save_broker(broker)
            case RemoveBroker(broker):
                yield from self._remove_broker(broker)
            case SaveSubject(subject):
                _check_version("subject", subject.name, self.subjects, subject.version)
                yield _put(self.subjects, subject.name, subject)
            case RemoveSubject(subject):
                _check_version("subject", subject.name, self.subjects, subject.version + 1)
                yield _take(self.subjects, subject.name)
            case SaveRoute(route):
                yield from self._save_route(route)
            case RemoveRoute(route):
                yield from self._remove_route(route)
            case SaveDelayNode(node):
                yield from self._save_node(node)
            case RemoveDelayNode(node):
                yield from self._remove_node(node)
            case SaveDelayGroup(delay_group, expected):
                self._check_record(delay_group, expected)
                yield _put(self.delay_groups, delay_group.name, delay_group)
            case RemoveDelayGroup(delay_group):
                self._check_pair(delay_group.name, delay_group.pair)
                yield _take(self.delay_groups, delay_group.name)
            case RaiseTimestamp(timestamp_ms):
                before = self.timestamp_ms
                self.timestamp_ms = max(before, timestamp_ms)
                yield lambda: setattr(self, "timestamp_ms", before)
            case SaveControls(row):
                _check_version("controls", row.cluster, self.controls, row.version)
                yield _put(self.controls, row.cluster, row)
            case Audit() | ForgetAudit():
                pass

    def _save_broker(self, broker: Broker) -> Iterator[_Undo]:
        key = (broker.hostname, broker.serve_port)
        _check_version("broker", key, self.brokers, broker.version)
        self._check_role(broker)
        yield from self._drop_broker(key)
        yield _put(self.brokers, key, broker)
        yield _put(self._brokers_in.setdefault(broker.group, {}), key, None)

    def _remove_broker(self, broker: Broker) -> Iterator[_Undo]:
        key = (broker.hostname, broker.serve_port)
        _check_version("broker", key, self.brokers, broker.version + 1)
        yield from self._drop_broker(key)

    def _check_role(self, broker: Broker) -> None:
        key = (broker.hostname, broker.serve_port)
        for other in self._brokers_in.get(broker.group, {}):
            if other != key and self.brokers[other].role is broker.role:
                raise ConflictError(
                    what=f"{broker.role.name} of {broker.group}",
                    expected=f"{key}",
                    found=f"{other}",
                )

    def _drop_broker(self, key: BrokerKey) -> Iterator[_Undo]:
        before = self.brokers.get(key)
        if before is not None:
            yield _take(self.brokers, key)
            yield from _take_from(self._brokers_in, before.group, key)

    def _save_route(self, route: Route) -> Iterator[_Undo]:
        table = self.prefixes if route.is_prefix else self.routes
        _check_version("route", route.name, table, route.version)
        yield _put(table, route.name, route)
        yield _take(self.brought, route.pattern)
        if route.is_brought:
            yield _put(self.brought, route.pattern, route)
        self._measure_prefixes()

    def _remove_route(self, route: Route) -> Iterator[_Undo]:
        table = self.prefixes if route.is_prefix else self.routes
        _check_version("route", route.name, table, route.version + 1)
        yield _take(table, route.name)
        yield _take(self.brought, route.pattern)
        self._measure_prefixes()

    def _save_node(self, node: DelayNode) -> Iterator[_Undo]:
        key = _node_key(node)
        _check_version("delay node", key, self.nodes, node.version)
        yield _put(self.nodes, key, node)
        yield _put(self._nodes_in.setdefault(key[:2], {}), key, None)

    def _remove_node(self, node: DelayNode) -> Iterator[_Undo]:
        key = _node_key(node)
        _check_version("delay node", key, self.nodes, node.version + 1)
        yield _take(self.nodes, key)
        yield from _take_from(self._nodes_in, key[:2], key)

    def _check_record(self, group: DelayGroup, expected: tuple[int, int] | None) -> None:
        self._check_pair(group.name, expected)
        owner = next(
            (
                other.name
                for other in self.delay_groups.values()
                if other.log_uuid == group.log_uuid and other.name != group.name
            ),
            None,
        )
        if owner is not None:
            raise ConflictError(
                what=f"log {group.log_uuid}", expected=f"of {group.name}", found=f"of {owner}"
            )

    def _check_pair(self, name: str, expected: tuple[int, int] | None) -> None:
        found = self.delay_groups.get(name)
        has = None if found is None else found.pair
        if has != expected:
            raise ConflictError(what=f"record of {name}", expected=str(expected), found=str(has))

    def _measure_prefixes(self) -> None:
        self._prefix_lengths = tuple(sorted({len(name) for name in self.prefixes}, reverse=True))


def _node_key(node: DelayNode) -> NodeKey:
    return (node.cluster, node.group, node.node_id)


def _index(rows: dict[K, V], of: Callable[[V], Any]) -> dict[Any, dict[K, None]]:
    index: dict[Any, dict[K, None]] = {}
    for key, row in rows.items():
        index.setdefault(of(row), {})[key] = None
    return index


def _check_version(what: str, key: object, rows: MutableMapping[Any, Any], version: int) -> None:
    """Check that the row to be replaced has the version before `version`; 0: there is none."""
    row = rows.get(key)
    found = 0 if row is None else row.version
    if found != version - 1:
        raise ConflictError(
            what=f"{what} {key}", expected=f"version {version - 1}", found=f"version {found}"
        )


def _put(rows: MutableMapping[K, V], key: K, row: V) -> _Undo:
    if key in rows:
        before = rows[key]
        rows[key] = row
        return lambda: rows.__setitem__(key, before)
    rows[key] = row
    return lambda: rows.__delitem__(key)


def _take(rows: MutableMapping[K, V], key: K) -> _Undo:
    if key not in rows:
        return lambda: None
    before = rows.pop(key)
    return lambda: rows.__setitem__(key, before)


def _take_from(index: dict[Any, dict[K, None]], name: object, key: K) -> Iterator[_Undo]:
    """Take a key out of an index, and the part of the index that it leaves empty."""
    keys = index.get(name)
    if keys is None:
        return
    yield _take(keys, key)
    if not keys:
        yield _take(index, name)
