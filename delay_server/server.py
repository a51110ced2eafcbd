"""The composition root of a delay server process: opens, recovers, starts everything, stops it.

Read `serve` from top to bottom to see what a delay server is made of. Order of start: the listener
(it holds requests), the data directory with its recovery, the node's role and epoch where a meta
server says them, then everything behind the listener, and at last admission. Order of stop:
admission, commits, dispatch, deliveries in flight, facts, filing, a last checkpoint.
"""

import ctypes
import dataclasses
import random
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from uuid import UUID

import msgspec
import numpy as np
import structlog
import trio

from delay_protocol.basics.codes import ItemCode
from delay_protocol.meta.requests import BrokerState, ClientType
from delay_protocol.meta.session import MetaSession
from delay_protocol.nodes.controls import Controls
from delay_protocol.nodes.registration import NodeRegister
from delay_protocol.wire.hello import Hello, encode_hello
from delay_server.accepting.admission import Admission
from delay_server.accepting.commits import MESSAGE_LANE, Committing
from delay_server.accepting.disk_budget import DiskBudget
from delay_server.accepting.ingest import Ingest
from delay_server.accepting.intake import Intake
from delay_server.admin.http import serve_http
from delay_server.admin.metrics import FSYNC_BUCKETS_S, LATENESS_BUCKETS_S, Distribution
from delay_server.admin.status import failing_checks
from delay_server.clock.clock_guard import ClockGuard
from delay_server.clock.pace import Pacer, TrustedClock
from delay_server.controls.controls_store import Audit, AuditEntry, ControlsStore
from delay_server.controls.meta_sync import Following
from delay_server.dead.dead_letters import DeadLetters
from delay_server.dead.recorder import Burying
from delay_server.filing.filer import SCHEDULE_LANE, Filing
from delay_server.holding.out_of_wheel import OutOfWheel
from delay_server.holding.read_retries import Rereading
from delay_server.holding.wheel import Wheel
from delay_server.lanes.lanes import Lanes
from delay_server.lanes.new_subjects import NewSubjects
from delay_server.lanes.rate_limits import Meters
from delay_server.lanes.routes import SOURCE as META_SERVER
from delay_server.lanes.routes import SubjectRoutes
from delay_server.lanes.subject_rules import Gates
from delay_server.membership.registration import Registration
from delay_server.sending.backlog_reader import Draining
from delay_server.sending.dispatch import CrossingOff, Dispatch
from delay_server.sending.outlet import CONTROLS_LANE, Operator
from delay_server.settings.config import DelayServerConfig
from delay_server.settings.errors import MembershipError
from delay_transport.connections.listener import Server, serve_connections
from delay_transport.http.access import check_exposure
from delay_transport.http.metric_families import installed_version
from delay_transport.http.shared_secret import SharedSecret
from delay_transport.http.tokens import Tokens
from delay_transport.meta.address import MetaLocator
from delay_transport.meta.routes import MetaRoutes
from delay_transport.seams.errors import AddressError
from delay_transport.seams.outbox import Wakeup
from delay_transport.seams.process import allow_open_files, settle_memory, stop_on_signals
from delay_transport.seams.runtime import Runtime, format_address, parse_address, system_runtime
from sender.groups.group_status import GroupState
from sender.health.circuit import CircuitState
from sender.outcomes.dead import Refusal
from sender.outcomes.outcomes import Outcome as SenderOutcome
from sender.sender import Sender
from storage.batch.batches import Damage
from storage.batch.entries import Entries
from storage.batch.facts import FactBlock, Outcome
from storage.disk.disk import DirectoryDisk, Disk, make_private_directory
from storage.disk.errors import StorageFullError
from storage.disk.spans import MINUTE_MS
from storage.node.store import RecoverySummary, Store
from storage.readers.item_reader import ItemReader

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_DISK_LANE = "disk"
_SECRETS_LANE = "secrets"
_SECRET_KEY = "meta.secret_file"  # noqa: S105 (the name of a setting)
_TOKENS_LANE = "tokens"
_DISK_SHORT_SHARE = 1 / 4
"""Of the floor: with less available beyond it the server deletes what is only old…"""
_DISK_ROOMY_SHARE = 1 / 2
"""… until so much is."""
_DISK_SMALL_FACTOR = 2
"""Times the floor: a smaller file system is hardly worth it."""
_DURABLE_END_S = 0.01
"""Half of the 20 ms within which the durable end is to be durable itself."""
_DAMAGES_KEPT = 100
_PLACES_KEPT = 10_000
"""Damaged places that are known again when they are looked at again; beyond, each look counts."""
_UNDELIVERABLE_KEPT = 10_000
_ROUNDS = 5
"""How often all subjects' use is looked at while one may go unused."""
_STOP_FACTS_S = 0.5
"""At the end, what facts get to become durable, even when all other time is used up."""


