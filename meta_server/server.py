"""The composition root of a meta server process: opens, loads, starts everything, stops it.

Read `serve` from top to bottom to see what a meta server is made of. Order of start: the store, the
bound of timestamps, the writer, then the listener: no request is answered before all is loaded.
"""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import structlog
import trio

from delay_transport.connections.listener import Server, serve_connections
from delay_transport.http.access import check_exposure
from delay_transport.http.shared_secret import SharedSecret
from delay_transport.http.tokens import Tokens
from delay_transport.seams.process import allow_open_files, settle_memory, stop_on_signals
from delay_transport.seams.runtime import (
    Address,
    Runtime,
    format_address,
    parse_address,
    system_runtime,
)
from meta_server.admin.administration import Administration
from meta_server.admin.audit import AuditKeeping
from meta_server.admin.http import serve_http
from meta_server.admin.limits import limits_in_force
from meta_server.admin.openapi import document_json, page
from meta_server.groups.broker_groups import watched
from meta_server.groups.controls_push import ControlsTelling
from meta_server.groups.liveness import Liveness
from meta_server.known.commits import STORE_LANE, Committing, Intent
from meta_server.known.errors import MetaServerError
from meta_server.known.model import (
    Audit,
    Change,
    ForgetAudit,
    ForgetClient,
    NoteClient,
    RaiseTimestamp,
    RemoveBroker,
    RemoveBrokerGroup,
    RemoveDelayGroup,
    RemoveDelayNode,
    RemoveRoute,
    RemoveSubject,
    SaveBroker,
    SaveBrokerGroup,
    SaveControls,
    SaveDelayGroup,
    SaveDelayNode,
    SaveRoute,
    SaveSubject,
    SetLimit,
    Store,
    UnsetLimit,
)
from meta_server.known.registry import Registry
from meta_server.settings.config import MetaServerConfig
from meta_server.settings.exposure import warn_of_exposure
from meta_server.sql.store import open_store
from meta_server.wire.clients import SeenClients
from meta_server.wire.credentials import Credentials
from meta_server.wire.handlers import Handlers, Liveliness
from meta_server.wire.pushes import Pushing
from meta_server.wire.timestamps import Timestamps

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_LOOK_S = 0.25
"""How often silence, the bound of timestamps and gathered clients are looked at, at least."""
_FORGET_S = 3600.0
"""How often clients and groups of which nothing was heard for long are looked for."""
_FORGET_SLICE = 2000
"""Clients looked at in one turn of the loop, and forgotten by one commit."""
_READING_LANE = "secrets"
"""The executor's lane in which the file of the secret is read."""
_OTHER_FILES = 256
"""Files open at a time beside connections."""


_ROUTES_NOBODY = (
    Audit,
    ForgetAudit,
    ForgetClient,
    NoteClient,
    RaiseTimestamp,
    RemoveBroker,
    RemoveDelayGroup,
    RemoveDelayNode,
    RemoveSubject,
    SaveBroker,
    SaveControls,
    SaveDelayGroup,
    SaveDelayNode,
    SaveSubject,
    SetLimit,
    UnsetLimit,
)
"""Changes after which every client would still get what it got."""


