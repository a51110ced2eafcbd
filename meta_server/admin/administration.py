"""Carries out plans: they become commits, and are answered once they are stored.

Each change takes the same queue as registrations (`meta_server/known/commits.py::Committer`). It is
stored in a commit of its own, with an audit entry: so it is planned on all that is known, and
limits of numbers hold.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

import structlog
import trio

from delay_transport.http.pages import slices_of
from meta_server.admin.admin_types import RoutesChanged
from meta_server.admin.parts import Parts, Plan, Planned
from meta_server.admin.rules import check_groups, extended, without_removed
from meta_server.known.commits import STORE_WORKER, Intent
from meta_server.known.errors import MetaServerError, StoreUnavailableError
from meta_server.known.model import Audit, AuditRow, Change, Route

ITSELF: Final = "(meta server)"
"""Actor of changes that the meta server makes by itself; no token has parentheses."""

_ROUTES_AT_ONCE: Final = 200
"""Routes that one commit changes, and one turn of the loop plans."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


class OutcomeUnknownError(MetaServerError):
    """The store took longer than an answer may; whether the change is stored is not known."""


async def carry_out(parts: Parts, plan: Plan) -> Planned:
    """Plan and store a change of the actor of `parts`; return the plan that was stored.

    Raises RefusedError, StoreError, OutcomeUnknownError.
    """
    ended = trio.Event()
    failed: list[MetaServerError] = []
    planned = Planned()

    def make_plan() -> Sequence[Change]:
        nonlocal planned
        planned = plan(parts)
        return planned.changes

    def done(error: MetaServerError | None) -> None:
        if error is not None:
            failed.append(error)
        else:
            _note(parts, planned.changes)
            planned.stored()
        ended.set()

    parts.committer.submit(Intent(keys=(), plan=make_plan, done=done, is_urgent=True))
    with trio.move_on_after(parts.config.admin.answer_ms_max / 1000):
        await ended.wait()
    if not ended.is_set():
        raise OutcomeUnknownError(
            "the store has not answered yet: check whether the change was made, then try again"
        )
    if failed:
        raise failed[0]
    return planned


def _note(parts: Parts, changes: Sequence[Change]) -> None:
    for change in changes:
        if isinstance(change, Audit):
            entry = change.entry
            parts.changes[entry.action] += 1
            _log.info(
                "administrator's change stored",
                actor=entry.actor,
                action=entry.action,
                target=entry.target,
            )


async def clean_routes(parts: Parts) -> None:
    """Take broker groups that were removed out of the routes that the meta server chose."""
    groups = parts.registry.groups

    def is_left(route: Route) -> bool:
        return route.is_chosen and not groups.keys() >= {*route.groups}

    await _change_routes(parts.asked_by(ITSELF), is_left, without_removed)


async def extend_routes(parts: Parts, group: str, new_group: str) -> RoutesChanged:
    """Add a group to all routes of subjects that have another one, some at a time.

    Whatever is stored stays stored, so what is asked again goes on where time was up.
    """

    def lacks(route: Route) -> bool:
        return group in route.groups and new_group not in route.groups

    check_groups(parts, "new_group", (new_group,))
    plan = partial(extended, new_group=new_group)
    return await _change_routes(parts, lacks, plan, most_s=parts.config.admin.answer_ms_max / 1000)


async def _change_routes(
    parts: Parts,
    is_wanted: Callable[[Route], bool],
    plan: Callable[..., Planned],
    most_s: float = math.inf,
) -> RoutesChanged:
    """Change routes of subjects, some in each commit, until time is up.

    `plan` gets the subjects whose routes are wanted.
    """
    routes = parts.registry.routes
    deadline = parts.now + most_s
    names: list[str] = []
    async with aclosing(slices_of(routes.values())) as slices:
        async for found in slices:
            names += [route.name for route in found if is_wanted(route)]
    changed = 0
    for start in range(0, len(names), _ROUTES_AT_ONCE):
        if parts.now >= deadline:
            return RoutesChanged(changed=changed, left=len(names) - changed, complete=False)
        some = names[start : start + _ROUTES_AT_ONCE]

        def plan_some(parts: Parts, some: Sequence[str] = some) -> Planned:
            left = [name for name in some if name in routes and is_wanted(routes[name])]
            return plan(parts, subjects=left)

        planned = await carry_out(parts, plan_some)
        changed += sum(not isinstance(change, Audit) for change in planned.changes)
    return RoutesChanged(changed=changed, left=len(names) - changed, complete=True)


async def read_audit(parts: Parts, *, before: int | None, limit: int) -> tuple[AuditRow, ...]:
    """Return entries of the audit, newest first; raise StoreUnavailableError."""
    if parts.committer.is_stale:
        raise StoreUnavailableError("the store is away, and the audit is read from it")
    return await parts.runtime.executor.run(
        STORE_WORKER, lambda: parts.store.read_audit(before=before, limit=limit)
    )
