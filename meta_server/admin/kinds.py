"""The kinds of the API. Each is declared once: key, rows, what is shown, what is done to them.

`meta_server/admin/verbs.py` serves every kind from its declaration: lists, one row, its actions.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import msgspec

from delay_protocol.meta.requests import BrokerRole
from delay_transport.http.operations import NoQuery, Request
from meta_server.admin import admin_types, node_rules, rules, views, webhook_rules
from meta_server.admin.admin_types import ListQuery, MayLose, NameKey, Nothing
from meta_server.admin.approval import approve_group
from meta_server.admin.parts import Parts, Planned
from meta_server.admin.views import RuleViews
from meta_server.known.errors import NotFoundError
from meta_server.known.model import Route, Subject
from meta_server.known.registry import Registry

SET: Final = "set"
"""The action of PUT."""

REMOVE: Final = "remove"
"""The action of DELETE."""

Rule = Callable[..., Planned]
"""Gets the parts, the key, the row (None: there is none), and what is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something that operators do to a row: they set it, remove it, or what has another name."""

    name: str
    """SET, REMOVE, or as it is in paths, in the audit, and on the command line."""
    wanted: type[msgspec.Struct]
    """The body of PUT, the row as it is to be, or of POST; the parameters of DELETE."""
    rule: Rule
    needs_row: bool = True
    """False: the rule gets None where there is no row."""
    is_last: bool = False
    """True if there is no row any more after it."""

    @property
    def summary(self) -> str:
        """Its effect in a line; empty if its rule does not say."""
        return (self.rule.__doc__ or "").partition("\n")[0]


def _set(wanted: type[msgspec.Struct], rule: Rule) -> Action:
    return Action(name=SET, wanted=wanted, rule=rule, needs_row=False)


def _remove(rule: Rule, wanted: type[Request] = NoQuery) -> Action:
    return Action(name=REMOVE, wanted=wanted, rule=rule, is_last=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceKind:
    """A kind of rows."""

    name: str
    """In paths, in the audit, and on the command line."""
    what: str
    """In sentences."""
    key: type[Request]
    """The struct of its key: a part of the path for each field."""
    rows: Callable[[Registry], Collection[Any]]
    key_of: Callable[[Any], tuple[str, ...]]
    """Returns the key of a row; lists are in its order."""
    find: Callable[[Registry, Any], Any]
    """Returns the row of a key; None if there is none."""
    shown: type[msgspec.Struct]
    """A row with what is known beside it."""
    show: Callable[[Parts, Any], msgspec.Struct]
    show_one: Callable[[Parts, Any], msgspec.Struct] | None = None
    """Shows the row of a key where something is shown though there is no row."""
    filters: type[ListQuery] = ListQuery
    wanted: Callable[[Any, Any], bool] = lambda _row, _query: True
    """Returns True for a row that passes the filters beside those of every list."""
    actions: tuple[Action, ...] = ()

    def target(self, key: Request) -> str:
        """Return a key as the audit names it."""
        return "/".join(msgspec.structs.astuple(key))

    def found(self, registry: Registry, key: Request) -> Any:  # noqa: ANN401 (of any kind)
        """Return the row of a key; raise NotFoundError."""
        row = self.find(registry, key)
        if row is None:
            raise NotFoundError(f"there is no {self.what} {self.target(key)!a}")
        return row

    def one(self, parts: Parts, key: Request) -> msgspec.Struct:
        """Return the row of a key as it is shown; raise NotFoundError."""
        if self.show_one is not None:
            return self.show_one(parts, key)
        return self.show(parts, self.found(parts.registry, key))


def _id_of_node(registry: Registry, key: admin_types.NodeKey) -> tuple[str, str, str]:
    group = registry.delay_groups.get(key.group)
    return ("" if group is None else group.cluster, key.group, key.node)


def _rules(what: str, seen: RuleViews, rule: Rule) -> ResourceKind:
    """Return the kind of the rules of subjects, or of broker groups."""
    return ResourceKind(
        name=f"{seen.of}-rule",
        what=what,
        key=seen.key,
        rows=seen.rows,
        key_of=lambda shown: (shown.cluster, getattr(shown, seen.of)),
        find=seen.find,
        shown=seen.shown,
        show=lambda _, shown: shown,
        show_one=seen.show,
        actions=(
            _set(type(seen.none), rule),
            _remove(lambda parts, key, row, _: rule(parts, key, row, None)),
        ),
    )


def _by_name(
    name: str,
    what: str,
    rows_of: Callable[[Registry], Mapping[str, Any]],
    **more: Any,  # noqa: ANN401 (fields)
) -> ResourceKind:
    """Return a kind of rows that have a name as their key."""
    return ResourceKind(
        name=name,
        what=what,
        key=NameKey,
        rows=lambda registry: rows_of(registry).values(),
        key_of=lambda row: (row.name,),
        find=lambda registry, key: rows_of(registry).get(key.name),
        **more,
    )


BROKER_GROUPS: Final = _by_name(
    *("broker-group", "broker group", attrgetter("groups")),
    shown=admin_types.BrokerGroupShown,
    show=views.show_group,
    actions=(
        _set(admin_types.BrokerGroupSet, rules.set_group),
        _remove(rules.remove_group, MayLose),
        Action(name="approve", wanted=admin_types.Approval, rule=approve_group, needs_row=False),
        Action(name="retire", wanted=MayLose, rule=rules.retire_group),
        Action(name="restore", wanted=Nothing, rule=rules.restore_group),
        Action(name="read-only", wanted=admin_types.ReadOnly, rule=rules.set_read_only),
    ),
)

KINDS: Final = (
    ResourceKind(
        name="cluster",
        what="cluster",
        key=NameKey,
        rows=rules.clusters_of,
        key_of=lambda name: (name,),
        find=lambda registry, key: key.name if key.name in rules.clusters_of(registry) else None,
        shown=admin_types.ClusterShown,
        show=views.show_cluster,
    ),
    BROKER_GROUPS,
    ResourceKind(
        name="broker",
        what="broker",
        key=admin_types.BrokerKey,
        rows=lambda registry: registry.brokers.values(),
        key_of=lambda broker: (broker.group, broker.role.name),
        find=lambda registry, key: registry.broker_with_role(key.group, BrokerRole[key.role]),
        shown=admin_types.BrokerShown,
        show=views.show_broker,
        actions=(
            _set(admin_types.BrokerSet, rules.set_broker),
            _remove(rules.remove_broker),
        ),
    ),
    _by_name(
        *("subject", "subject", attrgetter("subjects")),
        shown=Subject,
        show=lambda _, subject: subject,
        actions=(
            _set(Nothing, rules.set_subject),
            _remove(rules.remove_subject),
        ),
    ),
    ResourceKind(
        name="route",
        what="route",
        key=admin_types.RouteKey,
        rows=lambda registry: registry.of(Route).values(),
        key_of=lambda route: (route.pattern,),
        find=lambda registry, key: registry.of(Route).get(rules.subject_of(key.pattern)),
        shown=admin_types.RouteShown,
        show=views.show_route,
        show_one=views.show_route_of,
        filters=admin_types.RouteQuery,
        wanted=lambda route, query: not query.group or query.group in route.groups,
        actions=(
            _set(admin_types.RouteSet, rules.set_route),
            _remove(rules.remove_route),
        ),
    ),
    _by_name(
        *("receiver", "name of receivers", attrgetter("receivers")),
        shown=admin_types.ReceiverShown,
        show=views.show_receiver,
        actions=(
            _set(admin_types.ReceiverSet, rules.set_receiver),
            _remove(rules.remove_receiver),
        ),
    ),
    _by_name(
        *("webhook", "webhook", attrgetter("webhooks")),
        shown=admin_types.WebhookShown,
        show=webhook_rules.show_webhook,
        actions=(
            _set(admin_types.WebhookSet, webhook_rules.set_webhook),
            _remove(webhook_rules.remove_webhook),
            Action(
                name="disable",
                wanted=admin_types.Disabling,
                rule=webhook_rules.disable_webhook,
            ),
        ),
    ),
    _by_name(
        *("delay-group", "delay group", attrgetter("delay_groups")),
        shown=admin_types.DelayGroupShown,
        show=views.show_delay_group,
        actions=(
            Action(name="elect", wanted=Nothing, rule=node_rules.elect_master),
            Action(name="handover", wanted=admin_types.HandoverWish, rule=node_rules.hand_over),
            Action(name="min-isr", wanted=admin_types.MinIsr, rule=node_rules.set_group_min_isr),
            Action(name="recover", wanted=MayLose, rule=node_rules.recover_group, needs_row=False),
        ),
    ),
    ResourceKind(
        name="delay-node",
        what="delay server",
        key=admin_types.NodeKey,
        rows=lambda registry: registry.nodes.values(),
        key_of=lambda node: (node.group, node.node_id),
        find=lambda registry, key: registry.nodes.get(_id_of_node(registry, key)),
        shown=admin_types.NodeShown,
        show=views.show_node,
        actions=(
            _remove(node_rules.remove_node),
            Action(name="give-up", wanted=MayLose, rule=node_rules.give_up_node, is_last=True),
            Action(name="approve", wanted=MayLose, rule=node_rules.approve_node),
        ),
    ),
    _rules("rule of the subject", views.SUBJECT_RULES, rules.set_subject_rule),
    _rules("rule of the broker group", views.GROUP_RULES, rules.set_group_rule),
)
"""All there are, in the order in which they are shown."""
