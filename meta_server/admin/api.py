"""The administration's JSON API: a function for each operation, which says all there is to say.

What a function takes (parts of the path, parameters, body) and gives are structs of
`meta_server/admin/admin_types.py`, in its signature; routes, checks and the document are made from
it. A request is answered

    400 bad-value      not what the struct or the plan allows: field, value and what is allowed
    401 token          no token, or one that is not known
    403 role, host, …  the token may not, or a browser's page of another place
    404 not-found      there is no such row
    408, 413, 415      a body that is slow, too long, or no JSON
    409 conflict       another version than expected, or its state does not allow it
    429 denials        too many wrong tokens
    503 store, busy    the store is away (reading goes on), or too much is asked at a time
    504 unknown        the store is slow: whether the change is stored has to be looked up
"""

import re
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, get_args, get_type_hints

import msgspec
import structlog
import trio
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from delay_protocol.meta.requests import BrokerRole, BrokerState
from delay_transport.http.access import AccessError, Caller
from delay_transport.http.server import json_response
from delay_transport.http.tokens import Role
from meta_server.admin.admin_types import (
    Answer,
    Approval,
    AuditPage,
    AuditQuery,
    AuditShown,
    BrokerGroupChange,
    BrokerGroupNew,
    BrokerGroupQuery,
    BrokerGroups,
    BrokerGroupShown,
    BrokerNew,
    BrokerPath,
    BrokerReplacement,
    Brokers,
    BrokerShown,
    ClusterPath,
    Clusters,
    ClusterSummary,
    ControlsShown,
    DelayGroups,
    DelayGroupShown,
    Done,
    GroupQuery,
    GroupRuleChange,
    GroupRuleQuery,
    HandoverWish,
    MayLose,
    MinIsr,
    NamePath,
    NodePath,
    NoPath,
    NoQuery,
    PageQuery,
    PrefixPath,
    PrefixRouteShown,
    Problem,
    ProblemDetail,
    ReadOnlyChange,
    RemovalQuery,
    Request,
    Restoration,
    Retirement,
    RouteExtension,
    RouteQuery,
    RouteReduction,
    Routes,
    RoutesChanged,
    RouteSet,
    RouteSummary,
    SubjectPath,
    SubjectQuery,
    SubjectRouteShown,
    SubjectRuleChange,
    SubjectRuleQuery,
    Subjects,
    SubjectSet,
    SubjectShown,
    Topology,
    VersionQuery,
)
from meta_server.admin.administration import OutcomeUnknownError
from meta_server.admin.entrance import Entrance
from meta_server.admin.pages import page_of
from meta_server.admin.parts import Observed, Parts
from meta_server.admin.plans import (
    Desk,
    accept_older_node,
    add_broker,
    add_group,
    ask_to_hand_over,
    change_group,
    change_group_control,
    change_subject_control,
    check_groups,
    check_subject,
    clusters_of,
    elect_master,
    extend_route,
    give_up_node,
    group_named,
    recover_group,
    reduce_route,
    remove_broker,
    remove_group_control,
    remove_node,
    remove_route,
    remove_subject,
    remove_subject_control,
    replace_broker,
    restore_group,
    retire_group,
    set_group_min_isr,
    set_read_only,
    set_route,
    set_subject,
)
from meta_server.admin.status import failing_checks
from meta_server.admin.views import (
    show_broker,
    show_controls,
    show_delay_group,
    show_group,
    show_prefix,
    show_route,
    show_subject,
    show_way,
    summary_of,
    topology_of,
)
from meta_server.groups.elections import GroupState
from meta_server.groups.receiver_groups import PREFIX_ROUTES
from meta_server.known.errors import (
    BadValueError,
    ConflictError,
    MetaServerError,
    NotFoundError,
    RefusedError,
    StateError,
    StoreError,
    StoreRefusedError,
)
from meta_server.known.model import EVERY, AuditRow, Change, Route
from meta_server.wire.group_admission import NEW_GROUP

PREFIX: Final = "/api/v1"
"""Path of the API."""