class MetaServer:
    """One running meta server: the parts, wired, and what can be seen of them.

    Made by `serve`. What depends on the store stands once `ready` is set.
    """

    def __init__(
        self, config: MetaServerConfig, runtime: Runtime, open_store: Callable[[], Store]
    ) -> None:
        """Open the store in the executor, when it is served."""
        self.config = config
        self.runtime = runtime
        self.started_ms = runtime.clock.now_ms()
        self.ready = trio.Event()
        self.stopping = False
        self.stalls = 0
        """How often this process was not running for a while."""
        self.load_seconds = 0.0
        self.limits = config.registration
        """Of what may be registered, as they are in force: what is stored goes before the file."""
        self.administration = Administration(self, config)
        self.secret = secret_of(config)
        self.credentials = Credentials(
            self.secret, is_needed=config.registration.secret_needed, chance=runtime.chance
        )
        self._open_store = open_store
        self.look_s = _LOOK_S
        """Seconds between two checks of time-outs and of records to store."""
        self._silent: dict[str, None] = {}
        """Groups that are silent, which the store could not be told."""
        self.listener: Server | None = None
        # The rest stands when the store is open.
        self.store: Store
        self.registry: Registry
        self.timestamps: Timestamps
        self.committing: Committing
        self.heard: Liveliness
        self.handlers: Handlers
        self.pushing: Pushing
        self.telling: ControlsTelling
        self.clients: SeenClients
        self.audit: AuditKeeping

    async def open(self) -> None:
        """Open the store, load everything, and wire what stands on it."""
        config, runtime = self.config, self.runtime
        began = trio.current_time()
        await self.administration.read_tokens()
        await self._read_secret()
        self.store, self.registry = await runtime.executor.run(STORE_LANE, self._load)
        self.load_seconds = trio.current_time() - began
        self.limits = limits = limits_in_force(config.registration, self.registry.limits)
        _log.info(
            "loaded",
            subjects=len(self.registry.subjects),
            routes=len(self.registry.routes),
            groups=len(self.registry.groups),
            nodes=len(self.registry.nodes),
            seconds=round(self.load_seconds, 3),
        )
        self.timestamps = Timestamps(
            ceiling_ms=self.registry.timestamp_ms, ahead_ms=limits.timestamp_ahead_ms
        )
        self.committing = Committing(
            registry=self.registry,
            store=self.store,
            executor=runtime.executor,
            waiting_max=limits.waiting_max,
            batch_max=limits.commit_requests_max,
            on_changed=self._changed,
            on_loaded=self._loaded_anew,
        )
        self.heard = Liveliness(
            groups=Liveness(timeout_s=limits.broker_timeout_ms / 1000),
            nodes=Liveness(timeout_s=limits.node_timeout_ms / 1000),
        )
        self._wait_for_all()
        self.clients = SeenClients(self.registry, limits)
        self.telling = ControlsTelling(self.registry, store_uuid=lambda: self.store.uuid)
        self.handlers = Handlers(
            registry=self.registry,
            committing=self.committing,
            heard=self.heard,
            timestamps=self.timestamps,
            clock=runtime.clock,
            routing=config.routing,
            limits=limits,
            is_open=config.is_open,
            note_client=self.clients.note,
            credentials=self.credentials,
            telling=self.telling,
        )
        self.pushing = Pushing(
            answers=self.handlers.answers,
            online_state=self.handlers.online_state,
            timestamp=self.handlers.timestamp,
            gather_s=config.push.gather_ms / 1000,
            retry_s=config.push.retry_ms / 1000,
            unsent_bytes_max=config.listener.unsent_bytes_pause,
            subscriptions_max=config.push.subscriptions_max,
            per_connection_max=config.push.subscriptions_per_connection_max,
        )
        self.handlers.pushing = self.pushing
        self.audit = AuditKeeping(
            config.audit, clock=runtime.clock, reading=self.administration, commit=self._commit
        )

    def _load(self) -> tuple[Store, Registry]:
        store = self._open_store()
        try:
            return store, Registry(store.load())
        except BaseException:
            store.close()
            raise

    def _wait_for_all(self) -> None:
        """Count every known name as heard now: a restart must not time anything out."""
        now = trio.current_time()
        self.heard.groups.start(
            (name for name in watched(self.registry) if name not in self._silent), now
        )
        self.heard.nodes.start(self.registry.nodes, now)

    def _changed(self, changes: Sequence[Change]) -> None:
        """Push what follows from changes that are stored."""
        self.clients.stored(changes)
        if any(isinstance(change, SetLimit | UnsetLimit) for change in changes):
            self._put_limits_in_force()
        if any(isinstance(change, SaveControls) for change in changes):
            self.telling.changed()
        for change in changes:
            if isinstance(change, RaiseTimestamp):
                self.timestamps.raise_ceiling(change.timestamp_ms)
            elif isinstance(change, SaveBrokerGroup) and change.group.is_watched:
                # It may be an operator who made it: then it has a time-out to register.
                self.heard.groups.start([change.group.name], trio.current_time())
            elif isinstance(change, RemoveBrokerGroup):
                self.heard.groups.forget(change.group.name)
                self._silent.pop(change.group.name, None)
        routing = [change for change in changes if not isinstance(change, _ROUTES_NOBODY)]
        # New subjects have their routes stored, and old ones removed, by the hundred: only theirs
        # are looked at.
        subjects = [
            change.route.name
            for change in routing
            if isinstance(change, SaveRoute | RemoveRoute) and not change.route.is_prefix
        ]
        if len(subjects) < len(routing):
            self.pushing.changed()
        elif subjects:
            self.pushing.changed(subjects)

    def _loaded_anew(self) -> None:
        self.timestamps.raise_ceiling(self.registry.timestamp_ms)
        self._put_limits_in_force()
        self._wait_for_all()
        self.telling.loaded_anew()
        self.pushing.changed()

    def _put_limits_in_force(self) -> None:
        """Apply the stored limits."""
        limits = limits_in_force(self.config.registration, self.registry.limits)
        if limits != self.limits:
            self.limits = limits
            self.handlers.set_limits(limits)
            self.clients.set_limits(limits)

    # -- tasks -------------------------------------------------------------------------------

    async def watch_silence(self) -> None:
        """Time out groups of silent masters, and answer overdue requests."""
        stall_s = self.config.registration.stall_ms_max / 1000
        looked_at = trio.current_time()
        while True:
            await trio.sleep(self.look_s)
            now = trio.current_time()
            missed = now - looked_at - self.look_s
            looked_at = now
            if missed > stall_s:
                # What was sent to us meanwhile is still unread.
                self.stalls += 1
                _log.warning("this process was suspended", seconds=round(missed, 1))
                self.heard.groups.forgive(missed, now)
                self.heard.nodes.forgive(missed, now)
            self._silent |= dict.fromkeys(self.heard.groups.take_silent(now))
            self.heard.nodes.take_silent(now)
            self._tell_silent()
            self.handlers.answer_overdue(now)

    def _tell_silent(self) -> None:
        if self.committing.is_stale:
            return
        silent, self._silent = self._silent, {}
        for name in silent:
            _log.warning("a broker group timed out", group=name)
            self.handlers.group_is_silent(name, partial(self._silent.__setitem__, name, None))

    async def keep_timestamps(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Keep the stored bound of timestamps ahead of the clock; starts when there is one."""
        while True:
            wanted = self.timestamps.wanted(self.runtime.clock.now_ms())
            if wanted is not None:
                await self._commit("timestamps", partial(_raised, wanted))
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED
            await trio.sleep(self.look_s)

    async def keep_clients(self) -> None:
        """Store which clients were seen, and forget those not seen for long."""
        forget_at = trio.current_time() + _FORGET_S
        while True:
            await trio.sleep(self.look_s)
            if self.clients.gathered:
                await self._commit("clients", self.clients.plan_store)
            if trio.current_time() >= forget_at:
                forget_at = trio.current_time() + _FORGET_S
                await self._forget_clients()
                await self._forget_groups()

    async def _forget_clients(self) -> None:
        since_ms = self.runtime.clock.now_ms() - self.config.registration.client_keep_ms
        keys = list(self.registry.clients)
        for start in range(0, len(keys), _FORGET_SLICE):
            plan = partial(self.clients.plan_forget, keys[start : start + _FORGET_SLICE], since_ms)
            if plan() and not await self._commit("clients", plan):
                return
            await trio.lowlevel.checkpoint()

    async def _forget_groups(self) -> None:
        try:
            await self.administration.forget_groups(self.config.registration.group_keep_ms)
        except MetaServerError as error:
            _log.warning("silent groups were not removed yet", reason=str(error))

    async def keep_secret(self) -> None:
        """Reload the secret file when it changes, until cancelled; ends at once without one."""
        while self.secret.is_set:
            await trio.sleep(self.config.registration.secret_look_ms / 1000)
            await self._read_secret()

    async def _read_secret(self) -> None:
        if not self.secret.is_set:
            return
        if not await self.runtime.executor.run(_READING_LANE, self.secret.read):
            return
        if self.secret.fault:
            _log.error(
                "the secret file cannot be used; no delay server can register",
                reason=self.secret.fault,
            )
        else:
            _log.info("secret file loaded", secrets=len(self.secret.secrets))

    async def _commit(self, key: str, plan: Callable[[], Sequence[Change]]) -> bool:
        """Store changes; return whether they are stored."""
        ended = trio.Event()
        failed: list[MetaServerError] = []

        def done(error: MetaServerError | None) -> None:
            if error is not None:
                failed.append(error)
            ended.set()

        try:
            self.committing.submit(Intent(keys=(key,), plan=plan, done=done))
        except MetaServerError:
            return False
        await ended.wait()
        return not failed

    # -- stop --------------------------------------------------------------------------------

    def stop(self) -> float:
        """Answer what was asked, then end; return by when (trio time) that is to be."""
        self.stopping = True
        assert self.listener is not None
        self.listener.stop()
        return trio.current_time() + self.config.node.stop_ms_max / 1000

    # -- what can be seen --------------------------------------------------------------------

    @staticmethod
    def now() -> float:
        """Return the time in which silence is measured, in seconds."""
        return trio.current_time()

    def advertised(self, asked: Address | None) -> str:
        """Return the address of the listener as others reach it; `asked` is where HTTP was asked.

        QMQ's clients split it at the colon.
        """
        settings = self.config.listener
        if settings.advertised:
            return settings.advertised
        assert self.listener is not None
        host, port = self.listener.address
        if host in {"0.0.0.0", "::"} and asked is not None:  # noqa: S104 (a comparison)
            host = asked[0]
        return format_address((host, port))


def secret_of(config: MetaServerConfig) -> SharedSecret:
    """Return the secret of the settings, unread."""
    path = config.registration.secret_file
    return SharedSecret(Path(path) if path else None)


def _raised(timestamp_ms: int) -> Sequence[Change]:
    return (RaiseTimestamp(timestamp_ms),)


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
            nursery.start_soon(server.committing.run)
            await nursery.start(server.keep_timestamps)
            # Tell who is connected, note who is, notice who is not.
            nursery.start_soon(server.pushing.run)
            nursery.start_soon(server.telling.run)
            nursery.start_soon(server.keep_clients)
            nursery.start_soon(server.audit.run)
            nursery.start_soon(server.administration.keep_tokens)
            nursery.start_soon(server.keep_secret)
            nursery.start_soon(server.watch_silence)
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


def run(config: MetaServerConfig) -> None:
    """Run a meta server as a process: real clock, files and sockets, until SIGTERM.

    The data directory is there already. Raises ConfigError if others could administer it.
    """
    tokens = Tokens(Path(config.admin.token_file) if config.admin.token_file else None)
    tokens.read()
    check_exposure(config.exposures, tokens)
    secret_of(config).check("registration.secret_file")
    warn_of_exposure(config)
    # Made before the loop runs: it takes tens of milliseconds.
    document_json()
    page()
    # The loop must not wait long for a thread that loads or stores: 5 ms is the default.
    sys.setswitchinterval(0.0005)
    trio.run(_run_process, _within_file_limit(config))


def _within_file_limit(config: MetaServerConfig) -> MetaServerConfig:
    """Allow as many open files as the system lets us; take fewer connections if that is too few."""
    wanted = config.listener.connections_max + config.http.connections_max + _OTHER_FILES
    limit = allow_open_files(wanted)
    if limit >= wanted:
        return config
    connections = max(config.listener.connections_max - (wanted - limit), 1)
    _log.warning(
        "the limit of open files is too low for the settings; raise it (ulimit -n)",
        limit=limit,
        needed=wanted,
        connections_max=connections,
    )
    return msgspec.structs.replace(
        config, listener=dataclasses.replace(config.listener, connections_max=connections)
    )


async def _run_process(config: MetaServerConfig) -> None:
    runtime = system_runtime()
    settings = config.store.settings(config.node.data_dir)

    def open_it() -> Store:
        return open_store(settings, now_ms=runtime.clock.now_ms(), chance=runtime.chance)

    server = MetaServer(config, runtime, open_it)
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            partial(stop_on_signals, stop, nursery.cancel_scope, is_ready=server.ready.is_set)
        )
        http = "none"
        if config.http.address:
            http = await nursery.start(serve_http, server, config.http)
        nursery.start_soon(_announce, server, http)
        await serve(server, stop)
        nursery.cancel_scope.cancel()


async def _announce(server: MetaServer, http: str) -> None:
    await server.ready.wait()
    settle_memory()
    assert server.listener is not None
    listen = format_address(server.listener.address)
    sys.stdout.write(f"ready listen={listen} http={http}\n")
    sys.stdout.flush()
