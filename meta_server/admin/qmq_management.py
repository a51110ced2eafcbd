"""QMQ's management calls over HTTP, for scripts that depend on them.

POST /management  action=… and its parameters, in the query or as a form; X-Api-Token where anything
                  is changed

Answers have the form that QMQ's have: HTTP 200, mostly {status, message, data} with status 0, or
-1 and the reason; two lists and one route come bare, and so do errors of what answers with a route.
Who may do what is decided as for the administration's own API, and what is changed goes the same
way: through the store, to the audit and to connected clients.

Without a file of tokens a change still needs the header X-Api-Token, with any value: a page in a
browser can send forms anywhere, but no such header.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
import structlog
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from delay_protocol.meta.requests import BrokerRole, BrokerState
from delay_transport.http.access import AccessError, Caller
from delay_transport.http.server import json_response
from delay_transport.http.tokens import Role
from meta_server.admin.admin_types import (
    BrokerNew,
    BrokerReplacement,
    ConsumerState,
    ReadOnlyChange,
    SubjectSet,
)
from meta_server.admin.api import BodyError, convert_request, peer_of, read_body
from meta_server.admin.pages import names_of, slices_of
from meta_server.admin.parts import Parts
from meta_server.admin.plans import (
    Desk,
    add_broker,
    check_groups,
    extend_route,
    reduce_route,
    replace_broker,
    set_offline,
    set_online,
    set_read_only,
    set_subject,
)
from meta_server.known.errors import BadValueError, MetaServerError, RefusedError, StateError
from meta_server.known.model import EVERY, Broker, BrokerGroup, Change, Route, Subject
from meta_server.known.registry import Registry
from meta_server.wire.group_admission import NEW_GROUP

_PARAMETERS_MAX: Final = 50
"""Parameters that a form may have."""

_REFUSALS_MAX: Final = 500
"""Routes that an answer names because they were left as they were."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