_BODY_S: Final = 5.0
"""For the whole body of a request."""
_AUDIT_STEP: Final = 500
"""Entries of the audit that are read at a time: commits wait that long."""
_AUDIT_STEPS_MAX: Final = 40
"""How often that is done for one page: so filters that few entries pass take many pages."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

P = TypeVar("P", bound=Request)
Q = TypeVar("Q", bound=Request)
B = TypeVar("B")
A = TypeVar("A", bound=Answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[P, Q, B]):
    """An admitted, checked request: parts of the path, parameters, body."""

    observed: Observed
    parts: Parts
    caller: Caller
    path: P
    query: Q
    body: B

    @property
    def actor(self) -> str:
        """Actor, as the audit names it."""
        return self.caller.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of the API."""

    method: str
    path: str
    """The path below PREFIX; its parts in braces are the fields of `path_type`."""
    name: str
    """The operation's id in the OpenAPI document, for generated clients."""
    summary: str
    act: Callable[[Any], Awaitable[Answer]]
    path_type: type[Request]
    query_type: type[Request]
    body_type: type[Request] | None
    """The struct of the body; None: no body is read."""
    answer_type: type[Answer]
    code: int
    """HTTP code of a successful answer."""

    @property
    def is_change(self) -> bool:
        """Whether it changes anything."""
        return self.method != "GET"

    @property
    def needed(self) -> Role:
        """The role that a caller needs."""
        return Role.ADMIN if self.is_change else Role.READ


OPERATIONS: Final[list[Operation]] = []
"""All there are."""

Act = Callable[[Call[P, Q, B]], Awaitable[A]]


def _operation(method: str, path: str, *, code: int = 200) -> Callable[[Act[P, Q, B, A]], None]:
    """Make an operation of a function."""

    def register(act: Act[P, Q, B, A]) -> None:
        hints = get_type_hints(act)
        path_type, query_type, body_type = get_args(hints["call"])
        OPERATIONS.append(
            Operation(
                method=method,
                path=path,
                name=act.__name__,
                summary=(act.__doc__ or "").strip(),
                act=act,
                path_type=path_type,
                query_type=query_type,
                body_type=None if body_type is type(None) else body_type,
                answer_type=hints["return"],
                code=code,
            )
        )

    return register


# Broker groups


@_operation("GET", "/broker-groups")
async def list_broker_groups(call: Call[NoPath, BrokerGroupQuery, None]) -> BrokerGroups:
    """List broker groups, groups of delay servers among them."""
    query, parts = call.query, call.parts
    rows, more = await page_of(
        parts.registry.groups.values(),
        lambda group: (group.name,),
        after=query.after,
        limit=query.limit,
        wanted=lambda group: (
            query.kind in {"", group.kind.name.lower()}
            and query.state in {"", BrokerState(group.state).name}
        ),
    )
    return BrokerGroups(items=[show_group(parts, group) for group in rows], next=more)


@_operation("POST", "/broker-groups", code=201)
async def add_broker_group(call: Call[NoPath, NoQuery, BrokerGroupNew]) -> BrokerGroupShown:
    """Add a broker group."""
    return await _change_group(call, call.body.name, lambda desk: add_group(desk, call.body))


@_operation("GET", "/broker-groups/{name}")
async def show_broker_group(call: Call[NamePath, NoQuery, None]) -> BrokerGroupShown:
    """Show a broker group."""
    return show_group(call.parts, group_named(call.parts.registry, call.path.name))


@_operation("PATCH", "/broker-groups/{name}")
async def change_broker_group(
    call: Call[NamePath, NoQuery, BrokerGroupChange],
) -> BrokerGroupShown:
    """Change a broker group: the address of its master, weight, tag, further attributes, state."""
    name = call.path.name
    return await _change_group(call, name, lambda desk: change_group(desk, name, call.body))


@_operation("POST", "/broker-groups/{name}/approve")
async def approve_broker_group(call: Call[NamePath, NoQuery, Approval]) -> BrokerGroupShown:
    """Let in a broker group that waits, or have one that is known count as entered."""
    name, parts = call.path.name, call.parts
    await parts.administration.approve_group(call.actor, name, address=call.body.address)
    return show_group(parts, group_named(parts.registry, name))


@_operation("DELETE", "/broker-groups/{name}")
async def remove_broker_group(call: Call[NamePath, RemovalQuery, None]) -> Done:
    """Remove a broker group that is not in use; it leaves the routes that were chosen."""
    name, query = call.path.name, call.query
    await call.parts.administration.remove_group(
        call.actor, name, version=query.version, lose_messages=query.lose_messages
    )
    return Done(changed=True)


@_operation("POST", "/broker-groups/{name}/retire")
async def retire_broker_group(call: Call[NamePath, NoQuery, Retirement]) -> BrokerGroupShown:
    """Retire a broker group: no route leads to it; its name stays taken."""
    name, body = call.path.name, call.body

    def plan(desk: Desk) -> tuple[Change, ...]:
        return retire_group(desk, name, version=body.version, lose_messages=body.lose_messages)

    return await _change_group(call, name, plan)


@_operation("POST", "/broker-groups/{name}/restore")
async def restore_broker_group(call: Call[NamePath, NoQuery, Restoration]) -> BrokerGroupShown:
    """Use a retired broker group again."""
    name, version = call.path.name, call.body.version
    return await _change_group(call, name, lambda desk: restore_group(desk, name, version=version))


