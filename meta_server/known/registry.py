"""All rows in memory, and how a change alters them. Pure: what is durable is decided elsewhere.

The registry is given changes only after the store has them, so whatever is read here would survive
a restart. It checks the same conditions as a store does; that one of them fails here, after the
store accepted it, means that somebody else writes to the store.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from delay_protocol.meta.requests import BrokerRole
from delay_protocol.nodes.controls import ANY_END, Controls
from meta_server.known import model
from meta_server.known.errors import ConflictError

BrokerKey = tuple[str, int]
"""Group and role."""

NodeKey = tuple[str, str, str]
"""Cluster, group and node id."""

R = TypeVar("R", bound=model.Row)


class Registry:
    """Rows by their keys, and the few other ways to find them.

    Read the mappings; change them through `apply` only.
    """

    def __init__(self, contents: model.Contents) -> None:
        # Each mapping is kept up by `_put`; the order of the rows in it is that of their coming.
        self._rows: dict[type[model.Row], dict[Any, Any]] = {kind: {} for kind in model.KINDS}
        self._views: dict[type[model.Row], list[_View]] = {kind: [] for kind in model.KINDS}
        self._claims: dict[type[model.Row], dict[Any, Any]] = {
            kind: self._view(kind, lambda row: (row.claim,))
            for kind in model.KINDS
            if kind.CLAIM is not None
        }
        self.groups: dict[str, model.BrokerGroup] = self._rows[model.BrokerGroup]
        self.brokers: dict[BrokerKey, model.Broker] = self._rows[model.Broker]
        self.subjects: dict[str, model.Subject] = self._rows[model.Subject]
        self.nodes: dict[NodeKey, model.DelayNode] = self._rows[model.DelayNode]
        self.delay_groups: dict[str, model.DelayGroup] = self._rows[model.DelayGroup]
        self.controls: dict[str, model.ClusterControls] = self._rows[model.ClusterControls]
        """Rules by cluster: pauses, limits, weights."""
        self.routes: dict[str, model.Route] = self._view(
            model.Route, lambda row: () if row.is_prefix else (row.name,)
        )
        """Routes of single subjects."""
        self.prefixes: dict[str, model.Route] = self._view(
            model.Route, lambda row: (row.name,) if row.is_prefix else ()
        )
        """Routes of prefixes."""
        self.receivers: dict[str, model.Receiver] = self._rows[model.Receiver]
        self.webhooks: dict[str, model.Webhook] = self._rows[model.Webhook]
        self._brokers_in = self._index(model.Broker, lambda row: (row.group,))
        self._nodes_in = self._index(model.DelayNode, lambda row: ((row.cluster, row.group),))
        self._prefixes_of_length = self._index(
            model.Route, lambda row: (len(row.name),) if row.is_prefix else ()
        )
        self._receivers_by_pattern = self._index(model.Receiver, lambda row: row.patterns)
        self._receivers_by_length = self._index(
            model.Receiver, lambda row: {len(one) for one in row.patterns if one.endswith(ANY_END)}
        )
        for row in contents.rows:
            self._put(type(row), row.key, row)
        self.timestamp_ms = contents.timestamp_ms
        self.version = 0
        """Goes up with each commit, and when everything is loaded anew."""

    def _view(self, kind: type[R], of: Callable[[R], Collection[Hashable]]) -> dict[Any, R]:
        """Return the rows of a kind by something else than their key, which no two have alike."""
        rows: dict[Any, R] = {}
        self._views[kind].append(_View(of, rows, is_index=False))
        return rows

    def _index(
        self, kind: type[R], of: Callable[[R], Collection[Hashable]]
    ) -> dict[Any, dict[model.Key, R]]:
        """Return the rows of a kind that have something in common, each set by key."""
        rows: dict[Any, dict[model.Key, R]] = {}
        self._views[kind].append(_View(of, rows, is_index=True))
        return rows

    def adopt(self, other: "Registry") -> None:
        """Exchange everything with another registry; what was said once stays said."""
        other.timestamp_ms = max(self.timestamp_ms, other.timestamp_ms)
        other.version = self.version + 1
        own = dict(vars(self))
        vars(self).update(vars(other))
        vars(other).update(own)

    # Looking up

    def of(self, kind: type[R]) -> dict[Any, R]:
        """Return the rows of a kind, by key."""
        return self._rows[kind]

    def claimed(self, kind: type[R], claim: model.Key) -> R | None:
        """Return the row of a kind that has what at most one may have, if one has it."""
        row: R | None = self._claims[kind].get(claim)
        return row

    def controls_of(self, cluster: str) -> Controls:
        """Return the rules of a cluster; version 0 if none was ever set."""
        row = self.controls.get(cluster)
        return Controls() if row is None else row.controls

    def is_entered(self, name: str) -> bool:
        """Say whether an operator said that there is a broker group of this name, or its broker."""
        group = self.groups.get(name)
        return (group is not None and group.is_entered) or bool(self._brokers_in.get(name))

    def brokers_in(self, group: str) -> tuple[model.Broker, ...]:
        """Return the brokers that belong to a group."""
        return tuple(self._brokers_in.get(group, {}).values())

    def broker_with_role(self, group: str, *roles: BrokerRole) -> model.Broker | None:
        """Return the broker that has one of these roles in a group."""
        return next((row for row in self.brokers_in(group) if row.role in roles), None)

    def nodes_in(self, cluster: str, group: str) -> tuple[model.DelayNode, ...]:
        """Return the delay nodes of a group, in the order in which they came."""
        return tuple(self._nodes_in.get((cluster, group), {}).values())

    def prefix_route(self, subject: str) -> model.Route | None:
        """Return the route of the longest prefix of a subject that has one."""
        for length in sorted(self._prefixes_of_length, reverse=True):
            if route := self.prefixes.get(subject[:length]):
                return route
        return None

    def receivers_of(self, subject: str) -> list[model.Receiver]:
        """Return the receivers of a subject, by name."""
        found = {**self._receivers_by_pattern.get(subject, {})}
        for length in self._receivers_by_length:
            found |= self._receivers_by_pattern.get(subject[: length - 1] + ANY_END, {})
        return [found[name] for name in sorted(found)]

    # Changing

    def apply(self, changes: Sequence[model.Change]) -> None:
        """Make these changes, or raise ConflictError and make none of them."""
        timestamp_ms = self.timestamp_ms
        undo: list[tuple[type[model.Row], model.Key, model.Row | None]] = []
        try:
            for change in changes:
                if isinstance(change, model.Save | model.Remove):
                    undo.append(self._change(change))
                elif isinstance(change, model.RaiseTimestamp):
                    self.timestamp_ms = max(self.timestamp_ms, change.timestamp_ms)
        except ConflictError:
            for kind, key, before in reversed(undo):
                self._put(kind, key, before)
            self.timestamp_ms = timestamp_ms
            raise
        self.version += 1

    def _change(
        self, change: model.Save | model.Remove
    ) -> tuple[type[model.Row], model.Key, model.Row | None]:
        """Save or remove a row; return its kind, its key, and the row before, if there was one."""
        row = change.row
        kind, key = type(row), row.key
        before: model.Row | None = self._rows[kind].get(key)
        found = None if before is None else before.etag
        expected = change.expected if isinstance(change, model.Save) else row.etag
        if found != expected:
            raise ConflictError(f"{kind.KIND} {key}: expected version {expected}, found {found}")
        after = row if isinstance(change, model.Save) else None
        if after is not None and after.claim is not None:
            owner = self._claims[kind].get(after.claim, after).key
            if owner != key:
                raise ConflictError(f"{kind.KIND} {after.claim}: wanted by {key}, is of {owner}")
        self._put(kind, key, after)
        return kind, key, before

    def _put(self, kind: type[model.Row], key: model.Key, after: model.Row | None) -> None:
        """Put a row in the place of the one with its key, or none."""
        rows = self._rows[kind]
        before = rows.get(key)
        if after is None:
            rows.pop(key, None)
        else:
            rows[key] = after
        for view in self._views[kind]:
            view.put(key, before, after)


@dataclass(frozen=True, slots=True)
class _View:
    """Rows of a kind by each of what `of` says of them."""

    of: Callable[[Any], Collection[Hashable]]
    rows: dict[Any, Any]
    is_index: bool
    """True if several rows may have it in common: then they are in a mapping by key."""

    def put(self, key: model.Key, before: model.Row | None, after: model.Row | None) -> None:
        """Put a row in the place of another one."""
        old = () if before is None else self.of(before)
        new = () if after is None else self.of(after)
        for one in old:
            if one in new:
                continue
            rows = self.rows[one] if self.is_index else self.rows
            del rows[key if self.is_index else one]
            if self.is_index and not rows:
                del self.rows[one]
        for one in new:
            if self.is_index:
                self.rows.setdefault(one, {})[key] = after
            else:
                self.rows[one] = after
