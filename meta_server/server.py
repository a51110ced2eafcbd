"""The composition root of a meta server: opens, loads, starts everything, stops it.

Read `serve` from top to bottom to see what a meta server is made of. Order of start: the store, the
bound of timestamps, the writer, then the listener: no request is answered before all is loaded.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import structlog
import trio

from delay_protocol.receivers.masters import HOLD_S
from delay_transport.connections.listener import Server, serve_connections
from delay_transport.http.access import HttpAccess
from delay_transport.http.credentials import Credentials
from delay_transport.http.shared_secret import SharedSecret
from delay_transport.http.tokens import Tokens
from delay_transport.seams.runtime import Address, Runtime, parse_address
from delay_transport.settings.watched_file import FILES_WORKER
from meta_server.admin.administration import clean_routes
from meta_server.admin.parts import Observed, Parts
from meta_server.groups.current_controls import CurrentControls
from meta_server.groups.held_requests import HeldRequests
from meta_server.groups.liveness import Liveness
from meta_server.known import model
from meta_server.known.commits import STORE_WORKER, Committer, Intent
from meta_server.known.errors import MetaServerError
from meta_server.known.record_file import RecordedStore, RecordFile
from meta_server.known.registry import Registry
from meta_server.known.set_back import SetBacks
from meta_server.settings.config import MetaServerConfig, RegistrationConfig
from meta_server.wire.dispatch import Context
from meta_server.wire.handlers import Handlers
from meta_server.wire.sessions import Sessions
from meta_server.wire.silence import SilenceWatch
from meta_server.wire.timestamps import Timestamps

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_LOOK_S = 0.25
"""Seconds between two looks at silence and the bound of timestamps, at the most."""
_FORGET_S = 3600.0
"""Seconds between removals of old entries of the audit."""

_ROUTING = (model.BrokerGroup, model.Route, model.Receiver)
"""Kinds of rows by which a client may get another answer than it got."""


class MetaServer:
    """One running meta server: the parts, wired, and what can be seen of them.

    Made by `serve`. What depends on the store stands once `ready` is set.
    """

    def __init__(
        self,
        config: MetaServerConfig,
        runtime: Runtime,
        open_store: Callable[[], model.MetaStore],
        record_file: RecordFile,
    ) -> None:
        """Open the store in the executor, when it is served; beside it records are kept again."""
        self.config = config
        self.runtime = runtime
        self._started_ms = runtime.clock.now_ms()
        self.ready = trio.Event()
        self._stopping = False
        self.http_access = HttpAccess(
            Tokens(config.admin.token_file), own_address=config.http.address
        )
        self.secret = secret_of(config)
        self.credentials = Credentials(
            self.secret, is_needed=config.registration.secret_needed, chance=runtime.chance
        )
        self._open_store = open_store
        self._record_file = record_file
        self.look_s = _LOOK_S
        """Seconds between two looks at who is silent, and at what is to be stored meanwhile."""
        self.listener: Server | None = None

    async def open(self) -> None:
        """Open the store, load everything, and wire what stands on it."""
        config, runtime = self.config, self.runtime
        began = trio.current_time()
        if self.http_access.tokens.is_set:
            await runtime.executor.run(FILES_WORKER, self.http_access.tokens.read)
        await runtime.executor.run(FILES_WORKER, self.secret.read)
        self.store, self.registry = await runtime.executor.run(STORE_WORKER, self._load)
        load_seconds = trio.current_time() - began
        _log.info(
            "loaded",
            subjects=len(self.registry.subjects),
            routes=len(self.registry.routes),
            groups=len(self.registry.groups),
            nodes=len(self.registry.nodes),
            seconds=round(load_seconds, 3),
        )
        self._wire_keeping(config.registration)
        self._wire_answering(config.registration)
        self.parts = Parts(
            config=config,
            runtime=runtime,
            load_seconds=load_seconds,
            access=self.http_access,
            observe=self.observe,
            store=self.store,
            registry=self.registry,
            set_backs=self.set_backs,
            committer=self.committer,
            heard=self.heard,
            silence=self.silence,
            credentials=self.credentials,
            handlers=self.handlers,
        )

    def _wire_keeping(self, limits: RegistrationConfig) -> None:
        """Wire what keeps: the writer, timestamps, who was heard."""
        self.timestamps = Timestamps(ceiling_ms=self.registry.timestamp_ms)
        self.committer = Committer(
            registry=self.registry,
            store=self.store,
            executor=self.runtime.executor,
            waiting_max=limits.waiting_max,
            batch_max=limits.commit_requests_max,
            on_changed=self._changed,
            on_loaded=self._loaded_anew,
        )
        self.heard = Liveness(timeout_s=limits.broker_timeout_ms / 1000)

    def _wire_answering(self, limits: RegistrationConfig) -> None:
        """Wire what answers, pushes, and tells delay servers their controls."""
        context = Context(
            config=self.config,
            clock=self.runtime.clock,
            registry=self.registry,
            committer=self.committer,
            sessions=Sessions(),
            heard=self.heard,
            credentials=self.credentials,
            held=HeldRequests(hold_s=HOLD_S),
        )
        self.set_backs = SetBacks(
            self.registry, unproven=self.store.unproven, groups_max=limits.groups_max
        )
        self.handlers = Handlers(
            context,
            timestamps=self.timestamps,
            controls=CurrentControls(self.registry, store_uuid=lambda: self.store.uuid),
            set_backs=self.set_backs,
        )
        self.silence = SilenceWatch(
            context,
            look_s=self.look_s,
            on_look=self.handlers.dispatcher.answer_overdue,
            on_stall=self.handlers.group_changes.stood_still,
        )

    def _load(self) -> tuple[RecordedStore, Registry]:
        store = RecordedStore(self._open_store(), self._record_file)
        try:
            return store, Registry(store.load())
        except BaseException:
            store.close()
            raise

    def _changed(self, changes: Sequence[model.Change]) -> None:
        """Push what follows from changes that are stored."""
        self.handlers.group_changes.changed(changes)
        self.handlers.receivers.changed(changes)
        for change in changes:
            if isinstance(change, model.RaiseTimestamp):
                self.timestamps.raise_ceiling(change.timestamp_ms)
        # New subjects have their routes stored, and old ones removed, by the hundred: only theirs
        # are looked at.
        rows = [change.row for change in changes if isinstance(change, model.Save | model.Remove)]
        routing = [row for row in rows if isinstance(row, _ROUTING)]
        subjects = [
            row.name for row in routing if isinstance(row, model.Route) and not row.is_prefix
        ]
        if len(subjects) < len(routing):
            self.handlers.pusher.changed()
        elif subjects:
            self.handlers.pusher.changed(subjects)

    def _loaded_anew(self) -> None:
        self.timestamps.raise_ceiling(self.registry.timestamp_ms)
        self.handlers.group_changes.loaded_anew()
        self.handlers.receivers.loaded_anew()
        self.handlers.held.changed()
        self.handlers.pusher.changed()

    # -- tasks -------------------------------------------------------------------------------

    async def keep_timestamps(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Keep the stored bound of timestamps ahead of the clock; starts when there is one."""
        while True:
            wanted = self.timestamps.wanted(self.runtime.clock.now_ms())
            if wanted is not None:
                await self._commit(model.RaiseTimestamp(wanted))
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED
            await trio.sleep(self.look_s)

    async def forget(self) -> None:
        """Remove, once an hour, old entries of the audit, and groups that are gone from routes."""
        config, clock = self.config, self.runtime.clock
        began_ms, began_at = clock.now_ms(), trio.current_time()
        while True:
            await trio.sleep(_FORGET_S)
            # A clock that is set ahead makes no entry older.
            passed_ms = int((trio.current_time() - began_at) * 1000)
            now_ms = min(clock.now_ms(), began_ms + passed_ms)
            await self._commit(model.ForgetAudit(now_ms - config.store.audit_keep_ms))
            with suppress(MetaServerError):
                await clean_routes(self.parts)

    async def _commit(self, change: model.Change) -> None:
        """Store a change, unless the store fails: then it is wanted again later."""
        ended = trio.Event()
        intent = Intent(
            keys=(type(change),), plan=lambda: (change,), done=lambda _error: ended.set()
        )
        with suppress(MetaServerError):
            self.committer.submit(intent)
            await ended.wait()

    def listening_at(self) -> Address:
        """Return where the listener is; there is one from the start of `serve` on."""
        assert self.listener is not None
        return self.listener.address

    # -- stop --------------------------------------------------------------------------------

    def stop(self) -> float:
        """Answer what was asked, then end; return by when (trio time) that is to be."""
        self._stopping = True
        assert self.listener is not None
        self.listener.stop()
        return trio.current_time() + self.config.node.stop_ms_max / 1000

    # -- what can be seen --------------------------------------------------------------------

    def observe(self) -> Observed:
        """Return what can be seen now."""
        return Observed(
            now_ms=self.runtime.clock.now_ms(),
            started_ms=self._started_ms,
            is_stopping=self._stopping,
            listener=self.listener,
            parts=self.parts if self.ready.is_set() else None,
        )