@_operation("PUT", "/broker-groups/{name}/read-only")
async def set_broker_group_read_only(
    call: Call[NamePath, NoQuery, ReadOnlyChange],
) -> BrokerGroupShown:
    """Take a broker group from producers, or give it back."""
    name = call.path.name
    return await _change_group(call, name, lambda desk: set_read_only(desk, name, call.body))


async def _change_group(
    call: Call[Any, Any, Any], name: str, plan: Callable[[Desk], Sequence[Change]]
) -> BrokerGroupShown:
    await call.parts.administration.change_group(call.actor, name, plan)
    return show_group(call.parts, group_named(call.parts.registry, name))


# Brokers


@_operation("GET", "/brokers")
async def list_brokers(call: Call[NoPath, GroupQuery, None]) -> Brokers:
    """List the brokers that were entered, with the role that each is told when it asks."""
    query = call.query
    rows, more = await page_of(
        call.parts.registry.brokers.values(),
        lambda broker: (broker.group, broker.role.name),
        key_type=tuple[str, str],
        after=query.after,
        limit=query.limit,
        wanted=lambda broker: query.group in {"", broker.group},
    )
    return Brokers(items=list(map(show_broker, rows)), next=more)


@_operation("POST", "/brokers", code=201)
async def enter_broker(call: Call[NoPath, NoQuery, BrokerNew]) -> BrokerShown:
    """Enter a broker with its group and role, for which it asks when it starts."""
    body = call.body
    return await _change_broker(call, body.group, body.role, lambda desk: add_broker(desk, body))


@_operation("PUT", "/brokers/{group}/{role}")
async def put_broker_in_place(call: Call[BrokerPath, NoQuery, BrokerReplacement]) -> BrokerShown:
    """Replace a broker by another one; clients follow when the new one goes on-line."""
    group, role = call.path.group, call.path.role
    return await _change_broker(
        call, group, role, lambda desk: replace_broker(desk, group, role, call.body)
    )


async def _change_broker(
    call: Call[Any, Any, Any], group: str, role: str, plan: Callable[[Desk], Sequence[Change]]
) -> BrokerShown:
    parts = call.parts
    await parts.administration.carry_out(call.actor, plan, ("group", group), NEW_GROUP)
    broker = parts.registry.broker_with_role(group, BrokerRole[role])
    if broker is None:
        raise NotFoundError("it was removed meanwhile")
    return show_broker(broker)


@_operation("DELETE", "/brokers/{group}/{role}")
async def take_broker_away(call: Call[BrokerPath, VersionQuery, None]) -> Done:
    """Remove a broker's entry: when it asks for its role, it is refused."""
    group, role, version = call.path.group, call.path.role, call.query.version
    changes = await call.parts.administration.carry_out(
        call.actor,
        lambda desk: remove_broker(desk, group, role, version=version),
        ("group", group),
        NEW_GROUP,
    )
    return Done(changed=bool(changes))


# Routes


@_operation("GET", "/routes")
async def list_routes(call: Call[NoPath, RouteQuery, None]) -> Routes:
    """List routes of single subjects."""
    return await _page_of_routes(call.parts.registry.routes.values(), call.query)


@_operation("GET", "/prefix-routes")
async def list_prefix_routes(call: Call[NoPath, RouteQuery, None]) -> Routes:
    """List routes of prefixes."""
    return await _page_of_routes(call.parts.registry.prefixes.values(), call.query)


async def _page_of_routes(routes: Collection[Route], query: RouteQuery) -> Routes:
    rows, more = await page_of(
        routes,
        lambda route: (route.name,),
        after=query.after,
        limit=query.limit,
        wanted=lambda route: (
            route.name.startswith(query.prefix) and (not query.group or query.group in route.groups)
        ),
    )
    return Routes(items=list(map(show_route, rows)), next=more)


@_operation("GET", "/route-summary")
async def summarise_routes(call: Call[NoPath, NoQuery, None]) -> RouteSummary:
    """Count routes: subjects of each group, subjects without a route."""
    return await summary_of(call.parts)


@_operation("GET", "/routes/{subject}")
async def show_subject_route(call: Call[SubjectPath, NoQuery, None]) -> SubjectRouteShown:
    """Show the route of a subject, and who chose it."""
    check_subject("subject", call.path.subject)
    return show_way(call.parts, call.path.subject)


@_operation("PUT", "/routes/{subject}")
async def set_subject_route(call: Call[SubjectPath, NoQuery, RouteSet]) -> SubjectRouteShown:
    """Set the route of a subject by hand: the server does not change it from then on."""
    subject = call.path.subject
    await call.parts.administration.carry_out(
        call.actor,
        lambda desk: set_route(desk, subject, call.body, is_prefix=False),
        ("subject", subject),
    )
    return show_way(call.parts, subject)