Parameters = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """An action that is to be carried out."""

    parts: Parts
    actor: str
    parameters: Parameters

    def given(self, *names: str) -> list[str]:
        """Return parameters that have to be there, with a value; raise RefusedError."""
        for name in names:
            if name not in self.parameters:
                raise RefusedError(f"{name} has to be given")
            if not self.parameters[name]:
                raise RefusedError(f"{name} is empty: it has to have a value")
        return [self.parameters[name] for name in names]

    async def carry_out(self, plan: Callable[[Desk], Sequence[Change]], *keys: object) -> None:
        """Have something stored."""
        await self.parts.administration.carry_out(self.actor, plan, *keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """The actions of /management."""

    act: Callable[[Asked], Awaitable[Response]]
    needed: Role


def done(data: object, message: str = "") -> dict[str, Any]:
    """Return QMQ's form of an answer."""
    return {"status": 0, "message": message, "data": data}


def failed(reason: str, data: object = None) -> dict[str, Any]:
    """Return QMQ's form of a refusal."""
    return {"status": -1, "message": reason, "data": data}


async def answer_management(parts: Parts, request: HttpRequest) -> Response:
    """Answer POST /management."""
    try:
        return await _answer(parts, request)
    except (MetaServerError, AccessError, BodyError) as error:
        return json_response(failed(str(error)))
    except ClientDisconnect:
        return Response(status_code=400)
    except Exception:  # noqa: BLE001
        # A bug ends the one request, and is told in the log.
        _log.exception("a request failed", operation="management")
        return json_response(failed("this is our fault; see the log"))


async def _answer(parts: Parts, request: HttpRequest) -> Response:
    # Whose token may read is enough to send a body, and to learn what actions there are.
    caller = parts.entrance.gate.admit(
        request.headers, peer_of(request), needed=Role.READ, is_change=True
    )
    with parts.entrance.slot():
        parameters = dict(reversed(request.query_params.multi_items()))
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media == "application/x-www-form-urlencoded":
            parameters = _form(await read_body(parts.entrance, request)) | parameters
        name = parameters.get("action", "")
        if not name:
            return PlainTextResponse("need provide action param\n")
        action = ACTIONS.get(name)
        if action is None:
            return PlainTextResponse(f"no such action: {name}\n")
        if action.needed is Role.ADMIN:
            caller = admit_change(parts, request)
        return await action.act(Asked(parts=parts, actor=caller.name, parameters=parameters))


def admit_change(parts: Parts, request: HttpRequest) -> Caller:
    """Return who changes something by one of QMQ's calls; raise AccessError."""
    caller = parts.entrance.gate.admit(
        request.headers, peer_of(request), needed=Role.ADMIN, is_change=True
    )
    if not (request.headers.get("x-api-token") or request.headers.get("authorization")):
        raise AccessError(
            403, "token", "a change needs the header X-Api-Token, here with any value"
        )
    return caller


def _form(body: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_PARAMETERS_MAX)
    except ValueError as error:
        raise BadValueError(field="body", value=body[:50], allowed=f"a form: {error}") from error
    # The first of several counts, as in a servlet.
    return dict(reversed(pairs))


# Lists


async def _list_brokers(asked: Asked) -> Response:
    registry = asked.parts.registry
    group = asked.parameters.get("brokerGroup")
    brokers = registry.brokers_in(group) if group else tuple(registry.brokers.values())
    return json_response(done(list(map(_broker, brokers))))


def _broker(broker: Broker) -> dict[str, Any]:
    return {
        "group": broker.group,
        "role": broker.role.name,
        "hostname": broker.hostname,
        "ip": broker.ip,
        "servePort": broker.serve_port,
        "syncPort": broker.sync_port,
    }


async def _list_broker_groups(asked: Asked) -> Response:
    registry = asked.parts.registry
    return json_response([_group(registry, group) for group in registry.groups.values()])


def _group(registry: Registry, group: BrokerGroup) -> dict[str, Any]:
    slaves = [
        f"{broker.ip}:{broker.serve_port}"
        for broker in registry.brokers_in(group.name)
        if broker.role in {BrokerRole.SLAVE, BrokerRole.DELAY_SLAVE}
    ]
    return {
        "groupName": group.name,
        "master": group.master,
        "slaves": slaves,
        "updateTime": group.updated_ms,
        "brokerState": BrokerState(group.state).name,
        "tag": group.tag,
        "kind": group.kind.name,
    }


async def _list_subject_routes(asked: Asked) -> Response:
    """Answer with all routes, a piece at a time: there may be a hundred thousand."""
    routes = asked.parts.registry.routes

    async def pieces() -> AsyncIterator[bytes]:
        separator = b"["
        async with aclosing(slices_of(routes.values())) as slices:
            async for some in slices:
                yield separator + msgspec.json.encode(list(map(_route, some)))[1:-1]
                separator = b","
        yield b"]" if separator == b"," else b"[]"

    return StreamingResponse(pieces(), media_type="application/json")


def _route(route: Route) -> dict[str, Any]:
    return {
        "subject": route.name,
        "brokerGroups": list(route.groups),
        "version": route.version,
        "updateTime": 0,
    }


# Brokers


def _place(parameters: Parameters) -> dict[str, object]:
    return {
        "hostname": parameters.get("hostname"),
        "serve_port": parameters.get("servePort"),
        "ip": parameters.get("ip"),
        # -1 is what QMQ has for brokers that nobody copies from.
        "sync_port": max(_number("syncPort", parameters.get("syncPort") or "0"), 0),
    }


def _number(name: str, text: str) -> int:
    try:
        return int(text[:20])
    except ValueError as error:
        raise BadValueError(field=name, value=text, allowed="a number") from error


def _role(parameters: Parameters) -> BrokerRole:
    code = _number("role", parameters.get("role") or "")
    allowed = [role for role in BrokerRole if role is not BrokerRole.STANDBY]
    if code not in allowed:
        raise BadValueError(
            field="role",
            value=code,
            allowed=", ".join(f"{int(role)} {role.name}" for role in allowed),
        )
    return BrokerRole(code)


async def _add_broker(asked: Asked) -> Response:
    [group] = asked.given("brokerGroup")
    role = _role(asked.parameters)
    fields = {"group": group, "role": role.name, **_place(asked.parameters)}
    new = convert_request(fields, BrokerNew, strict=False)
    await asked.carry_out(lambda desk: add_broker(desk, new), ("group", group), NEW_GROUP)
    return json_response(done(_known(asked, group, role)))


async def _replace_broker(asked: Asked) -> Response:
    """Answer with the broker that was replaced, as QMQ does."""
    [group] = asked.given("brokerGroup")
    role = _role(asked.parameters)
    place = convert_request(_place(asked.parameters), BrokerReplacement, strict=False)
    before = _known(asked, group, role)
    await asked.carry_out(
        lambda desk: replace_broker(desk, group, role.name, place), ("group", group), NEW_GROUP
    )
    return json_response(done(before))


def _known(asked: Asked, group: str, role: BrokerRole) -> dict[str, Any] | None:
    broker = asked.parts.registry.broker_with_role(group, role)
    return None if broker is None else _broker(broker)


# Subjects and routes


async def _add_subject(asked: Asked) -> Response:
    try:
        subject, tag = asked.given("subject", "tag")
    except RefusedError as error:
        return json_response({"error": str(error)})
    known = asked.parts.registry.subjects.get(subject)
    if known is not None:
        return json_response({"error": "the subject is there already", "data": _subject(known)})
    try:
        await asked.carry_out(
            lambda desk: set_subject(desk, subject, SubjectSet(tag=tag, version=0)),
            ("subject", subject),
        )
    except MetaServerError as error:
        return json_response({"error": str(error)})
    return json_response({"data": _subject(asked.parts.registry.subjects[subject])})


def _subject(subject: Subject) -> dict[str, Any]:
    return {"name": subject.name, "tag": subject.tag, "updateTime": subject.created_ms}


async def _add_subject_group(asked: Asked) -> Response:
    registry = asked.parts.registry
    try:
        group, subject = asked.given("brokerGroup", "subject")
        route = registry.routes.get(subject)
        if route is None:
            raise StateError(f"{subject} has no route that could be extended")
        check_groups(asked.parts.administration.desk(asked.actor), "brokerGroup", (group,))
        await asked.carry_out(
            lambda desk: extend_route(desk, subject, route.groups[0], group), ("subject", subject)
        )
    except MetaServerError as error:
        return json_response({"error": str(error)})
    return json_response(_route(registry.routes[subject]))


async def _remove_subject_group(asked: Asked) -> Response:
    group, subject = asked.given("brokerGroup", "subject")
    routes = asked.parts.registry.routes
    if subject != EVERY and subject not in routes:
        return json_response(failed(f"{subject} has no route", {}))
    refused: dict[str, str] = {}

    def plan(desk: Desk, name: str) -> Sequence[Change]:
        try:
            return reduce_route(desk, name, group)
        except StateError as error:
            if len(refused) < _REFUSALS_MAX:
                refused[name] = str(error)
            raise

    names = await names_of(routes) if subject == EVERY else [subject]
    changed = await asked.parts.administration.change_routes(asked.actor, names, plan)
    if not changed.complete:
        return json_response(failed("time was up; ask again for the rest", refused))
    if refused:
        return json_response(failed("some routes were left as they were", refused))
    return json_response(done({}))


async def _extend_subject_route(asked: Asked) -> Response:
    subject, group, new_group = asked.given(
        "relatedSubject", "relatedBrokerGroup", "newBrokerGroup"
    )
    administration, routes = asked.parts.administration, asked.parts.registry.routes
    check_groups(administration.desk(asked.actor), "newBrokerGroup", (new_group,))
    names = await names_of(routes) if subject == EVERY else [subject]
    changed = await administration.change_routes(
        asked.actor, names, lambda desk, name: extend_route(desk, name, group, new_group)
    )
    if not changed.complete:
        return json_response(failed("time was up; ask again for the rest"))
    return json_response(done(f"{changed.changed} routes were extended"))


async def _mark(asked: Asked, *, read_only: bool) -> Response:
    subject, group = asked.given("subject", "brokerGroup")
    change = ReadOnlyChange(read_only=read_only, subject=subject)
    await asked.carry_out(lambda desk: set_read_only(desk, group, change), ("group", group))
    return json_response(done("success"))


async def _mark_read_only(asked: Asked) -> Response:
    return await _mark(asked, read_only=True)


async def _unmark_read_only(asked: Asked) -> Response:
    return await _mark(asked, read_only=False)


async def _add_db(_: Asked) -> Response:
    return json_response(
        failed(
            "this meta server keeps no databases of clients: give them to the clients themselves"
        )
    )


async def _reset_offset(_: Asked) -> Response:
    return json_response(
        failed("this meta server resets no offsets: they are the brokers', ask QMQ's own for that")
    )


ACTIONS: Final[Mapping[str, Action]] = {
    "AddBroker": Action(act=_add_broker, needed=Role.ADMIN),
    "ReplaceBroker": Action(act=_replace_broker, needed=Role.ADMIN),
    "ListBrokers": Action(act=_list_brokers, needed=Role.READ),
    "ListBrokerGroups": Action(act=_list_broker_groups, needed=Role.READ),
    "ListSubjectRoutes": Action(act=_list_subject_routes, needed=Role.READ),
    "AddSubjectBrokerGroup": Action(act=_add_subject_group, needed=Role.ADMIN),
    "RemoveSubjectBrokerGroup": Action(act=_remove_subject_group, needed=Role.ADMIN),
    "ExtendSubjectRoute": Action(act=_extend_subject_route, needed=Role.ADMIN),
    "AddNewSubject": Action(act=_add_subject, needed=Role.ADMIN),
    "AddDb": Action(act=_add_db, needed=Role.ADMIN),
    "MarkReadonlyBrokerGroup": Action(act=_mark_read_only, needed=Role.ADMIN),
    "UnMarkReadonlyBrokerGroup": Action(act=_unmark_read_only, needed=Role.ADMIN),
    "ResetOffset": Action(act=_reset_offset, needed=Role.ADMIN),
}
"""By the names that QMQ has for them."""


# On-line and off-line


_ONOFFLINE_PARAMETERS: Final = ("clientId", "subject", "consumerGroup", "state")


async def answer_onoffline(parts: Parts, request: HttpRequest) -> Response:
    """Answer GET /onoffline, which asks for a consumer's state or changes it."""
    parameters = dict(reversed(request.query_params.multi_items()))
    missing = [name for name in _ONOFFLINE_PARAMETERS if not parameters.get(name)]
    operation = parameters.get("operation")
    try:
        caller = parts.entrance.gate.admit(
            request.headers, peer_of(request), needed=Role.READ, is_change=False
        )
        if missing:
            return json_response(failed(f"{', '.join(missing)} required"))
        if operation == "query":
            return json_response(done(None, _state(parts, parameters)))
        if operation != "update":
            return json_response(failed(f"unsupport: {operation}"))
        caller = admit_change(parts, request)
        if parameters["state"] not in {"0", "1"}:
            raise BadValueError(
                field="state", value=parameters["state"], allowed="0 on-line, 1 off-line"
            )
        with parts.entrance.slot():
            named = convert_request(
                {
                    "client_id": parameters["clientId"],
                    "subject": parameters["subject"],
                    "consumer_group": parameters["consumerGroup"],
                },
                ConsumerState,
                strict=True,
            )
            plan = set_offline if parameters["state"] == "1" else set_online
            await parts.administration.carry_out(caller.name, lambda desk: plan(desk, named))
    except (MetaServerError, AccessError) as error:
        return json_response(failed(str(error)))
    return json_response(done(None, "ok"))


def _state(parts: Parts, parameters: Parameters) -> str:
    offline = parts.registry.is_offline(
        parameters["clientId"], parameters["subject"], parameters["consumerGroup"]
    )
    return "OFF" if offline else "ON"
