"""One running delay server: its listener, its node, and a mastership while it has one.

Read `serve` from top to bottom to see what a delay server is made of. Order of start: the listener
(it holds requests), the data directory with its recovery, the node's role and epoch where a meta
server says them, then everything behind the listener, and at last admission. Order of stop:
admission, commits, dispatch, deliveries in flight, facts, filing, a last checkpoint. A node that
loses its role ends its mastership at once, and waits for a role with its directory open.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import structlog
import trio

from delay_protocol.meta.requests import BrokerState
from delay_protocol.wire.hello import encode_hello
from delay_server.accepting.admission import Admission
from delay_server.accepting.ingest import Ingest
from delay_server.admin.looks import Looks
from delay_server.admin.parts import Administered, Observed, Parts
from delay_server.changing.changer import Changer
from delay_server.changing.requests import Changes
from delay_server.clock.clock_guard import ClockGuard
from delay_server.clock.pace import Pacer
from delay_server.damages import Damages
from delay_server.duty import Admits, Duty, Situation, duty_of
from delay_server.mastership import Mastership
from delay_server.membership.registration import Registration
from delay_server.node import Node, Outside
from delay_server.receiving.receivers import Receivers
from delay_server.replicas import Slaves
from delay_server.sending.lateness import Lateness
from delay_server.settings.config import DelayServerConfig, secret_of
from delay_server.settings.errors import FencedError, MembershipError
from delay_server.upkeep import Intervals
from delay_transport.connections.listener import Server, serve_connections
from delay_transport.http.access import HttpAccess
from delay_transport.http.credentials import Credentials
from delay_transport.http.tokens import Tokens
from delay_transport.seams.errors import AddressError
from delay_transport.seams.runtime import Address, Runtime, format_address, parse_address
from replication.leading import Leading
from storage.disk.disk import Disk

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

HAND_OVER_S_MAX: Final = 3.0
"""Seconds for which a stop waits for another master; a handover takes two at the most."""
_STOP_LOOK_S: Final = 0.1
"""Seconds between two looks of a stop whether anybody is left who could be the master."""
_LEFT_S: Final = 0.2
"""Seconds for which a master that has handed over and stops still answers."""
_FLUSH_S = 2.0
"""How long the last outcomes of a mastership that was ended may take to become durable."""


class DelayServer:
    """One running delay server, and what can be seen of it. Run by `serve`."""

    def __init__(
        self,
        config: DelayServerConfig,
        runtime: Runtime,
        disk: Disk,
        *,
        intervals: Intervals = Intervals(),  # noqa: B008 (frozen)
    ) -> None:
        self.config = config
        """While a node is open: fitted to its file system."""
        self.runtime = runtime
        self.disk = disk
        self._intervals = intervals
        self.started_ms = runtime.clock.now_ms()
        self._node: Node | None = None
        self._mastership: Mastership | None = None
        self._takes_messages = False
        self.has_started = False
        """Whether it was a master once."""
        self.ready = trio.Event()
        """It has accepted and delivered; its duty says whether it does now."""
        self.stopping = False
        self.leaving = False
        """True once it is to stop: while it is the master it hands over first."""
        self._asked_to_stop = trio.Event()
        self._stop_seconds = config.node.stop_ms_max / 1000
        """How long a stop may wait for what is under way."""
        self.fenced: MembershipError | None = None
        """Why the last mastership ended; None once the next one has begun."""
        self.demotions = 0
        """Masterships that ended because the node lost its role."""
        self.http_address = ""
        """host:port of the HTTP port for people and Prometheus."""
        self.damages = Damages(str(config.node.data_dir))
        self.lateness = Lateness(runtime.clock.boot_ms)
        self._looks = Looks(runtime.executor)
        self._secret = secret_of(config)
        # Before anybody who has to prove it can connect.
        self._secret.read()
        self.credentials = Credentials(
            self._secret, is_needed=self._secret.is_set, chance=runtime.chance
        )
        """What slaves and receivers have to prove."""
        self.http_access = HttpAccess(
            Tokens(config.admin.token_file), own_address=config.http.address
        )
        """The access to the administration."""
        self.pacer = Pacer(
            runtime.clock,
            ClockGuard(step_forward_ms_max=config.clock.step_forward_ms_max),
            on_change=self._clock_trust_changed,
        )
        self._admission = Admission(config.admission)
        self.ingest = Ingest(
            admission=self._admission,
            limits=config.admission,
            clock=runtime.clock,
            trusted_ms=self.pacer.trusted_ms,
            why_not=lambda: "; ".join(self.duty().why),
        )
        self.receivers = Receivers(
            mastership=lambda: self._mastership,
            duty=self.duty,
            now_ms=self.pacer.trusted_ms,
            credentials=self.credentials,
        )
        self.ingest.receivers = self.receivers
        self.changes = Changes(
            duty=self.duty,
            now_ms=runtime.clock.now_ms,
            horizon_ms=lambda: self.ingest.limits.horizon_ms,
        )
        self.ingest.changes = self.changes
        self.ingest.slaves = Slaves(self.leading, self.credentials)
        self.listener: Server | None = None
        self._term = trio.CancelScope()

    # -- what there is now -------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether a data directory is open and recovered."""
        return self._node is not None

    @property
    def node(self) -> Node:
        """The node; there is one while `is_open`."""
        assert self._node is not None, "no data directory is open"
        return self._node

    @property
    def is_master(self) -> bool:
        """Whether there is a mastership."""
        return self._mastership is not None

    @property
    def master(self) -> Mastership:
        """What takes and sends; there is one while `is_master`."""
        assert self._mastership is not None, "this node is not the master of its group"
        return self._mastership

    @property
    def registration(self) -> Registration | None:
        """With the meta server; None where there is none, or no node yet."""
        return None if self._node is None else self._node.registration

    @property
    def connections(self) -> int:
        """Open connections of clients."""
        return self.listener.open_connections if self.listener is not None else 0

    def listening_at(self) -> Address:
        """Return where the listener is; there is one from the start of `serve` on."""
        assert self.listener is not None
        return self.listener.address

    def observe(self) -> Observed:
        """Return how the server is at this moment."""
        return Observed(
            now_ms=self.runtime.clock.now_ms(),
            started_ms=self.started_ms,
            duty=self.duty(),
            ingest=self.ingest,
            listener=self.listener,
            node=self._node,
            parts=None if self._mastership is None else self._parts(self._mastership),
        )

    def _parts(self, mastership: Mastership) -> Parts:
        return Parts(
            node=self.node,
            master=mastership,
            pacer=self.pacer,
            lateness=self.lateness,
            duty=self.duty,
            looks=self._looks,
            changes=self.changes,
        )

    def administered(self) -> Administered:
        """Return what administrators get."""
        return Administered(
            config=self.config,
            access=self.http_access,
            runtime=self.runtime,
            observe=self.observe,
            begin_stop=self.begin_stop,
            accept_clock=self.pacer.accept,
        )

    # -- duty --------------------------------------------------------------------------------

    def duty(self) -> Duty:
        """Return what the node may do now."""
        registration = self.registration
        node = self._node
        replica = None if node is None else node.replica
        leading = None if node is None or self._mastership is None else node.leading
        clock_fault = "" if registration is None else registration.clock_fault
        held = clock_fault if leading is not None else ""
        return duty_of(
            Situation(
                is_master=self._mastership is not None and self.fenced is None,
                is_recovered=self._takes_messages,
                has_served=self.ready.is_set(),
                is_stopping=self.stopping,
                fenced="" if self.fenced is None else str(self.fenced),
                not_accepting="" if registration is None else registration.reason,
                closed="" if registration is None else registration.closed,
                disk_is_full=self._node is not None and self._node.upkeep.disk_is_full,
                clock_reason=self.pacer.reason or held,
                master_elsewhere="" if replica is None else replica.master_elsewhere,
                copy_fault="" if replica is None else clock_fault or replica.copy_fault,
                appends_wait="" if leading is None else held or leading.why_not_append,
                replicas_wait="" if leading is None else leading.why_not_send,
                outcomes_wait=""
                if self._mastership is None
                else self._mastership.fact_recorder.behind,
            )
        )

    def follow_duty(self) -> None:
        """Have everybody go by what the node may do now; called whenever that may have changed."""
        duty = self.duty()
        self.ingest.follow(duty)
        if self._mastership is not None:
            self._mastership.committer.look_again()
            sender = self._mastership.sender
            if sender.is_paused == duty.sends:
                (sender.resume if duty.sends else sender.pause)()
        if duty.admits is not Admits.HOLD:
            self.ready.set()
        if (registration := self.registration) is not None:
            registration.state_changed()

    def _clock_trust_changed(self, trusted: bool) -> None:  # noqa: ARG002, FBT001
        if self._node is not None:
            self._node.checkpoints.write_soon()
        self.follow_duty()

    def _broker_state(self) -> BrokerState | None:
        return self.duty().announces

    # -- node and mastership -----------------------------------------------------------------

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Node]:
        """Open the data directory, recover, and keep it open during the block."""
        node = Node(
            self.config,
            self.runtime,
            self.disk,
            pacer=self.pacer,
            damages=self.damages,
            outside=Outside(
                duty_changed=self.follow_duty,
                broker_state=self._broker_state,
                secret=self._secret,
                lose=self.lose,
                address=self._address_told() if self.config.has_meta else "",
                http_address=lambda: self.http_address,
                is_stopping=lambda: self.leaving,
            ),
            intervals=self._intervals,
        )
        await node.open()
        try:
            self._node, self.config = node, node.config
            self.ingest.limits = node.config.admission
            yield node
        finally:
            self._node = None
            await node.close()

    @asynccontextmanager
    async def term_of(self, node: Node) -> AsyncIterator[trio.Nursery]:
        """Have tasks run until the node loses its role, or stops; what they had in memory goes."""
        hello = node.hello(node.store.message_log.last_epoch)
        self.ingest.hello = lambda: encode_hello(
            msgspec.structs.replace(hello, now_ms=self.pacer.trusted_ms())
        )
        try:
            async with trio.open_nursery() as term:
                self._term = term.cancel_scope
                yield term
        finally:
            if self.fenced is not None and node.flush is not None:
                with trio.move_on_after(_FLUSH_S, shield=True):
                    await node.flush()
            if self.fenced is not None and self.leaving:
                # Producers are told who the master is now.
                with trio.CancelScope(shield=True):
                    await trio.sleep(_LEFT_S)

    @asynccontextmanager
    async def master_of(self, node: Node) -> AsyncIterator[Mastership]:
        """Be the master during the block: admit what comes, once its tasks have begun."""
        async with node.taking_controls:
            mastership = Mastership(
                node,
                self.runtime,
                self.disk,
                pacer=self.pacer,
                damages=self.damages,
                lateness=self.lateness,
                admission=self._admission,
                duty_changed=self.follow_duty,
            )
            self._mastership, self.fenced = mastership, None
        try:
            if mastership.targets.new_subjects is not None:
                self.ingest.puts_off = mastership.targets.new_subjects.refusal
            self.follow_duty()
            yield mastership
        finally:
            self._mastership, self._takes_messages = None, False
            self.receivers.drop()
            self.ingest.commit_by(None)
            self.ingest.puts_off = None
            self.follow_duty()

    def take_messages(self) -> None:
        """Admit messages from now on, as far as the node's duty allows it."""
        self._takes_messages = True
        self.follow_duty()

    async def stay_registered(self, node: Node) -> None:
        """Keep the registration up; end the term of a node that loses its role, in this step."""
        assert node.registration is not None
        try:
            await node.registration.run()
        except FencedError as error:
            self.lose(error)
        except MembershipError as error:
            # Whoever is refused would be refused again.
            self._end_role(error)
            raise

    def lose(self, error: FencedError) -> None:
        """End the term of a node that is the master no more, in this step."""
        if not self._term.cancel_called:
            self._end_role(error)
            self.demotions += 1
        self._term.cancel()

    def _end_role(self, error: MembershipError) -> None:
        # Another master is what a handover is for; to be refused for good ends the process.
        log = _log.warning if isinstance(error, FencedError) else _log.error
        log("this node lost its role; it stopped accepting and delivering", reason=str(error))
        self.fenced, self._takes_messages = error, False
        if self._mastership is not None:
            self._mastership.fence()
        self.ingest.drop()
        self.changes.drop()
        self.receivers.drop()
        self.follow_duty()

    def _address_told(self) -> str:
        """Return the address that clients get for this node."""
        address = self.listening_at()
        try:
            return self.config.meta.told(address)
        except ValueError as error:
            # A name that stands for an address which clients cannot use.
            where = format_address(address)
            raise AddressError(text=where, reason=str(error)) from error

    def leading(self) -> Leading | None:
        """Return who serves slaves; None while this node is no master."""
        return None if self._node is None else self._node.leading

    # -- stop --------------------------------------------------------------------------------

    def begin_stop(self, seconds: float) -> None:
        """Stop as at SIGTERM, with so much time for what is under way."""
        self._stop_seconds = seconds
        self._asked_to_stop.set()

    async def until_asked(self, stop: trio.Event) -> None:
        """Wait until the server is to stop."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_after, self._asked_to_stop, nursery.cancel_scope)
            await stop.wait()
            nursery.cancel_scope.cancel()

    async def end_without_role(self, stop: trio.Event, term: trio.CancelScope) -> None:
        """End the term of a node that waits for its role when the server is to stop."""
        await self.until_asked(stop)
        if self._mastership is None:
            self.stopping = True
            term.cancel()

    async def hand_over_first(self) -> None:
        """Wait until another node in sync is the master, for a while, if there is one.

        The meta server learns that this node stops, and asks it to hand over. With the role the
        term ends, and the process with it.
        """
        self.leaving = True
        leading, registration = self.leading(), self.registration
        if leading is None or registration is None or registration.meta is None:
            return
        registration.renew()
        with trio.move_on_after(min(HAND_OVER_S_MAX, self._stop_seconds)):
            # In a group that is stopped as a whole nobody is left who could take over.
            while leading.follow and len(leading.master.record.in_sync) > 1:  # noqa: ASYNC110 (seldom)
                await trio.sleep(_STOP_LOOK_S)

    async def stop(self) -> None:
        """Bring everything under way to an end, in order; waits as long as a stop may."""
        self.stopping = True
        deadline = trio.current_time() + self._stop_seconds
        if self.registration is not None:
            # First, so that clients go elsewhere while what they still send is taken.
            with trio.move_on_at(deadline):
                await self.registration.until_offline()
        self.follow_duty()
        with trio.move_on_at(deadline):
            await self.ingest.stop()
        with trio.move_on_at(deadline):
            await self.changes.stop()
        with trio.move_on_at(deadline):
            # While they can still say what they are done with.
            await self.receivers.stop()
        # Slaves are served until all is committed.
        await self.master.stop(deadline)
        assert self.listener is not None
        self.listener.stop()


async def serve(
    server: DelayServer,
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a delay server until `stop` is set; starts when it accepts and delivers.

    Where a meta server says what the node is, it does that as the master of its group only, and
    holds requests until then. Raises what made serving impossible: StorageError, TransportError,
    NodeRefusedError, or a bug.
    """
    async with trio.open_nursery() as nursery:
        # Producers may connect; their requests are held until admission is open.
        server.listener = await nursery.start(
            serve_connections,
            server.runtime.network,
            parse_address(server.config.listener.address),
            server.ingest,
            server.config.listener,
        )
        nursery.start_soon(server.ingest.run_expiry)
        while not (server.stopping or server.leaving):
            async with server.opened() as node:
                await _serve_term(server, node, stop, task_status)
        nursery.cancel_scope.cancel()


async def _serve_term(
    server: DelayServer, node: Node, stop: trio.Event, task_status: trio.TaskStatus[None]
) -> None:
    """Do what a node does until it is stopped, loses its role, or is to be opened anew."""
    async with server.term_of(node) as term:
        # What every node does.
        if node.registration is not None:
            term.start_soon(server.stay_registered, node)
            term.start_soon(server.end_without_role, stop, term.cancel_scope)
        await node.keep(term)
        if not await node.take_epoch():
            term.cancel_scope.cancel()
            return
        # What the master does.
        async with server.master_of(node) as mastership:
            await mastership.begin(term)
            changer = Changer(mastership, node, now_ms=server.runtime.clock.now_ms)
            term.start_soon(changer.run)
            term.start_soon(server.changes.run, changer)
            await mastership.read_window()
            server.ingest.commit_by(mastership.committer.submit, mastership.sift)
            server.take_messages()
            if not server.has_started:
                server.has_started = True
                task_status.started()
            await server.until_asked(stop)
            await server.hand_over_first()
            await server.stop()
            term.cancel_scope.cancel()


async def _cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