@_operation("DELETE", "/routes/{subject}")
async def remove_subject_route(
    call: Call[SubjectPath, VersionQuery, None],
) -> SubjectRouteShown:
    """Remove a subject's own route: that of a prefix applies, or the server chooses one."""
    subject, version = call.path.subject, call.query.version
    await call.parts.administration.carry_out(
        call.actor,
        lambda desk: remove_route(desk, subject, is_prefix=False, version=version),
        ("subject", subject),
    )
    return show_way(call.parts, subject)


@_operation("GET", "/prefix-routes/{prefix}")
async def show_prefix_route(call: Call[PrefixPath, NoQuery, None]) -> PrefixRouteShown:
    """Show the route of a prefix, and the subjects that follow it."""
    return await _prefix_route(call.parts, call.path.prefix)


async def _prefix_route(parts: Parts, prefix: str) -> PrefixRouteShown:
    route = parts.registry.prefixes.get(prefix)
    if route is None:
        raise NotFoundError(f"the prefix {prefix!a} has no route of its own")
    return await show_prefix(parts, route)


@_operation("PUT", "/prefix-routes/{prefix}")
async def set_prefix_route(call: Call[PrefixPath, NoQuery, RouteSet]) -> PrefixRouteShown:
    """Set a route for all subjects with a prefix; those with one of their own keep it."""
    prefix = call.path.prefix
    await call.parts.administration.carry_out(
        call.actor, lambda desk: set_route(desk, prefix, call.body, is_prefix=True), PREFIX_ROUTES
    )
    return await _prefix_route(call.parts, prefix)


@_operation("DELETE", "/prefix-routes/{prefix}")
async def remove_prefix_route(call: Call[PrefixPath, VersionQuery, None]) -> Done:
    """Remove the route of a prefix."""
    prefix, version = call.path.prefix, call.query.version
    changes = await call.parts.administration.carry_out(
        call.actor,
        lambda desk: remove_route(desk, prefix, is_prefix=True, version=version),
        PREFIX_ROUTES,
    )
    return Done(changed=bool(changes))


@_operation("POST", "/route-extension")
async def extend_routes(call: Call[NoPath, NoQuery, RouteExtension]) -> RoutesChanged:
    """Add a broker group to the routes that have another one."""
    body, administration = call.body, call.parts.administration
    check_groups(administration.desk(call.actor), "new_group", (body.new_group,))
    return await _change_routes(
        call, body.subject, lambda desk, name: extend_route(desk, name, body.group, body.new_group)
    )


@_operation("POST", "/route-reduction")
async def reduce_routes(call: Call[NoPath, NoQuery, RouteReduction]) -> RoutesChanged:
    """Take a broker group out of the routes that have others beside it."""
    body = call.body
    return await _change_routes(
        call, body.subject, lambda desk, name: reduce_route(desk, name, body.group)
    )


async def _change_routes(
    call: Call[Any, Any, Any], subject: str, plan: Callable[[Desk, str], Sequence[Change]]
) -> RoutesChanged:
    routes = call.parts.registry.routes
    if subject != EVERY and subject not in routes:
        raise NotFoundError(f"the subject {subject!a} has no route of its own")
    names = list(routes) if subject == EVERY else [subject]
    return await call.parts.administration.change_routes(call.actor, names, plan)


# Subjects


@_operation("GET", "/subjects")
async def list_subjects(call: Call[NoPath, SubjectQuery, None]) -> Subjects:
    """List subjects that were used, or entered."""
    query = call.query
    rows, more = await page_of(
        call.parts.registry.subjects.values(),
        lambda subject: (subject.name,),
        after=query.after,
        limit=query.limit,
        wanted=lambda subject: (
            subject.name.startswith(query.prefix) and query.tag in {None, subject.tag}
        ),
    )
    return Subjects(items=list(map(show_subject, rows)), next=more)


@_operation("GET", "/subjects/{subject}")
async def show_one_subject(call: Call[SubjectPath, NoQuery, None]) -> SubjectShown:
    """Show a subject."""
    return _subject(call.parts, call.path.subject)


def _subject(parts: Parts, name: str) -> SubjectShown:
    subject = parts.registry.subjects.get(name)
    if subject is None:
        raise NotFoundError(f"the subject {name!a} was never used")
    return show_subject(subject)


@_operation("PUT", "/subjects/{subject}")
async def set_subject_tag(call: Call[SubjectPath, NoQuery, SubjectSet]) -> SubjectShown:
    """Enter a subject, or change its tag."""
    subject = call.path.subject
    await call.parts.administration.carry_out(
        call.actor, lambda desk: set_subject(desk, subject, call.body), ("subject", subject)
    )
    return _subject(call.parts, subject)