class DelayServer:
    """One running delay server: the parts, wired, and what can be seen of them.

    Made by `serve`. `store` stands once `recovery` is set, what depends on it once `is_wired`.
    """

    disk_check_s = 1.0
    """How often free disk is looked at while messages come, or are refused for want of it."""
    disk_check_idle_s = 60.0
    """How often free disk is looked at while nothing is committed: others write there, too."""

    place_check_s = 1.0
    """How often it is looked whether the data directory is where it was opened."""

    def __init__(  # noqa: PLR0915 (a list of parts)
        self, config: DelayServerConfig, runtime: Runtime, disk: Disk
    ) -> None:
        self.config = config
        self.runtime = runtime
        self.disk = disk
        self.started_ms = runtime.clock.now_ms()
        self.is_wired = False
        self._takes_messages = False
        self.ready = trio.Event()
        """It accepts and delivers; `failing_checks` says if that was interrupted since."""
        self.stopping = False
        self.ended_by: MembershipError | None = None
        """Why it must not serve any more."""
        self._ended = trio.Event()
        self._asked_to_stop = trio.Event()
        self.http_address = ""
        """Where people and metrics find it: host:port, as they are told."""
        self.registration: Registration | None = None
        """With the meta server, once the store stands; None where there is none."""
        self.damages: list[Damage] = []
        self.damage_count = 0
        self._damaged_places: set[tuple[str, int]] = set()
        self.undeliverable_sequences: set[int] = set()
        """Those of the first of them; beyond, each look counts."""
        self.undeliverable = 0
        """Messages whose bytes are damaged; they wait on disk."""
        self.undeliverable_by_subject: Counter[bytes] = Counter()
        """How many of them each subject has, of the first subjects with any."""
        self.commit_seconds = Distribution(FSYNC_BUCKETS_S)
        self.lateness_seconds = Distribution(LATENESS_BUCKETS_S)
        self.lateness_max_seconds = 0.0
        self.following: Following | None = None
        """The controls of the meta server, as `registration`."""
        self.taking_controls = trio.Lock()
        """Held while controls are taken that a meta server has told, and while all is wired."""
        self.tokens = Tokens(Path(config.admin.token_file) if config.admin.token_file else None)
        """Who may administer."""
        self._weights: dict[str, float] = {}
        """Of groups, as an operator says."""
        self.stop_seconds = config.node.stop_ms_max / 1000
        """How long a stop may wait for what is under way."""
        self._committed = Wakeup()
        self._disk_checked = Wakeup()
        self._dispatching = trio.CancelScope()
        self.pacer = Pacer(
            runtime.clock,
            ClockGuard(step_forward_ms_max=config.clock.step_forward_ms_max),
            on_change=self._clock_trust_changed,
        )
        self.ingest = Ingest(
            admission=Admission(config.admission.limits()),
            limits=config.admission.ingest_limits(),
            clock=runtime.clock,
            trusted_ms=self.pacer.trusted_ms,
            commit=self._commit,
            why_not=lambda: "; ".join(failing_checks(self)),
        )
        self.wheel = Wheel(slot_ms=config.wheel.slot_ms, now_ms=self.started_ms)
        self.lanes: Lanes
        """Stands, as what is below, when the data directory is open."""
        self.routes: SubjectRoutes | None = None
        """None where every message goes to any of the brokers in the settings."""
        self.new_subjects: NewSubjects | None = None
        """Likewise."""
        self.meta_routes: MetaRoutes | None = None
        self.listener: Server | None = None
        self.recovery: RecoverySummary | None = None
        self.recovery_seconds = 0.0
        # The rest stands when the data directory is open.
        self.store: Store
        self.controls: ControlsStore
        self.gates: Gates
        self.meters: Meters
        self.operator: Operator
        self.budget: DiskBudget
        self.filing: Filing
        self.committing: Committing
        self.dispatch: Dispatch
        self.draining: Draining
        self.crossing_off: CrossingOff
        self.sender: Sender
        self.burying: Burying
        self.rereading: Rereading
        self.dead_letters: DeadLetters

    async def _commit(self, intake: Intake) -> bool:
        began = trio.current_time()
        kept = await self.committing.commit(intake)
        self.commit_seconds.observe(trio.current_time() - began)
        self._committed.wake()
        self._disk_checked.wake()
        self._note_disk()
        return kept

    def _clock_trust_changed(self, trusted: bool) -> None:  # noqa: FBT001
        if self.is_wired:
            self.filing.clock_trust_changed()
        if self.is_wired and self.ended_by is None:
            (self.sender.resume if trusted else self.sender.pause)()

    # -- start -------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the data directory and recover."""
        told = self._address_told() if self.config.has_meta else ""
        began = trio.current_time()
        total, self.store, self.recovery, self.controls = await self.runtime.executor.run(
            SCHEDULE_LANE, self._open_store
        )
        self.pacer.recall(self.store.clock_known)
        self._fit_to(total)
        self.ingest.hello = encode_hello(self._hello(self.store.message_log.last_epoch))
        self.recovery_seconds = trio.current_time() - began
        self._tell_of_recovery()
        if told:
            self.registration = self._make_registration(told)

    def wire(self) -> None:
        """Make everything that stands on the data directory."""
        config, runtime = self.config, self.runtime
        self.crossing_off = CrossingOff(
            journal=self.store.journal,
            executor=runtime.executor,
            pacer=self.pacer,
            epoch=lambda: self.store.schedule.epoch,
            note_facts=self._note_facts,
            sync_ms_max=config.storage.fact_sync_ms_max,
        )
        reader = ItemReader(self.disk, self._damaged, may_try_again=self._may_try_again)
        if config.has_routes:
            self.routes = self._make_routes()
            self.new_subjects = NewSubjects(self.routes, self.store.schedule.subjects.ids)
            self.ingest.puts_off = self.new_subjects.refusal
        self.gates = Gates(
            name_of=self.store.schedule.subjects.names.__getitem__,
            routes=self.routes,
            groups=tuple(config.brokers),
            buffer_s=config.controls.buffer_seconds,
        )
        self.lanes = Lanes(config.lane_limits(), self.gates, unrouted_max=config.unrouted_max)
        self.gates.attach(self.lanes)
        self.meters = Meters(burst_s=config.controls.burst_seconds)
        self.sender = self._make_sender(reader)
        limits = config.filing_limits()
        self.rereading = Rereading(
            offer=self._offer_again,
            tries=limits.read_tries,
            wait_ms=limits.read_retry_ms,
        )
        out_of_wheel = OutOfWheel(
            count=lambda: self._held_beside_wheel,
            held=lambda: chain(
                self.sender.held(),
                self.meters.parts(),
                self.burying.held(),
                self.rereading.held(),
            ),
            unnoted=self.crossing_off.unnoted,
        )
        self.dispatch = Dispatch(
            wheel=self.wheel,
            pacer=self.pacer,
            lanes=self.lanes,
            offer=self._offer,
            # What is being read for a lane has its place already.
            room=lambda: max(self._room - self.draining.reserved, 0),
            is_hungry=self.sender.is_hungry,
            on_popped=self._popped,
        )
        self.filing = Filing(
            store=self.store,
            wheel=self.wheel,
            limits=config.filing_limits(),
            executor=runtime.executor,
            pacer=self.pacer,
            lanes=self.lanes,
            out_of_wheel=out_of_wheel,
            on_wheel_grown=self.dispatch.wheel_has_grown,
            append_floor=self._append_floor,
            on_facts=self._recorded,
        )
        self.draining = Draining(
            schedule=self.store.schedule,
            filing=self.filing,
            lanes=self.lanes,
            wheel=self.wheel,
            out_of_wheel=out_of_wheel,
            pacer=self.pacer,
            offer=self._offer,
            room=lambda: self._room,
            on_unreserved=self.dispatch.room_has_grown,
        )
        self.budget = DiskBudget(
            self.disk,
            provision=self.store.settings.provision,
            floor_bytes=config.disk_floor_bytes,
            owed_bytes=lambda: self.store.owed_bytes(
                self.filing.backlog_rows, self.filing.backlog_bytes
            ),
        )
        self.committing = Committing(
            message_log=self.store.message_log,
            filing=self.filing,
            executor=runtime.executor,
            pacer=self.pacer,
            floor_minute=max(
                self.store.schedule.floor_minute, self.store.message_log.last_floor_minute
            ),
            budget=self.budget,
        )
        self._wire_dead_letters(reader)
        self.operator = Operator(
            self.controls,
            gates=self.gates,
            lanes=self.lanes,
            meters=self.meters,
            sender=self.sender,
            filing=self.filing,
            executor=runtime.executor,
            set_weights=self._set_weights,
            on_room=self._room_has_grown,
            on_barred=self._barred,
        )
        self.lanes.on_changed = self.operator.lanes_changed
        self.is_wired = True

    def _wire_dead_letters(self, reader: ItemReader) -> None:
        """Make what records messages that brokers refuse for good, and what is done about them."""
        self.burying = Burying(
            committing=self.committing,
            reader=reader,
            subject_name=self.store.schedule.subjects.names.__getitem__,
            on_damaged=self._undeliverable,
            on_buried=self._left_sender,
            on_changed=self._record_appended,
            reason_bytes_max=self.config.dead.reason_bytes_max,
        )
        self.dead_letters = DeadLetters(
            store=self.store,
            committing=self.committing,
            filing=self.filing,
            executor=self.runtime.executor,
            config=self.config.dead,
            on_damage=self._damaged,
            on_appended=self._record_appended,
            untold=self.store.untold,
        )
        self._bound_dead_letters()

    @property
    def has_room(self) -> bool:
        """Whether more may be held for delivery."""
        return self._room > self.draining.reserved

    @property
    def _room(self) -> int:
        """How much more should be given to the sender.

        What waits for its rate counts as held, and so does what the sender has given up, or could
        not read.
        """
        return max(self.sender.room - self._beside_sender, 0)

    @property
    def _held_beside_wheel(self) -> int:
        """Messages that have left the wheel and have no outcome."""
        return self.sender.unsent().total + self._beside_sender

    @property
    def _beside_sender(self) -> int:
        return self.meters.count + self.burying.count + self.rereading.count

    def _offer(self, entries: Entries, *, lane: int, late: bool = False) -> None:
        self.operator.offer(entries, lane=lane, late=late)

    def _offer_again(self, entries: Entries) -> None:
        self.operator.offer_again(entries)

    def _set_weights(self, weights: Mapping[str, float]) -> None:
        """Have groups weigh as an operator says."""
        if weights != self._weights:
            self._weights = dict(weights)
            self._set_groups()

    def _set_groups(self) -> None:
        """Deliver to the groups of the settings, or to those that any route leads to."""
        routes = self.routes
        groups = self.config.broker_groups() if routes is None else routes.targets()
        self.sender.set_groups(
            dataclasses.replace(group, weight=self._weights.get(group.name, group.weight))
            for group in groups
        )

    def _fit_to(self, total_bytes: int) -> None:
        """Lower the limits to what a file system of this size can take, and say so."""
        asked_for, self.config = self.config, self.config.fitted_to(total_bytes)
        self.ingest.limits = self.config.admission.ingest_limits()
        lowered = {
            field.name: getattr(after, field.name)
            for before, after in (
                (asked_for.storage, self.config.storage),
                (asked_for.admission, self.config.admission),
            )
            for field in dataclasses.fields(before)
            if getattr(before, field.name) != getattr(after, field.name)
        }
        if lowered:
            _log.warning(
                "the file system is small for the settings; until the next start lower ones hold",
                total=total_bytes,
                **lowered,
            )
        floor = self.config.disk_floor_bytes(total_bytes)
        if total_bytes < floor * _DISK_SMALL_FACTOR:
            _log.warning(
                "the file system is too small for its floor of free disk: hardly any messages can "
                "be taken; give it more space, or lower storage.disk_free_bytes_min",
                total=total_bytes,
                floor=floor,
            )

    def _tell_of_recovery(self) -> None:
        summary = self.recovery
        assert summary is not None
        for cut in summary.message_log.cut:
            _log.warning(
                "an unfinished write was cut off the message_log; nothing in it was acknowledged",
                path=cut.path,
                position=cut.position,
                size=cut.size,
                reason=cut.reason,
            )
        for path in summary.quarantined:
            _log.error(
                "a file was put aside: records that are lost may be in it",
                path=path,
            )
        identity = self.store.identity
        if identity.incarnation == 1:
            _log.warning(
                "there was nothing in the data directory: a new node begins, without messages",
                cluster=identity.cluster,
                group=identity.group,
                node_id=identity.node_id,
                log_uuid=str(identity.log_uuid),
            )
        if summary.replayed > 1 and not summary.had_checkpoint:
            _log.warning("there is no checkpoint: everything was derived from the first record on")
        _log.info(
            "recovered",
            replayed=summary.replayed,
            facts=summary.facts,
            files_deleted=len(summary.orphans),
            files_quarantined=len(summary.quarantined),
            damaged=len(summary.damages),
            seconds=round(self.recovery_seconds, 3),
        )

    def _open_store(self) -> tuple[int, Store, RecoverySummary, ControlsStore]:
        """Open the data directory with what its file system can take; return its size, too."""
        _, total = self.disk.free_bytes()
        config = self.config.fitted_to(total)
        settings = dataclasses.replace(config.store_settings(), provision=config.provision(total))
        try:
            store, recovery = Store.open(
                self.disk,
                settings,
                chance=self._own_chance(),
                now_ms=self.runtime.clock.now_ms(),
                on_damage=self._damaged,
            )
        except StorageFullError as error:
            raise StorageFullError(
                f"there is no space to start in {config.node.data_dir}: {error}; free some on its "
                "file system, and start again"
            ) from error
        try:
            admin = config.admin
            audit = Audit(
                self.disk,
                file_bytes_max=admin.audit_file_bytes_max,
                files_max=admin.audit_files_max,
                on_damage=self._damaged,
            )
            # Nothing needs it, so nobody else would say that it is damaged.
            audit.look(0)
            controls = ControlsStore(
                self.disk, log_uuid=store.identity.log_uuid, audit=audit, on_damage=self._damaged
            )
        except BaseException:
            store.close()
            raise
        return total, store, recovery, controls

    def _make_sender(self, reader: ItemReader) -> Sender:
        names = self.store.schedule.subjects.names
        return Sender(
            self.config.broker_groups(),
            hello=self._hello(self.store.schedule.epoch),
            config=self.config.sender_config(),
            clock=TrustedClock(self.runtime.clock, self.pacer),
            network=self.runtime.network,
            chance=self._own_chance(),
            read_items=reader.read,
            subject_name=names.__getitem__,
            on_outcome=self._settled,
            on_damaged=self._undeliverable,
            on_dead=self._given_up,
            routes=self.gates,
        )

    def _hello(self, epoch: int) -> Hello:
        """Return who this is, for the other side of a delivery."""
        identity = self.store.identity
        return Hello(
            group=identity.group,
            epoch=epoch,
            node_id=identity.node_id,
            log_uuid=str(identity.log_uuid),
        )

    def _make_routes(self) -> SubjectRoutes:
        """Have a meta server asked for the route of each subject, as a producer would."""
        config = self.config
        session = MetaSession(
            client_type=ClientType.PRODUCER,
            # As QMQ's delay server asks; whoever it is, it gets the same answer.
            client_id="",
            config=config.routes.session_config(),
            chance=self._own_chance(),
        )
        self.meta_routes = MetaRoutes(
            session,
            locator=MetaLocator(self.runtime.network, config.meta.http_addresses(), config.meta),
            network=self.runtime.network,
            chance=self._own_chance(),
            on_changed=self._route_changed,
        )
        return SubjectRoutes(
            session,
            now=trio.current_time,
            name_of=self.store.schedule.subjects.names.__getitem__,
            on_wanted=self.meta_routes.wake,
        )

    def _route_changed(self, subject: str) -> None:
        """Send a subject's messages where a meta server says that they go from now on."""
        assert self.routes is not None
        self.routes.changed(subject)
        self._follow_routes()

    def _follow_routes(self) -> None:
        assert self.routes is not None
        if self.routes.targets_changed:
            self._set_groups()
        if self.lanes.anyone_waits:
            self.draining.wake()

    async def run_rounds(self) -> None:
        """Forget, now and then, the routes of subjects that are not in use.

        And look after messages of subjects that were too many to be parked: once there is room for
        them, and if there never is once for each time that others may go unused.
        """
        rounds = 0
        while True:
            await trio.sleep(self.config.routes.unused_ms / 1000 / _ROUNDS)
            if self.routes is not None:
                for _ in self.routes.round():
                    self._follow_routes()
                    await trio.lowlevel.checkpoint()
            rounds += 1
            if self.lanes.forgotten and (self.lanes.has_room_for_unrouted or not rounds % _ROUNDS):
                self.lanes.loads_anew()
                await self.filing.reload()

    def _own_chance(self) -> random.Random:
        """Return a Random of its own for one concern."""
        return random.Random(self.runtime.chance.getrandbits(64))  # noqa: S311 (not for secrets)

    async def _append_floor(self, wanted_minute: int) -> None:
        await self.committing.append_floor(wanted_minute)

    async def _note_facts(self, facts: FactBlock, last_number: int) -> None:
        await self.filing.note_facts(facts, last_number)
        self.dead_letters.noted(facts)
        self._bound_dead_letters()

    # -- dead letters ------------------------------------------------------------------------

    def _given_up(
        self, entries: Entries, refusals: Sequence[Refusal], tries: Sequence[int]
    ) -> None:
        self.burying.give_up(entries, refusals, tries)
        self._bound_dead_letters()

    def _barred(self, entries: Entries) -> None:
        """Make dead letters of messages whose subjects the meta server refuses for good."""
        code, at_ms = int(ItemCode.SUBJECT_NOT_ASSIGNED), self.runtime.clock.now_ms()
        refusal = Refusal(META_SERVER, code, at_ms, 1)
        self._given_up(entries, [refusal] * len(entries), [0] * len(entries))

    def _recorded(self, facts: FactBlock) -> None:
        """Take what records that were filed, and are durable, say about older messages."""
        self.crossing_off.add(facts)
        self.burying.filed(facts)
        self.dead_letters.look_again()

    def _record_appended(self) -> None:
        """See to the log and the disk as after any other append."""
        self._committed.wake()
        self._disk_checked.wake()
        self._note_disk()

    def _bound_dead_letters(self) -> None:
        count = self.dead_letters.pending + self.burying.count
        self.sender.gives_up = count < self.config.dead.pending_max
        self.lanes.takes_barred = self.sender.gives_up

    async def tell_untold(self) -> None:
        """Make durable what a crash kept from becoming so, before anything is sent."""
        untold, self.store.untold = self.store.untold, None
        if untold is not None:
            _log.info("facts of records are told that a crash cut off", facts=len(untold))
            self.crossing_off.add(untold)
            await self.crossing_off.stop()

    def _popped(self) -> None:
        """Look after what had to wait for the wheel to shrink, and for what had to leave it."""
        self.sender.hand_out()
        self.filing.wheel_has_shrunk()
        if self.lanes.anyone_waits:
            self.draining.wake()

    # -- its part in the group ---------------------------------------------------------------

    def _address_told(self) -> str:
        """Return where clients are told to find the node."""
        assert self.listener is not None
        try:
            return self.config.meta.told(self.listener.address)
        except ValueError as error:
            # A name that stands for an address which clients cannot use.
            where = format_address(self.listener.address)
            raise AddressError(text=where, reason=str(error)) from error

    def _make_registration(self, address: str) -> Registration:
        identity, log, version = self.store.identity, self.store.message_log, installed_version()
        boot_id = UUID(int=self.runtime.chance.getrandbits(128), version=4)
        secret = secret_of(self.config)

        async def read_secret() -> bytes | None:
            if not secret.is_set:
                return None
            await self.runtime.executor.run(_SECRETS_LANE, partial(secret.check, _SECRET_KEY))
            return secret.secrets[0]

        def node() -> NodeRegister:
            return NodeRegister(
                cluster=identity.cluster,
                group=identity.group,
                node_id=identity.node_id,
                log_uuid=identity.log_uuid,
                storage_uuid=identity.storage_uuid,
                incarnation=identity.incarnation,
                boot_id=boot_id,
                last_sequence=log.next_sequence - 1,
                last_epoch=log.last_epoch,
                address=address,
                sync_address="",
                http_address=self.http_address,
                version=version,
            )

        self.following = Following(
            self.controls, take=self._take_controls, clock=self.runtime.clock
        )
        return Registration(
            self.config.meta,
            identity=identity,
            log_epoch=lambda: log.last_epoch,
            node=node,
            broker_state=self._broker_state,
            on_changed=self._standing_changed,
            read_secret=read_secret,
            following=self.following,
            network=self.runtime.network,
            clock=self.runtime.clock,
            chance=self._own_chance(),
        )

    async def take_epoch(self) -> None:
        """Wait until the node may deliver, and make its epoch durable; nothing is wired yet."""
        assert self.registration is not None
        epoch = await self.registration.take_epoch()
        now_ms = self.runtime.clock.now_ms()
        await self.runtime.executor.run(
            SCHEDULE_LANE, partial(self.store.start_epoch, epoch, now_ms=now_ms)
        )
        _log.info("an epoch has begun", epoch=epoch, sequence=self.store.schedule.last_filed)
        await self.registration.until_epoch_known()
        assert self.following is not None
        with trio.move_on_after(self.config.meta.controls_seconds_max):
            await self.following.until_heard()

    async def _take_controls(self, told: Controls, entry: AuditEntry) -> None:
        """Make durable what a meta server has told, and have it hold, from the start or now."""
        async with self.taking_controls:
            if self.is_wired:
                await self.operator.take(told, entry)
                return
            with trio.CancelScope(shield=True):
                await self.runtime.executor.run(CONTROLS_LANE, self.controls.take, told, entry)

    async def stay_registered(self) -> None:
        """Keep the registration up; stop serving at once when it says so."""
        assert self.registration is not None
        try:
            await self.registration.run()
        except MembershipError as error:
            if not self.is_wired:
                raise
            _log.error("this node accepts and delivers nothing more", reason=str(error))
            self.ended_by = error
            self.ingest.fence()
            self.sender.pause()
            self.dead_letters.is_closed = True
            self.burying.close()
            self._ended.set()

    def take_messages(self) -> None:
        """Accept messages, unless the group's record forbids that; called when that may change."""
        self._takes_messages = True
        self.ingest.retired = self.is_retired
        if self.registration is not None and not self.registration.accepts:
            self.ingest.hold()
        else:
            self.ingest.serve()
            self.ready.set()
        self.tell_state()

    def _standing_changed(self) -> None:
        if self._takes_messages and not self.stopping and self.ended_by is None:
            self.take_messages()

    def _broker_state(self) -> BrokerState | None:
        """Return how clients should see the group; None while nothing is to be said."""
        if not self.ready.is_set() or self.is_retired:
            return None
        if not self.ingest.is_serving:
            return BrokerState.NRW
        return BrokerState.R if self.ingest.disk_full else BrokerState.RW

    @property
    def is_open(self) -> bool:
        """Whether all stands that takes and delivers, whatever else may forbid it."""
        return self._takes_messages

    @property
    def is_retired(self) -> bool:
        """Whether the group takes no more messages, and the node delivers what it has."""
        standing = None if self.registration is None else self.registration.standing
        return standing is not None and standing.is_retired

    def tell_state(self) -> None:
        """Have clients told how they should see the group now, where a meta server does."""
        if self.registration is not None:
            self.registration.state_changed()

    @property
    def connections(self) -> int:
        """Open connections of clients."""
        return self.listener.open_connections if self.listener is not None else 0

    def begin_stop(self, seconds: float) -> None:
        """Stop as at SIGTERM, with so much time for what is under way."""
        self.stop_seconds = seconds
        self._asked_to_stop.set()

    async def until_over(self, stop: trio.Event) -> None:
        """Wait until `stop` is set, or the node must not serve any more."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_after, self._ended, nursery.cancel_scope)
            nursery.start_soon(_cancel_after, self._asked_to_stop, nursery.cancel_scope)
            await stop.wait()
            nursery.cancel_scope.cancel()

    async def watch_tokens(self) -> None:
        """Read the file of tokens again when it changes, until cancelled."""
        while self.tokens.are_needed:
            await trio.sleep(self.config.admin.token_look_ms / 1000)
            if await self.runtime.executor.run(_TOKENS_LANE, self.tokens.read):
                fault = self.tokens.fault
                log = _log.error if fault else _log.info
                log("the file of tokens was read again", tokens=self.tokens.count, fault=fault)

    # -- what goes wrong ---------------------------------------------------------------------

    def _damaged(self, damage: Damage) -> None:
        place = (damage.path, damage.position)
        if place in self._damaged_places:
            return
        if len(self._damaged_places) < _PLACES_KEPT:
            self._damaged_places.add(place)
        self.damage_count += 1
        if len(self.damages) < _DAMAGES_KEPT:
            self.damages.append(damage)
            data = shlex.quote(str(self.config.node.data_dir))
            _log.error(
                "damaged bytes",
                path=damage.path,
                position=damage.position,
                size=damage.size,
                reason=damage.reason,
                verify=f"delaywheel log verify {data}",
                salvage=f"delaywheel log salvage {data} --out salvaged",
            )

    def _may_try_again(self, sequence: int, path: str, reason: str) -> bool:
        return self.rereading.may_try_again(sequence, path, reason)

    def _undeliverable(self, entries: Entries) -> None:
        """Leave damaged messages on disk: they stay pending until they are salvaged.

        Those that could only not be read are kept, to be tried again.
        """
        entries = self.rereading.keep(entries)
        if len(entries):
            self._count_undeliverable(entries)
            self._left_sender(entries)

    def _count_undeliverable(self, entries: Entries) -> None:
        """Count each once: what waits on disk may be come by again."""
        known = self.undeliverable_sequences
        is_new = [sequence not in known for sequence in entries["sequence"].tolist()]
        new = entries[np.array(is_new, bool)]
        self.undeliverable += len(new)
        room = max(_UNDELIVERABLE_KEPT - len(known), 0)
        known.update(new["sequence"][:room].tolist())
        names = self.store.schedule.subjects.names
        counts = self.undeliverable_by_subject
        for number, count in Counter(new["subject"].tolist()).items():
            if names[number] in counts or len(counts) < _UNDELIVERABLE_KEPT:
                counts[names[number]] += count

    # -- what goes right ---------------------------------------------------------------------

    def _settled(self, entries: Entries, at_ms: int, target: str, outcome: SenderOutcome) -> None:
        self.crossing_off.cross_off(entries, at_ms, target, Outcome(outcome))
        self._left_sender(entries)
        late_s = (at_ms - entries["due_ms"]) / 1000
        self.lateness_seconds.observe_all(late_s)
        self.lateness_max_seconds = max(self.lateness_max_seconds, float(late_s.max()))

    def _left_sender(self, entries: Entries) -> None:
        """Forget what has an outcome; it makes room."""
        self.rereading.forget(entries)
        self.lanes.settled(entries)
        self._room_has_grown()

    def _room_has_grown(self) -> None:
        """Have everybody look who waits for room in the sender, or for less to be held."""
        self.operator.sender_has_room()
        self.dispatch.room_has_grown()
        self.filing.wheel_has_shrunk()
        if self.lanes.anyone_waits:
            self.draining.wake()

    # -- what can be seen --------------------------------------------------------------------

    @property
    def clock_held(self) -> bool:
        """Whether dispatch waits because the clock is not trusted."""
        return bool(self.pacer.reason)

    @property
    def late_now(self) -> int:
        """Messages that are due and have no outcome: those that the sender holds, at the least.

        Where the sender has not got them yet (a held clock, a full wheel) whole minutes that have
        passed are counted instead.
        """
        minute = self.runtime.clock.now_ms() // MINUTE_MS
        segments = list(self.store.schedule.segments.values())
        overdue = sum(segment.pending for segment in segments if segment.key.end <= minute)
        return max(self._held_beside_wheel + self.undeliverable, overdue)

    def sender_numbers(self) -> dict[str, dict[str, int | float | str | None]]:
        """Return what is known of each broker group."""
        return {
            group.name: {
                "address": group.address,
                "source": group.source,
                "state": group.state.value,
                "up": int(group.state is GroupState.UP and group.circuit is CircuitState.CLOSED),
                "circuit": group.circuit.value,
                "circuit_reason": group.circuit_reason,
                "circuit_openings": group.counts.changes[CircuitState.OPEN],
                "weight": group.weight,
                "effective_weight": round(group.effective_weight, 4),
                "slow": int(group.is_slow),
                "answer_seconds": round(group.answer_s, 6),
                "window_requests": group.window_requests,
                "queue_items_max": group.queue_items,
                "refused_lanes": group.refused_lanes,
                "paused": int(group.gate.paused),
                "rate_limit": group.gate.rate_per_s,
                "queued": group.queued,
                "in_flight": group.in_flight,
                "tries": group.counts.requests,
                "delivered": group.counts.delivered,
                "known": group.counts.known,
                "refused": group.counts.refused,
                "retries": group.counts.refused + group.counts.possible_duplicates,
                "possible_duplicates": group.counts.possible_duplicates,
                "failures": group.failures,
                "fenced": int(group.state is GroupState.FENCED),
                "last_end": group.last_end,
            }
            for group in self.sender.status()
        }

    async def run_dispatch(self) -> None:
        """Offer due messages until the server stops."""
        with self._dispatching:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.dispatch.run)
                nursery.start_soon(self.draining.run)
                nursery.start_soon(self.rereading.run)
                nursery.start_soon(self.operator.run)

    async def watch_disk(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Refuse messages while there is no free disk for them; delivery goes on.

        Each commit looks for itself whether there is room for it (`DiskBudget.require`); here it is
        seen what others do to the disk, and when there is room again. A little before it comes to
        that, what is kept for its age only begins to go, so that messages need not be refused for
        want of space that nothing needs. Starts when it has looked for the first time.
        """
        budget = self.budget
        while True:
            commits = self.committing.commits
            await self.runtime.executor.run(_DISK_LANE, budget.look)
            self._note_disk()
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED
            helped = False
            if self.ingest.disk_full or budget.available < budget.floor * _DISK_SHORT_SHARE:
                wanted = max(int(budget.floor * _DISK_ROOMY_SHARE), budget.refused_bytes)
                helped = await self.filing.make_room(budget.floor + budget.owed + wanted)
            await trio.sleep(self.disk_check_s)
            if not self.ingest.disk_full and not helped and self.committing.commits == commits:
                # Nothing is written by us before the next commit; others are looked after slowly.
                with trio.move_on_after(self.disk_check_idle_s):
                    await self._disk_checked.sleep()

    def _note_disk(self) -> None:
        """Have messages refused, or taken again, by what the budget says."""
        budget = self.budget
        if budget.full == self.ingest.disk_full:
            return
        self.ingest.disk_full = budget.full
        log = _log.error if budget.full else _log.warning
        log(
            "free disk is at its floor; messages are refused"
            if budget.full
            else "disk is free again; messages are taken",
            free=budget.free,
            owed=budget.owed,
            floor=budget.floor,
        )
        self.tell_state()

    async def watch_place(self) -> None:
        """End the server once its directory, lock or log is not at its path any more.

        A start would not find what is acknowledged from then on. Raises FatalDiskError.
        """
        log = self.store.message_log
        while True:
            await self.runtime.executor.run(MESSAGE_LANE, log.require_in_place)
            await trio.sleep(self.place_check_s)

    async def sync_durable_end(self) -> None:
        """Make the durable end durable soon after a commit, and before the log rests."""
        log = self.store.message_log
        while True:
            if log.durable_end_synced:
                await self._committed.sleep()
                continue
            await trio.sleep(_DURABLE_END_S)
            await self.runtime.executor.run(MESSAGE_LANE, log.sync_durable_end)

    # -- stop --------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Bring everything under way to an end, in order; waits at most `stop_seconds`."""
        self.stopping = True
        deadline = trio.current_time() + self.stop_seconds
        if self.registration is not None and self.ended_by is None:
            # First, so that clients go elsewhere while what they still send is taken.
            with trio.move_on_at(deadline):
                await self.registration.go_offline()
        with trio.move_on_at(deadline):
            await self.ingest.stop()
        assert self.listener is not None
        self.listener.stop()
        self._dispatching.cancel()
        await self.sender.drain(deadline=deadline)
        with trio.move_on_at(deadline):
            await self.dead_letters.stop()
        with trio.move_on_at(deadline):
            await self.burying.stop()
        unsent = self.sender.unsent()
        if unsent.total:
            _log.warning(
                "due messages are left for the next start; those in flight and those in doubt may "
                "be delivered twice",
                queued=unsent.queued + unsent.early,
                in_flight=unsent.in_flight,
                retrying=unsent.retrying,
                in_doubt=unsent.in_doubt,
            )
        with trio.move_on_at(max(deadline, trio.current_time() + _STOP_FACTS_S)):
            # Only a disk without any space makes this wait; those facts are lost then.
            await self.crossing_off.stop()
        await self.filing.drain()
        with trio.move_on_at(max(deadline, trio.current_time() + _STOP_FACTS_S)):
            # Of what was recorded last; a start would tell them otherwise.
            await self.crossing_off.stop()
        await self.filing.checkpoint()
        await self.runtime.executor.run(MESSAGE_LANE, self.store.message_log.sync_durable_end)