def secret_of(config: MetaServerConfig) -> SharedSecret:
    """Return the secret of the settings, unread."""
    path = config.registration.secret_file
    return SharedSecret(Path(path) if path else None)


async def serve(
    server: MetaServer,
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a meta server until `stop` is set; starts when it answers.

    Raises what made serving impossible: StoreError, TransportError, or a bug.
    """
    await server.open()
    try:
        async with trio.open_nursery() as nursery:
            # Whatever changes goes through here.
            nursery.start_soon(server.committer.run)
            await nursery.start(server.keep_timestamps)
            # Tell who is connected, notice who is not.
            nursery.start_soon(server.handlers.pusher.run)
            nursery.start_soon(server.handlers.group_changes.run)
            nursery.start_soon(server.handlers.held.run)
            nursery.start_soon(server.handlers.dispatcher.run)
            nursery.start_soon(server.forget)
            nursery.start_soon(server.http_access.tokens.keep, server.runtime.executor)
            nursery.start_soon(server.secret.keep, server.runtime.executor)
            nursery.start_soon(server.silence.run)
            async with trio.open_nursery() as listening:
                # Answer now that everything is known.
                server.listener = await listening.start(
                    serve_connections,
                    server.runtime.network,
                    parse_address(server.config.listener.address),
                    server.handlers.dispatch(),
                    server.config.listener,
                )
                server.ready.set()
                task_status.started()
                await stop.wait()
                listening.cancel_scope.deadline = server.stop()
            nursery.cancel_scope.cancel()
    finally:
        server.store.close()