@_operation("DELETE", "/subjects/{subject}")
async def remove_unused_subject(call: Call[SubjectPath, VersionQuery, None]) -> Done:
    """Remove a subject that no connected client uses, with the route that was chosen for it."""
    subject, version = call.path.subject, call.query.version
    used = await call.parts.pusher.used_subjects()
    await call.parts.administration.carry_out(
        call.actor,
        lambda desk: remove_subject(desk, subject, is_used=subject in used, version=version),
        ("subject", subject),
    )
    return Done(changed=True)


# Delay servers


@_operation("GET", "/delay-groups")
async def list_delay_groups(call: Call[NoPath, PageQuery, None]) -> DelayGroups:
    """List groups of delay servers that register here, with their nodes."""
    parts, query = call.parts, call.query
    rows, more = await page_of(
        parts.registry.delay_groups.values(),
        lambda group: (group.name,),
        after=query.after,
        limit=query.limit,
    )
    return DelayGroups(items=[show_delay_group(parts, group) for group in rows], next=more)


@_operation("GET", "/delay-groups/{name}")
async def show_one_delay_group(call: Call[NamePath, NoQuery, None]) -> DelayGroupShown:
    """Show a group of delay servers."""
    return _delay_group(call.parts, call.path.name)


def _delay_group(parts: Parts, name: str) -> DelayGroupShown:
    group = parts.registry.delay_groups.get(name)
    if group is None:
        raise NotFoundError(f"there is no delay group {name!a}")
    return show_delay_group(parts, group)


@_operation("DELETE", "/delay-groups/{name}/nodes/{node_id}")
async def remove_one_node(call: Call[NodePath, NoQuery, None]) -> DelayGroupShown:
    """Remove a delay server that is stopped and not in sync."""
    path, nodes = call.path, call.parts.handlers.nodes

    def plan(desk: Desk, is_connected: bool) -> Sequence[Change]:  # noqa: FBT001 (one of two facts)
        return remove_node(desk, path.name, path.node_id, is_connected=is_connected)

    await call.parts.administration.change_node(
        *(call.actor, path.name, path.node_id, plan),
        is_alive=nodes.is_connected,
        stored=nodes.forget,
    )
    return _delay_group(call.parts, path.name)


@_operation("POST", "/delay-groups/{name}/nodes/{node_id}/give-up")
async def give_node_up(call: Call[NodePath, NoQuery, MayLose]) -> DelayGroupShown:
    """Give up a disk in sync where there is no master; the last one only with lose_messages."""
    path, lose_messages = call.path, call.body.lose_messages
    parts = call.parts

    def plan(desk: Desk, is_heard: bool) -> Sequence[Change]:  # noqa: FBT001 (one of two facts)
        return give_up_node(
            desk, path.name, path.node_id, is_heard=is_heard, lose_messages=lose_messages
        )

    await parts.administration.change_node(
        *(call.actor, path.name, path.node_id, plan),
        is_alive=parts.administration.hears,
        stored=parts.handlers.nodes.forget,
    )
    return _delay_group(parts, path.name)


@_operation("POST", "/delay-groups/{name}/nodes/{node_id}/accept-older")
async def accept_older_directory(
    call: Call[NodePath, NoQuery, MayLose],
) -> DelayGroupShown:
    """Let a delay server come back with an older copy of its directory; with lose_messages."""
    path, lose_messages = call.path, call.body.lose_messages

    def plan(desk: Desk, is_heard: bool) -> Sequence[Change]:  # noqa: FBT001 (one of two facts)
        return accept_older_node(
            desk, path.name, path.node_id, is_heard=is_heard, lose_messages=lose_messages
        )

    administration = call.parts.administration
    await administration.change_node(
        *(call.actor, path.name, path.node_id, plan), is_alive=administration.hears
    )
    return _delay_group(call.parts, path.name)


@_operation("POST", "/delay-groups/{name}/elect")
async def elect_a_master(call: Call[NamePath, NoQuery, None]) -> DelayGroupShown:
    """Elect a master in place of one that does not speak, or may not send."""
    name = call.path.name

    def plan(desk: Desk, state: GroupState, now: float) -> Sequence[Change]:
        return elect_master(desk, name, state, now=now)

    return await _change_delay_group(call, name, plan)


@_operation("POST", "/delay-groups/{name}/handover")
async def hand_a_group_over(call: Call[NamePath, NoQuery, HandoverWish]) -> DelayGroupShown:
    """Ask the master to hand its group over; it does so, or begins anew, within seconds."""
    name, to = call.path.name, call.body.to

    def plan(desk: Desk, state: GroupState, now: float) -> Sequence[Change]:
        return ask_to_hand_over(desk, name, state, to=to, now=now)

    return await _change_delay_group(call, name, plan)