async def serve(
    server: DelayServer,
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a delay server until `stop` is set; starts when it accepts and delivers.

    Where a meta server says what the node is, it does that as the master of its group only, and
    holds requests until then. Raises what made serving impossible: StorageError, TransportError,
    MembershipError, or a bug.
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
        await server.open()
        try:
            if server.registration is not None:
                nursery.start_soon(server.stay_registered)
                await server.take_epoch()
            async with server.taking_controls:
                server.wire()
            async with trio.open_nursery() as inner:
                # Behind the commit: filing, loading, splitting, checkpoints.
                inner.start_soon(server.filing.run_filing)
                inner.start_soon(server.filing.run_checkpoints)
                inner.start_soon(server.crossing_off.run)
                inner.start_soon(server.crossing_off.run_noting)
                # Keep the books of the log and the disk.
                await inner.start(server.watch_disk)
                inner.start_soon(server.watch_place)
                inner.start_soon(server.sync_durable_end)
                # Only now is it known of every message what became of it.
                await server.tell_untold()
                inner.start_soon(server.filing.run_loading)
                inner.start_soon(server.filing.run_collecting)
                # Deliver, and record what cannot be.
                inner.start_soon(server.burying.run)
                inner.start_soon(server.dead_letters.run)
                await inner.start(server.sender.run)
                if server.meta_routes is not None:
                    inner.start_soon(server.meta_routes.run)
                inner.start_soon(server.run_rounds)
                inner.start_soon(server.run_dispatch)
                # Take messages now that everything behind stands.
                inner.start_soon(server.ingest.run_commits)
                server.take_messages()
                task_status.started()
                await server.until_over(stop)
                await server.stop()
                inner.cancel_scope.cancel()
            nursery.cancel_scope.cancel()
        finally:
            server.store.close()
    if server.ended_by is not None:
        raise server.ended_by


def secret_of(config: DelayServerConfig) -> SharedSecret:
    """Return the secret of the settings, unread."""
    path = config.meta.secret_file
    return SharedSecret(Path(path) if path else None)


async def _cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def run(config: DelayServerConfig) -> None:
    """Run a delay server as a process: real clock, files and sockets, until SIGTERM.

    Raises ConfigError if the file of the secret cannot be used.
    """
    secret_of(config).check(_SECRET_KEY)
    # The loop must not wait long for a thread that computes: 5 ms, the default, would be lateness.
    sys.setswitchinterval(0.0005)
    _keep_freed_memory()
    config = _within_file_limit(config)
    trio.run(_run_process, config)


def _within_file_limit(config: DelayServerConfig) -> DelayServerConfig:
    """Allow as many open files as the system lets us; take fewer connections if that is too few."""
    needed = config.listener.connections_max + config.storage.open_files_max + _OTHER_FILES
    limit = allow_open_files(needed)
    if limit >= needed:
        return config
    open_files = min(config.storage.open_files_max, max(limit // 2, 16))
    connections = max(limit - open_files - _OTHER_FILES, 1)
    _log.warning(
        "the limit of open files is too low for the settings; raise it (ulimit -n)",
        limit=limit,
        needed=needed,
        connections_max=connections,
        open_files_max=open_files,
    )
    return msgspec.structs.replace(
        config,
        listener=dataclasses.replace(config.listener, connections_max=connections),
        storage=dataclasses.replace(config.storage, open_files_max=open_files),
    )


_OTHER_FILES = 256
"""Files open at a time beside connections and segments: logs, mappings being made, libraries."""

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


def _keep_freed_memory() -> None:
    """Have glibc's malloc use freed memory again instead of giving it back to the kernel.

    Commits and flushes need buffers of many MiB again and again; faulting their pages in anew costs
    more than copying into them. All threads share one arena, since Python's lock lets one of them
    run at a time anyway. Where there is no glibc nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, 256 << 20)


async def _run_process(config: DelayServerConfig) -> None:
    data = config.node.data_dir
    if warning := make_private_directory(data, group_may_read=config.node.group_may_read):
        _log.warning(warning)
    server = DelayServer(config, system_runtime(), DirectoryDisk(data))
    server.tokens.read()
    if config.http.address:
        check_exposure({"http.address": config.http.address}, server.tokens)
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            partial(stop_on_signals, stop, nursery.cancel_scope, is_ready=lambda: server.is_wired)
        )
        http = "none"
        if config.http.address:
            http = await nursery.start(serve_http, server, config.http)
            server.http_address = config.meta.told_http(parse_address(http))
            nursery.start_soon(server.watch_tokens)
        nursery.start_soon(_announce, server, http)
        await serve(server, stop)
        nursery.cancel_scope.cancel()


async def _announce(server: DelayServer, http: str) -> None:
    await server.ready.wait()
    settle_memory()
    assert server.listener is not None
    listen = format_address(server.listener.address)
    sys.stdout.write(f"ready listen={listen} http={http}\n")
    sys.stdout.flush()
