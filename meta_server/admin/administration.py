"""Administration: plans become commits, and are answered once they are stored.

Each change takes the same queue as registrations (`meta_server/known/commits.py::Committer`), with
an audit entry in the same commit.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import aclosing
from typing import Final

import structlog
import trio

from delay_transport.seams.runtime import Clock, Executor
from meta_server.admin.admin_types import RoutesChanged
from meta_server.admin.pages import slices_of
from meta_server.admin.plans import (
    ITSELF,
    Desk,
    approve_group,
    leave_route,
    remove_group,
)
from meta_server.groups.broker_groups import is_forgettable
from meta_server.groups.liveness import Liveliness
from meta_server.groups.receiver_groups import keys_of
from meta_server.groups.waiting_groups import WaitingGroups
from meta_server.known.commits import STORE_WORKER, Committer, Intent
from meta_server.known.errors import (
    MetaServerError,
    NotFoundError,
    StateError,
    StoreUnavailableError,
)
from meta_server.known.model import (
    Audit,
    AuditRow,
    Change,
    GroupKind,
    MetaStore,
)
from meta_server.known.registry import NodeKey, Registry
from meta_server.known.set_back import SetBacks
from meta_server.settings.config import AdminConfig, RegistrationConfig
from meta_server.wire.group_admission import NEW_GROUP
from meta_server.wire.node_registration import NODES

_ADMINISTRATION: Final = "administration"
"""Key of every intent from here: no two of them share a commit, so limits of numbers hold."""

_ROUTES_AT_ONCE: Final = 200
"""Routes that one commit changes, and one turn of the loop plans."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


class OutcomeUnknownError(MetaServerError):
    """The store took longer than an answer may; whether the change is stored is not known."""