@_operation("POST", "/delay-groups/{name}/min-isr")
async def set_least_in_sync(call: Call[NamePath, NoQuery, MinIsr]) -> DelayGroupShown:
    """Set how many disks at least have to be in sync."""
    name, count = call.path.name, call.body.min_isr
    return await _change_delay_group(
        call, name, lambda desk, _state, _now: set_group_min_isr(desk, name, count)
    )


async def _change_delay_group(
    call: Call[Any, Any, Any],
    name: str,
    plan: Callable[[Desk, GroupState, float], Sequence[Change]],
) -> DelayGroupShown:
    _delay_group(call.parts, name)
    changes = call.parts.handlers.group_changes
    await call.parts.administration.carry_out(
        call.actor,
        lambda desk: plan(desk, changes.state_of(name), trio.current_time()),
        ("group", name),
        stored=changes.news,
    )
    return _delay_group(call.parts, name)


@_operation("POST", "/delay-groups/{name}/recover")
async def recover_a_group(call: Call[NamePath, NoQuery, MayLose]) -> DelayGroupShown:
    """Go on with a group whose record was lost, without those who have not spoken."""
    name, lose_messages = call.path.name, call.body.lose_messages
    parts = call.parts

    def plan(desk: Desk) -> Sequence[Change]:
        return recover_group(desk, name, lose_messages=lose_messages)

    await parts.administration.carry_out(
        call.actor, plan, ("group", name), stored=parts.handlers.group_changes.news
    )
    return _delay_group(parts, name)


# What delay servers send, and how fast


@_operation("GET", "/controls")
async def list_controls(call: Call[NoPath, PageQuery, None]) -> Clusters:
    """List the clusters of delay servers, and which version their controls have."""
    registry, query = call.parts.registry, call.query
    names, more = await page_of(
        clusters_of(registry), lambda name: (name,), after=query.after, limit=query.limit
    )
    found = [(name, registry.controls_of(name)) for name in names]
    return Clusters(
        items=[
            ClusterSummary(
                cluster=name,
                version=controls.version,
                rules=len(controls.subjects) + len(controls.groups),
            )
            for name, controls in found
        ],
        next=more,
    )


@_operation("GET", "/controls/{cluster}")
async def show_cluster_controls(call: Call[ClusterPath, NoQuery, None]) -> ControlsShown:
    """Show what is paused, limited and weighted in a cluster, and which nodes apply it."""
    return show_controls(call.parts, call.path.cluster)


@_operation("PATCH", "/controls/{cluster}/subjects")
async def change_subject_rule(
    call: Call[ClusterPath, NoQuery, SubjectRuleChange],
) -> ControlsShown:
    """Pause, resume or limit a subject, or all with a prefix; nodes are notified at once."""
    cluster, body = call.path.cluster, call.body
    return await _change_controls(call, lambda desk: change_subject_control(desk, cluster, body))


@_operation("DELETE", "/controls/{cluster}/subjects")
async def remove_subject_rule(call: Call[ClusterPath, SubjectRuleQuery, None]) -> ControlsShown:
    """Remove the rule of a subject, or of a prefix."""
    cluster, query = call.path.cluster, call.query
    return await _change_controls(
        call,
        lambda desk: remove_subject_control(desk, cluster, query.subject, version=query.version),
    )


@_operation("PATCH", "/controls/{cluster}/groups")
async def change_group_rule(call: Call[ClusterPath, NoQuery, GroupRuleChange]) -> ControlsShown:
    """Pause, resume, limit or weight a broker group; nodes are notified at once."""
    cluster, body = call.path.cluster, call.body
    return await _change_controls(call, lambda desk: change_group_control(desk, cluster, body))


@_operation("DELETE", "/controls/{cluster}/groups")
async def remove_group_rule(call: Call[ClusterPath, GroupRuleQuery, None]) -> ControlsShown:
    """Remove the rule of a broker group."""
    cluster, query = call.path.cluster, call.query
    return await _change_controls(
        call, lambda desk: remove_group_control(desk, cluster, query.group, version=query.version)
    )


async def _change_controls(
    call: Call[ClusterPath, Any, Any], plan: Callable[[Desk], Sequence[Change]]
) -> ControlsShown:
    parts, cluster = call.parts, call.path.cluster
    if ahead := parts.telling.ahead(cluster):
        # Its version would be reached again, with other rules in it.
        raise StateError(
            f"{ahead} has newer controls than this store, which was set back: look at what the "
            "node has, then run `delaywheel controls --follow` there"
        )
    await parts.administration.carry_out(call.actor, plan)
    return show_controls(parts, cluster)


# What happened, and everything


