"""Carries out plans: they become commits, and are answered once they are stored.

Each change takes the same queue as registrations (`meta_server/known/commits.py::Committer`), with
an audit entry in the same commit.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Final

import structlog
import trio

from delay_transport.http.pages import slices_of
from delay_transport.seams.runtime import Executor
from meta_server.admin.admin_types import MayLose, NameKey, RoutesChanged
from meta_server.admin.context import Context, Plan, Planned
from meta_server.admin.rules import check_groups, extended, remove_group, without_removed
from meta_server.groups.broker_groups import is_forgettable
from meta_server.known.commits import STORE_WORKER, Committer, Intent
from meta_server.known.errors import MetaServerError, StateError, StoreUnavailableError
from meta_server.known.model import Audit, AuditRow, Change, MetaStore, Route
from meta_server.wire.admission import NEW_GROUP

ITSELF: Final = "(meta server)"
"""Actor of changes that the meta server makes by itself; no token has parentheses."""

_ADMINISTRATION: Final = "administration"
"""Key of every intent from here: no two of them share a commit, so limits of numbers hold."""

_ROUTES_AT_ONCE: Final = 200
"""Routes that one commit changes, and one turn of the loop plans."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


class OutcomeUnknownError(MetaServerError):
    """The store took longer than an answer may; whether the change is stored is not known."""


class Administration:
    """Plans and stores what administrators change."""

    def __init__(
        self, context: Context, *, committer: Committer, store: MetaStore, executor: Executor
    ) -> None:
        self._context = context
        self._registry = context.registry
        self._answer_s_max = context.limits.answer_ms_max / 1000
        self._committer = committer
        self._store = store
        self._executor = executor
        self.changes: Counter[str] = Counter()
        """Changes that are stored, by action."""

    def context(self, actor: str) -> Context:
        """Return what rules read, for this actor."""
        return replace(self._context, actor=actor)

    async def carry_out(self, actor: str, plan: Plan, *keys: Hashable) -> Planned:
        """Plan and store a change; return the plan that was stored.

        `keys` name what it is about, beside administration itself.
        Raises RefusedError, StoreError, OutcomeUnknownError.
        """
        ended = trio.Event()
        failed: list[MetaServerError] = []
        planned = Planned()
        context = self.context(actor)

        def make_plan() -> Sequence[Change]:
            nonlocal planned
            planned = plan(context)
            return planned.changes

        def done(error: MetaServerError | None) -> None:
            if error is not None:
                failed.append(error)
            else:
                self._note(planned.changes)
                planned.stored()
            ended.set()

        self._committer.submit(
            Intent(keys=(_ADMINISTRATION, *keys), plan=make_plan, done=done, is_urgent=True)
        )
        with trio.move_on_after(self._answer_s_max):
            await ended.wait()
        if not ended.is_set():
            raise OutcomeUnknownError(
                "the store has not answered yet: check whether the change was made, then try again"
            )
        if failed:
            raise failed[0]
        return planned

    def _note(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, Audit):
                entry = change.entry
                self.changes[entry.action] += 1
                _log.info(
                    "administrator's change stored",
                    actor=entry.actor,
                    action=entry.action,
                    target=entry.target,
                )

    async def forget_groups(self, keep_ms: int) -> None:
        """Remove the groups that nobody entered, and of which nothing was heard for so long."""
        registry, clock = self._registry, self._context.clock

        def is_over(name: str) -> bool:
            return is_forgettable(registry, name, keep_ms=keep_ms, now_ms=clock.now_ms())

        for name in [name for name in registry.groups if is_over(name)]:

            def plan(context: Context, name: str = name) -> Planned:
                if not is_over(name):
                    return Planned()
                known = registry.groups[name]
                body = MayLose(lose_messages=True)
                planned = remove_group(context, NameKey(name=name), known, body)
                entry = context.entry("broker-group.remove", name, known, None)
                return planned._replace(changes=(*planned.changes, entry))

            try:
                await self.carry_out(ITSELF, plan, ("group", name), NEW_GROUP)
            except StateError as error:
                _log.info("a silent group was not removed", group=name, reason=str(error))
        await self.clean_routes()

    async def clean_routes(self) -> None:
        """Take broker groups that were removed out of the routes that the meta server chose."""
        groups = self._registry.groups

        def is_left(route: Route) -> bool:
            return route.is_chosen and not groups.keys() >= {*route.groups}

        await self._change_routes(ITSELF, is_left, without_removed)

    async def extend_routes(self, actor: str, group: str, new_group: str) -> RoutesChanged:
        """Add a group to all routes of subjects that have another one, some at a time.

        Whatever is stored stays stored, so what is asked again goes on where time was up.
        """

        def lacks(route: Route) -> bool:
            return group in route.groups and new_group not in route.groups

        check_groups(self._context, "new_group", (new_group,))
        plan = partial(extended, new_group=new_group)
        return await self._change_routes(actor, lacks, plan, most_s=self._answer_s_max)

    async def _change_routes(
        self,
        actor: str,
        is_wanted: Callable[[Route], bool],
        plan: Callable[..., Planned],
        most_s: float = math.inf,
    ) -> RoutesChanged:
        """Change routes of subjects, some in each commit, until time is up.

        `plan` gets the subjects whose routes are wanted.
        """
        routes = self._registry.routes
        deadline = trio.current_time() + most_s
        names: list[str] = []
        async with aclosing(slices_of(routes.values())) as slices:
            async for found in slices:
                names += [route.name for route in found if is_wanted(route)]
        changed = 0
        for start in range(0, len(names), _ROUTES_AT_ONCE):
            if trio.current_time() >= deadline:
                return RoutesChanged(changed=changed, left=len(names) - changed, complete=False)
            some = names[start : start + _ROUTES_AT_ONCE]

            def plan_some(context: Context, some: Sequence[str] = some) -> Planned:
                left = [name for name in some if name in routes and is_wanted(routes[name])]
                return plan(context, subjects=left)

            planned = await self.carry_out(actor, plan_some, *(("subject", name) for name in some))
            changed += sum(not isinstance(change, Audit) for change in planned.changes)
        return RoutesChanged(changed=changed, left=len(names) - changed, complete=True)

    async def read_audit(self, *, before: int | None, limit: int) -> tuple[AuditRow, ...]:
        """Return entries of the audit, newest first; raise StoreUnavailableError."""
        if self._committer.is_stale:
            raise StoreUnavailableError("the store is away, and the audit is read from it")
        return await self._executor.run(
            STORE_WORKER, lambda: self._store.read_audit(before=before, limit=limit)
        )