class Administration:
    """What administrators can do."""

    def __init__(
        self,
        settings: AdminConfig,
        *,
        registry: Registry,
        set_backs: SetBacks,
        committer: Committer,
        store: MetaStore,
        heard: Liveliness,
        waiting: WaitingGroups,
        limits: RegistrationConfig,
        clock: Clock,
        executor: Executor,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._set_backs = set_backs
        self._committer = committer
        self._store = store
        self._heard = heard
        self._waiting = waiting
        self._limits = limits
        self._clock = clock
        self._executor = executor
        self.changes: Counter[str] = Counter()
        """Changes that are stored, by action."""

    def desk(self, actor: str) -> Desk:
        """Return what plans stand on, now."""
        return Desk(
            registry=self._registry,
            set_backs=self._set_backs,
            registration=self._limits,
            limits=self._settings,
            actor=actor,
            now_ms=self._clock.now_ms(),
        )

    async def carry_out(
        self,
        actor: str,
        plan: Callable[[Desk], Sequence[Change]],
        *keys: Hashable,
        stored: Callable[[], None] = lambda: None,
    ) -> int:
        """Plan and store a change; return how many row changes it took, 0 for none.

        `keys` name what it is about, beside administration itself; `stored` is called when the
        changes are known and before anybody is answered. Raises RefusedError, StoreError,
        OutcomeUnknownError.
        """
        ended = trio.Event()
        failed: list[MetaServerError] = []
        planned: list[Change] = []

        def make_plan() -> Sequence[Change]:
            planned[:] = plan(self.desk(actor))
            return planned

        def done(error: MetaServerError | None) -> None:
            if error is not None:
                failed.append(error)
            else:
                self._note(planned)
                stored()
            ended.set()

        self._committer.submit(Intent(keys=(_ADMINISTRATION, *keys), plan=make_plan, done=done))
        with trio.move_on_after(self._settings.answer_ms_max / 1000):
            await ended.wait()
        if not ended.is_set():
            raise OutcomeUnknownError(
                "the store has not answered yet: check whether the change was made, then try again"
            )
        if failed:
            raise failed[0]
        return len(planned)

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

    async def change_group(
        self, actor: str, name: str, plan: Callable[[Desk], Sequence[Change]]
    ) -> None:
        """Carry out what concerns a broker group; a new master has one time-out to be heard."""
        before = self._registry.groups.get(name)

        def stored() -> None:
            after = self._registry.groups.get(name)
            if after is not None and after.is_watched and before is not None:
                moved = after.master != before.master
                if moved or not before.is_watched:
                    self._heard.groups.expect(name, trio.current_time())

        await self.carry_out(actor, plan, ("group", name), NEW_GROUP, stored=stored)

    async def approve_group(self, actor: str, name: str, *, address: str | None) -> None:
        """Let a group in that waits; its broker has one time-out to speak again."""
        waiting = self._waiting
        is_new = name not in self._registry.groups
        known = waiting.get(name)
        keys = keys_of(() if known is None else known.patterns)

        def stored() -> None:
            waiting.forget(name)
            if is_new and self._registry.groups[name].kind is not GroupKind.RECEIVER:
                self._heard.groups.expect(name, trio.current_time())

        def plan(desk: Desk) -> Sequence[Change]:
            waits = {group.name: group for group in waiting.all(trio.current_time())}
            return approve_group(desk, name, waits.get(name), address=address)

        await self.carry_out(actor, plan, ("group", name), NEW_GROUP, *keys, stored=stored)

    async def remove_group(
        self, actor: str, name: str, *, version: int | None, lose_messages: bool
    ) -> None:
        """Remove a broker group that is not in use, and have it leave routes that were chosen."""
        routed = (await self._routed_to([name]))[name]

        def plan(desk: Desk) -> Sequence[Change]:
            return self._removal(
                desk, name, routes=len(routed), version=version, lose_messages=lose_messages
            )

        await self._remove_group(actor, name, routed, plan)

    async def forget_groups(self, keep_ms: int) -> None:
        """Remove the groups that nobody entered, and of which nothing was heard for so long."""
        registry = self._registry
        now_ms = self._clock.now_ms()
        found = [
            name
            for name in registry.groups
            if is_forgettable(registry, name, keep_ms=keep_ms, now_ms=now_ms)
        ]
        routed = await self._routed_to(found) if found else {}
        for name, routes in routed.items():

            def plan(desk: Desk, name: str = name) -> Sequence[Change]:
                if not is_forgettable(registry, name, keep_ms=keep_ms, now_ms=desk.now_ms):
                    return ()
                return self._removal(desk, name, routes=0, version=None, lose_messages=True)

            try:
                await self._remove_group(ITSELF, name, routes, plan)
            except StateError as error:
                _log.info("a silent group was not removed", group=name, reason=str(error))

    def _removal(
        self, desk: Desk, name: str, *, routes: int, version: int | None, lose_messages: bool
    ) -> Sequence[Change]:
        is_heard = self._heard.groups.is_heard(name, trio.current_time())
        return remove_group(
            desk,
            name,
            is_heard=is_heard,
            routes=routes,
            version=version,
            lose_messages=lose_messages,
        )

    async def _remove_group(
        self,
        actor: str,
        name: str,
        routed: Sequence[str],
        plan: Callable[[Desk], Sequence[Change]],
    ) -> None:
        registry = self._registry
        if not plan(self.desk(actor)):
            return
        prefixes = [route for route in registry.prefixes.values() if name in route.groups]
        own = [registry.routes[subject] for subject in routed if subject in registry.routes]
        for route in (*prefixes, *(route for route in own if not route.is_chosen)):
            raise StateError(f"an operator has routed {route.name} to {name}: change that first")
        left = await self.change_routes(
            actor, routed, lambda desk, subject: leave_route(desk, subject, name)
        )
        if not left.complete:
            raise OutcomeUnknownError(
                f"many subjects are routed to {name}, and some still are: ask again, it goes on"
            )
        await self.carry_out(actor, plan, ("group", name), NEW_GROUP)

    async def _routed_to(self, names: Collection[str]) -> dict[str, list[str]]:
        """Return the subjects whose own routes lead to each of these groups."""
        found: dict[str, list[str]] = {name: [] for name in names}
        async with aclosing(slices_of(self._registry.routes.values())) as slices:
            async for some in slices:
                for route in some:
                    for group in route.groups:
                        if group in found:
                            found[group].append(route.name)
        return found

    async def change_routes(
        self,
        actor: str,
        names: Sequence[str],
        plan: Callable[[Desk, str], Sequence[Change]],
    ) -> RoutesChanged:
        """Change many routes, some at a time, and say what became of them.

        A route for which `plan` raises StateError is left as it is. Whatever is stored stays
        stored, so what is asked again goes on where time was up.
        """
        changed = left = 0
        deadline = trio.current_time() + self._settings.answer_ms_max / 1000

        for start in range(0, len(names), _ROUTES_AT_ONCE):
            if trio.current_time() >= deadline:
                return RoutesChanged(changed=changed, left=left, complete=False)
            some = names[start : start + _ROUTES_AT_ONCE]
            routes = 0
            refused = 0

            def plan_some(desk: Desk, some: Sequence[str] = some) -> Sequence[Change]:
                nonlocal routes, refused
                changes: list[Change] = []
                routes = refused = 0
                for name in some:
                    try:
                        planned = plan(desk, name)
                    except StateError:
                        refused += 1
                        continue
                    routes += bool(planned)
                    changes += planned
                return changes

            await self.carry_out(actor, plan_some, *(("subject", name) for name in some))
            changed += routes
            left += refused
        return RoutesChanged(changed=changed, left=left, complete=True)

    def hears(self, key: NodeKey) -> bool:
        """Say whether a delay server was heard within the time-out."""
        return self._heard.nodes.is_heard(key, trio.current_time())

    async def change_node(
        self,
        actor: str,
        group: str,
        node_id: str,
        plan: Callable[[Desk, bool], Sequence[Change]],
        *,
        is_alive: Callable[[NodeKey], bool],
        stored: Callable[[NodeKey], None] = lambda _: None,
    ) -> None:
        """Change or remove a delay server; the plan gets what `is_alive` says of it then.

        `stored` is called with its key when that is known.
        """
        known = self._registry.delay_groups.get(group)
        if known is None:
            raise NotFoundError(f"there is no delay group {group!a}")
        key = (known.cluster, group, node_id)
        await self.carry_out(
            actor,
            lambda desk: plan(desk, is_alive(key)),
            NODES,
            NEW_GROUP,
            ("group", group),
            ("node", key),
            stored=lambda: stored(key),
        )

    async def read_audit(self, *, before: int | None, limit: int) -> tuple[AuditRow, ...]:
        """Return entries of the audit, newest first; raise StoreUnavailableError."""
        if self._committer.is_stale:
            raise StoreUnavailableError("the store is away, and the audit is read from it")
        return await self._executor.run(
            STORE_WORKER, lambda: self._store.read_audit(before=before, limit=limit)
        )