@_operation("GET", "/audit")
async def read_audit(call: Call[NoPath, AuditQuery, None]) -> AuditPage:
    """List changes and who made them, newest first."""
    query = call.query
    found: list[AuditShown] = []
    before = query.before
    for _ in range(_AUDIT_STEPS_MAX):
        rows = await call.parts.administration.read_audit(before=before, limit=_AUDIT_STEP)
        for row in rows:
            if _is_wanted(row, query):
                if len(found) == query.limit:
                    return AuditPage(items=found, next=found[-1].number)
                found.append(_show_entry(row))
            before = row.number
        if len(rows) < _AUDIT_STEP:
            return AuditPage(items=found, next=None)
    return AuditPage(items=found, next=before)


def _is_wanted(row: AuditRow, query: AuditQuery) -> bool:
    entry = row.entry
    return (
        query.actor in {"", entry.actor}
        and (not query.action or f"{entry.action}.".startswith(f"{query.action}."))
        and query.target in {"", entry.target}
        and entry.at_ms >= query.since_ms
        and (query.until_ms is None or entry.at_ms < query.until_ms)
    )


def _show_entry(row: AuditRow) -> AuditShown:
    entry = row.entry
    return AuditShown(
        number=row.number,
        at_ms=entry.at_ms,
        actor=entry.actor,
        action=entry.action,
        target=entry.target,
        before=msgspec.Raw(entry.before.encode() or b"null"),
        after=msgspec.Raw(entry.after.encode() or b"null"),
    )


@_operation("GET", "/topology")
async def show_topology(call: Call[NoPath, NoQuery, None]) -> Topology:
    """Show a summary: groups, delay servers, number of routes."""
    return await topology_of(call.parts, failing_checks(call.observed))


# From HTTP and back


class BodyError(Exception):
    """A body that is not looked at; `code` is HTTP's."""

    def __init__(self, code: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.kind = kind


async def answer_to(
    entrance: Entrance, observed: Observed, operation: Operation, request: HttpRequest
) -> Response:
    """Answer a request to an operation."""
    try:
        return await _answer(entrance, observed, operation, request)
    except (MetaServerError, AccessError, BodyError) as error:
        return problem_of(error)
    except ClientDisconnect:
        return Response(status_code=400)
    except Exception:  # noqa: BLE001
        # A bug ends the one request, and is told in the log.
        _log.exception("a request failed", operation=operation.name)
        return problem(500, ProblemDetail(code="bug", message="this is our fault; see the log"))


async def _answer(
    entrance: Entrance, observed: Observed, operation: Operation, request: HttpRequest
) -> Response:
    caller = entrance.gate.admit(
        request.headers, _peer_of(request), needed=operation.needed, is_change=operation.is_change
    )
    parts = observed.parts
    if parts is None:
        raise AccessError(503, "starting", "the store has not been loaded yet", retry_after_s=1)
    with entrance.slot():
        path = convert_request(dict(request.path_params), operation.path_type, strict=False)
        query = convert_request(single_values(request), operation.query_type, strict=False)
        body = None
        if operation.body_type is not None:
            body = await _body_of(entrance, operation.body_type, request)
        answer = await operation.act(
            Call(observed=observed, parts=parts, caller=caller, path=path, query=query, body=body)
        )
        return json_response(answer, operation.code)


def admit_reader(entrance: Entrance, request: HttpRequest) -> None:
    """Raise AccessError unless whoever asks may read."""
    entrance.gate.admit(request.headers, _peer_of(request), needed=Role.READ, is_change=False)


def _peer_of(request: HttpRequest) -> str:
    """Return the address of the caller; empty if it has none."""
    return "" if request.client is None else request.client.host


def single_values(request: HttpRequest) -> dict[str, str]:
    """Return the parameters; raise BadValueError for one that is given twice."""
    values: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in values:
            raise BadValueError(field=name, value=value, allowed="once only")
        values[name] = value
    return values


async def _body_of(entrance: Entrance, kind: type[B], request: HttpRequest) -> B:
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise BodyError(415, "media-type", "Content-Type must be application/json")
    data = await _read_body(entrance, request)
    try:
        raw = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadValueError(
            field="body", value=data[:100].decode(errors="replace"), allowed=f"JSON: {error}"
        ) from error
    return convert_request(raw, kind, strict=True)


async def _read_body(entrance: Entrance, request: HttpRequest) -> bytes:
    """Return the body of a request within its limits of size and time."""
    settings = entrance.settings
    too_long = BodyError(
        413, "too-long", f"a body has at most {settings.body_bytes_max} bytes here"
    )
    said = request.headers.get("content-length", "0")
    if not said.isdigit() or len(said) > 18 or int(said) > settings.body_bytes_max:
        raise too_long
    data = bytearray()
    with trio.move_on_after(_BODY_S) as scope:
        async with aclosing(request.stream()) as parts:
            async for part in parts:
                data += part
                if len(data) > settings.body_bytes_max:
                    raise too_long
    if scope.cancelled_caught:
        raise BodyError(408, "slow", f"the body took longer than {_BODY_S:g} s")
    return bytes(data)


_AT = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<number>\d+|\.\.\.)\]")


def convert_request(raw: object, kind: type[B], *, strict: bool) -> B:
    """Return a checked struct; raise BadValueError with field, value and what is allowed."""
    try:
        return msgspec.convert(raw, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise _blame(raw, kind, str(error)) from error


def _blame(raw: object, kind: type[Any], reason: str) -> BadValueError:
    field = ""
    if found := _AT.search(reason):
        field = found["path"].removeprefix(".")
        reason = reason[: found.start()]
        for step in _STEP.finditer(found["path"]):
            raw = _inner(raw, step)
    if missing := _MISSING.match(reason):
        return BadValueError(
            field=".".join(filter(None, (field, missing["name"]))),
            value=None,
            allowed="it has to be given",
        )
    if unknown := _UNKNOWN.match(reason):
        name = unknown["name"]
        value = raw.get(name) if isinstance(raw, Mapping) else raw
        names = ", ".join(kind.__struct_fields__) or "none"
        return BadValueError(field=name, value=value, allowed=f"no such field, there are: {names}")
    allowed = _ALLOWED.get((kind, field), reason)
    return BadValueError(field=field or "body", value=raw, allowed=allowed)


def _inner(raw: object, step: re.Match[str]) -> object:
    """Return the part of a value that a step of a path leads to; the value if there is none."""
    if step["name"] is not None and isinstance(raw, Mapping):
        return raw.get(step["name"], raw)
    if step["number"] not in {None, "..."} and isinstance(raw, Sequence):
        number = int(step["number"])
        return raw[number] if number < len(raw) else raw
    return raw


def _allowed_values() -> Iterator[tuple[tuple[type[Any], str], str]]:
    """Yield what is allowed in each field that has a fixed set of values."""
    for operation in OPERATIONS:
        for kind in (operation.path_type, operation.query_type, operation.body_type):
            if kind is None:
                continue
            for field in msgspec.structs.fields(kind):
                shape = msgspec.inspect.type_info(field.type)
                if isinstance(shape, msgspec.inspect.Metadata):
                    shape = shape.type
                shapes = shape.types if isinstance(shape, msgspec.inspect.UnionType) else (shape,)
                values = [
                    str(value)
                    for one in shapes
                    if isinstance(one, msgspec.inspect.LiteralType)
                    for value in one.values
                    if value != ""
                ]
                if values:
                    yield (kind, field.encode_name), f"one of {', '.join(values)}"


_ALLOWED: Final = dict(_allowed_values())


_LOOK: Final = "when the store is available again, check whether the change was made"

_CODES: Final[tuple[tuple[type[MetaServerError], int, str, str], ...]] = (
    (NotFoundError, 404, "not-found", ""),
    (StateError, 409, "conflict", ""),
    (RefusedError, 503, "busy", ""),
    (ConflictError, 409, "conflict", "another process changed the store: nothing was stored"),
    (OutcomeUnknownError, 504, "unknown", ""),
    (StoreRefusedError, 500, "store", ""),
    (StoreError, 503, "store", _LOOK),
)
"""The answer to each error: HTTP code, a word for programs, a hint beside the error's text."""


def problem_of(error: MetaServerError | AccessError | BodyError) -> Response:
    """Return the answer to a request that is refused."""
    text = str(error)
    if isinstance(error, AccessError):
        detail = ProblemDetail(code=error.kind, message=text)
        return problem(error.code, detail, retry_after_s=error.retry_after_s)
    if isinstance(error, BodyError):
        return problem(error.code, ProblemDetail(code=error.kind, message=text))
    if isinstance(error, BadValueError):
        detail = ProblemDetail(
            code="bad-value",
            message=text,
            field=error.field,
            value=error.value,
            allowed=error.allowed,
        )
        return problem(400, detail)
    for kind, code, word, more in _CODES:
        if isinstance(error, kind):
            message = f"{text}; {more}" if more else text
            return problem(
                code,
                ProblemDetail(code=word, message=message),
                retry_after_s=1 if code == 503 else 0,
            )
    raise error


def problem(code: int, detail: ProblemDetail, *, retry_after_s: int = 0) -> Response:
    """Return an answer that says what is wrong."""
    response = json_response(Problem(error=detail), code)
    if retry_after_s:
        response.headers["Retry-After"] = str(retry_after_s)
    if code == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response
