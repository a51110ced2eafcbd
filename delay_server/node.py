"""The parts of a node in any role: its open data directory, and the tasks that maintain it.

A node is opened, then keeps its registration, checkpoints, disk and directory, and waits until it
is the master of its group; a `Mastership` does the rest. Where it loses its role the directory
stays open. What the mastership had in memory is dropped, the start is counted as any other (its
incarnation), and what is in the log and was not applied is applied when a role is known again.
"""

import contextlib
import dataclasses
import random
import shlex
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from uuid import UUID

import structlog
import trio

from delay_protocol.meta.requests import BrokerState
from delay_protocol.nodes.controls import Controls
from delay_protocol.nodes.registration import NodeRegister
from delay_protocol.wire.hello import Hello
from delay_server.accepting.commits import MESSAGE_WORKER
from delay_server.accepting.disk_budget import DiskBudget
from delay_server.clock.pace import Pacer
from delay_server.controls.controls_store import Audit, AuditEntry, ControlsStore
from delay_server.controls.meta_sync import ControlsSync
from delay_server.filing.checkpoints import SCHEDULE_WORKER, Checkpoints
from delay_server.filing.filer import Filer
from delay_server.filing.schedule_access import ScheduleAccess
from delay_server.membership.registration import Registration
from delay_server.sending.outlet import CONTROLS_WORKER
from delay_server.settings.config import DelayServerConfig, secret_of
from delay_transport.http.metric_families import installed_version
from delay_transport.seams.outbox import Wakeup
from delay_transport.seams.runtime import Runtime
from replication.core.commit_point import CommitPoint
from storage.batch.batches import Damage
from storage.disk.disk import Disk
from storage.disk.errors import StorageFullError
from storage.node.store import RecoverySummary, Store

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_DISK_WORKER = "disk"
_SECRETS_WORKER = "secrets"
SECRET_KEY = "meta.secret_file"  # noqa: S105 (the name of a setting)
_DISK_SHORT_SHARE = 1 / 4
"""Of the floor: with less available beyond it the node deletes what is only old…"""
_DISK_ROOMY_SHARE = 1 / 2
"""… until so much is."""
_DISK_SMALL_FACTOR = 2
"""Times the floor: a smaller file system is hardly worth it."""
_DURABLE_END_S = 0.01
"""Half of the 20 ms within which the durable end is to be durable itself."""
_FACTS_END_S = 1.0
"""The same while there are commits of facts alone."""
_DAMAGES_KEPT = 100
_PLACES_KEPT = 10_000
"""Damaged places that are known again when they are looked at again; beyond, each look counts."""


class Damages:
    """Damaged bytes that were met since the process began, each place once."""

    def __init__(self, data_dir: str) -> None:
        self._data_dir = data_dir
        self._places: set[tuple[str, int]] = set()
        self.first: list[Damage] = []
        """The first of them."""
        self.count = 0

    def note(self, damage: Damage) -> None:
        """Count and log damage; once, however often it is met."""
        place = (damage.path, damage.position)
        if place in self._places:
            return
        if len(self._places) < _PLACES_KEPT:
            self._places.add(place)
        self.count += 1
        if len(self.first) < _DAMAGES_KEPT:
            self.first.append(damage)
            data = shlex.quote(self._data_dir)
            _log.error(
                "damaged bytes",
                path=damage.path,
                position=damage.position,
                size=damage.size,
                reason=damage.reason,
                verify=f"delaywheel log verify {data}",
                salvage=f"delaywheel log salvage {data} --out salvaged",
            )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What a node asks of the process that it is in."""

    duty_changed: Callable[[], None]
    """Is called when something has changed that the node's duty follows from."""
    broker_state: Callable[[], BrokerState | None]
    """Returns how clients should see the group; None: nothing is to be said."""
    address: str
    """Where clients find the node; empty without a meta server."""
    http_address: Callable[[], str]
    """Returns where people and metrics find it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """How often a node looks at what others may change; in seconds."""

    disk_s: float = 1.0
    """At free disk, while messages come or are refused because there is too little."""
    disk_idle_s: float = 60.0
    """At free disk, while nothing is committed: others write there, too."""
    place_s: float = 1.0
    """Whether the data directory is where it was opened."""


class Node:
    """One opening of a data directory, from its recovery until it is closed."""

    def __init__(
        self,
        config: DelayServerConfig,
        runtime: Runtime,
        disk: Disk,
        *,
        pacer: Pacer,
        damages: Damages,
        outside: Outside,
        intervals: Intervals,
    ) -> None:
        """Not open yet: `open` is the first to be called, `close` the last."""
        self.config = config
        """From `open` on fitted to the file system."""
        self._runtime = runtime
        self._disk = disk
        self._pacer = pacer
        self._damages = damages
        self._outside = outside
        self._intervals = intervals
        self.registration: Registration | None = None
        """With the meta server; None where there is none."""
        self.controls_sync: ControlsSync | None = None
        """The controls of the meta server, likewise."""
        self.taking_controls = trio.Lock()
        """Held while controls are taken that a meta server has told, and while a mastership that
        goes by them is made."""
        self.take_controls: Callable[[Controls, AuditEntry], Awaitable[None]] | None = None
        """Set by a mastership: makes controls durable and has them hold."""
        self.flush: Callable[[], Awaitable[None]] | None = None
        """Set by a mastership: makes the last outcomes durable when its tasks have ended."""
        self._appended = Wakeup()
        self._told = Wakeup()
        self._has_told = False
        """Whether somebody was told of a commit since the durable end was made durable last."""
        self._disk_checked = Wakeup()
        self._appends = 0
        self.disk_is_full = False
        """Whether free disk is below its floor."""
        # What follows stands once it is open.
        self.store: Store
        self.recovery: RecoverySummary
        self.recovery_seconds: float
        self.commit_point: CommitPoint
        self.controls: ControlsStore
        self.checkpoints: Checkpoints
        self.access: ScheduleAccess
        self.filer: Filer
        self.budget: DiskBudget

    # -- open and close ----------------------------------------------------------------------

    async def open(self) -> None:
        """Open the data directory and recover."""
        began = trio.current_time()
        total, self.store, self.recovery, self.controls = await self._runtime.executor.run(
            SCHEDULE_WORKER, self._open_store
        )
        self.recovery_seconds = trio.current_time() - began
        self.commit_point = CommitPoint(
            durable=self.store.message_log.next_sequence,
            # What the checkpoint covers was committed before it was written.
            committed=self.store.checkpoint.last_known + 1,
            is_sole=not self.config.has_meta,
        )
        self._pacer.recall(self.store.clock_known)
        self._fit_to(total)
        self.checkpoints = Checkpoints(
            self.store,
            self.config.checkpoint_limits(),
            executor=self._runtime.executor,
            pacer=self._pacer,
        )
        self.access = ScheduleAccess(self._runtime.executor)
        self.filer = Filer(
            store=self.store,
            limits=self.config.filing_limits(),
            checkpoints=self.checkpoints,
            access=self.access,
            pacer=self._pacer,
        )
        self.budget = DiskBudget(
            self._disk,
            provision=self.store.settings.provision,
            floor_bytes=self.config.disk_floor_bytes,
            owed_bytes=lambda: self.store.owed_bytes(
                self.filer.backlog_rows, self.filer.backlog_bytes
            ),
        )
        self._tell_of_recovery()
        if self.config.has_meta:
            self.registration = self._make_registration(self._outside.address)

    async def start_again(self) -> None:
        """Be as after a start, once the tasks of a mastership that lost its role have ended."""
        self.take_controls = self.flush = None
        self.filer.forget()
        self.commit_point.is_sole = False
        with self._telling_where_space_is_missing():
            await self._runtime.executor.run(SCHEDULE_WORKER, self.store.start_again)
        if self.config.has_meta:
            self.registration = self._make_registration(self._outside.address)

    def close(self) -> None:
        """Let go of the directory; nothing of this node runs any more."""
        self.store.close()

    def _open_store(self) -> tuple[int, Store, RecoverySummary, ControlsStore]:
        """Open the data directory with what its file system can take; return its size, too."""
        _, total = self._disk.free_bytes()
        config = self.config.fitted_to(total)
        settings = dataclasses.replace(config.store_settings(), provision=config.provision(total))
        now_ms = self._runtime.clock.now_ms()
        with self._telling_where_space_is_missing():
            store, recovery = Store.open(
                self._disk,
                settings,
                chance=self.own_chance(),
                now_ms=now_ms,
                on_damage=self._damages.note,
            )
        try:
            if not config.has_meta:
                # Nobody else has a say in what is committed.
                with self._telling_where_space_is_missing():
                    store.apply_tail(store.message_log.next_sequence, now_ms=now_ms)
            admin = config.admin
            audit = Audit(
                self._disk,
                file_bytes_max=admin.audit_file_bytes_max,
                files_max=admin.audit_files_max,
                on_damage=self._damages.note,
            )
            # Nothing needs it, so nobody else would say that it is damaged.
            audit.look(0)
            controls = ControlsStore(
                self._disk,
                log_uuid=store.identity.log_uuid,
                audit=audit,
                on_damage=self._damages.note,
            )
        except BaseException:
            store.close()
            raise
        return total, store, recovery, controls

    @contextlib.contextmanager
    def _telling_where_space_is_missing(self) -> Iterator[None]:
        try:
            yield
        except StorageFullError as error:
            raise StorageFullError(
                f"no disk space to start in {self.config.node.data_dir}: {error}; free some space "
                "on its file system, and start again"
            ) from error

    def _fit_to(self, total_bytes: int) -> None:
        """Lower the limits to what a file system of this size can take, and say so."""
        asked_for, self.config = self.config, self.config.fitted_to(total_bytes)
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
                "the file system is small for the settings; lower ones apply until the next start",
                total=total_bytes,
                **lowered,
            )
        floor = self.config.disk_floor_bytes(total_bytes)
        if total_bytes < floor * _DISK_SMALL_FACTOR:
            _log.warning(
                "the file system is too small for the disk floor: few messages can be accepted; "
                "give it more space, or lower storage.disk_free_bytes_min",
                total=total_bytes,
                floor=floor,
            )

    def _tell_of_recovery(self) -> None:
        summary = self.recovery
        for cut in summary.message_log.cut:
            _log.warning(
                "cut an unfinished write off the message_log; no message in it was acknowledged",
                path=cut.path,
                position=cut.position,
                size=cut.size,
                reason=cut.reason,
            )
        for path in summary.quarantined:
            _log.error("moved a file to quarantine: it may contain lost records", path=path)
        identity = self.store.identity
        if identity.incarnation == 1:
            _log.warning(
                "the data directory was empty: a new node starts, without messages",
                cluster=identity.cluster,
                group=identity.group,
                node_id=identity.node_id,
                log_uuid=str(identity.log_uuid),
            )
        if not self.config.has_meta:
            self._tell_of_tail()
        _log.info(
            "recovered",
            files_deleted=len(summary.orphans),
            files_quarantined=len(summary.quarantined),
            damaged=len(summary.damages),
            seconds=round(self.recovery_seconds, 3),
        )

    def _tell_of_tail(self) -> None:
        summary = self.recovery
        if summary.replayed > 1 and not summary.had_checkpoint:
            _log.warning(
                "there was no checkpoint: recovery replayed every record of the message_log"
            )
        _log.info(
            "applied the log beyond the checkpoint",
            records=summary.replayed,
            facts=summary.facts,
            facts_not_committed=summary.known,
            seconds=round(self.recovery_seconds, 3),
        )

    def own_chance(self) -> random.Random:
        """Return a Random of its own for one concern."""
        return random.Random(self._runtime.chance.getrandbits(64))  # noqa: S311 (not for secrets)

    def hello(self, epoch: int) -> Hello:
        """Return who this is, for the other side of a delivery."""
        identity = self.store.identity
        return Hello(
            group=identity.group,
            epoch=epoch,
            node_id=identity.node_id,
            log_uuid=str(identity.log_uuid),
        )

    # -- its part in the group ---------------------------------------------------------------

    def _make_registration(self, address: str) -> Registration:
        identity, log, version = self.store.identity, self.store.message_log, installed_version()
        boot_id = UUID(int=self._runtime.chance.getrandbits(128), version=4)
        secret = secret_of(self.config)

        async def read_secret() -> bytes | None:
            if not secret.is_set:
                return None
            await self._runtime.executor.run(_SECRETS_WORKER, partial(secret.check, SECRET_KEY))
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
                http_address=self._outside.http_address(),
                version=version,
            )

        self.controls_sync = ControlsSync(
            self.controls, take=self._take_controls, clock=self._runtime.clock
        )
        return Registration(
            self.config.meta,
            identity=identity,
            log_epoch=lambda: log.last_epoch,
            node=node,
            broker_state=self._outside.broker_state,
            on_changed=self._outside.duty_changed,
            read_secret=read_secret,
            controls_sync=self.controls_sync,
            network=self._runtime.network,
            clock=self._runtime.clock,
            chance=self.own_chance(),
        )

    async def take_epoch(self) -> None:
        """Wait until the node may deliver, apply what is committed, and make its epoch durable.

        Where there is no meta server it may at once, and has no epoch.
        """
        if self.registration is None:
            return
        epoch = await self.registration.take_epoch()
        # It is the only one of its group that has to have what is committed.
        self.commit_point.is_sole = True
        began = trio.current_time()
        await self._runtime.executor.run(SCHEDULE_WORKER, self._begin_epoch, epoch)
        self.commit_point.durable_to(self.store.message_log.next_sequence)
        self.recovery_seconds += trio.current_time() - began
        self._tell_of_tail()
        _log.info(
            "this node is the master in a new epoch",
            epoch=epoch,
            sequence=self.store.schedule.last_filed,
        )
        await self.registration.until_epoch_known()
        assert self.controls_sync is not None
        with trio.move_on_after(self.config.meta.controls_seconds_max):
            await self.controls_sync.until_heard()

    def _begin_epoch(self, epoch: int) -> None:
        """Apply what is durable, which makes it committed, and begin an epoch behind it."""
        now_ms = self._runtime.clock.now_ms()
        with self._telling_where_space_is_missing():
            self.store.apply_tail(self.store.message_log.next_sequence, now_ms=now_ms)
            self.store.start_epoch(epoch, now_ms=now_ms)

    async def _take_controls(self, told: Controls, entry: AuditEntry) -> None:
        """Store controls of a meta server; apply them now, or when the mastership starts."""
        async with self.taking_controls:
            if self.take_controls is not None:
                await self.take_controls(told, entry)
                return
            with trio.CancelScope(shield=True):
                await self._runtime.executor.run(CONTROLS_WORKER, self.controls.take, told, entry)

    # -- the log and the disk ----------------------------------------------------------------

    async def keep(self, nursery: trio.Nursery) -> None:
        """Look after log, checkpoints and disk until cancelled; starts with a look at the disk."""
        nursery.start_soon(self.checkpoints.run)
        await nursery.start(self._watch_disk)
        nursery.start_soon(self._watch_place)
        nursery.start_soon(self._sync_durable_end)

    def appended(self) -> None:
        """See to the disk after an append."""
        self._appends += 1
        self._disk_checked.wake()
        self._note_disk()

    def committed(self, has_facts_alone: bool) -> None:  # noqa: FBT001
        """See to the log and the disk after a commit."""
        self._appended.wake()
        if not has_facts_alone:
            self._has_told = True
            self._told.wake()
        self.appended()

    async def _watch_disk(
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
            appends = self._appends
            await self._runtime.executor.run(_DISK_WORKER, budget.look)
            self._note_disk()
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED
            helped = False
            if self.disk_is_full or budget.available < budget.floor * _DISK_SHORT_SHARE:
                wanted = max(int(budget.floor * _DISK_ROOMY_SHARE), budget.refused_bytes)
                helped = await self.checkpoints.make_room(budget.floor + budget.owed + wanted)
            await trio.sleep(self._intervals.disk_s)
            if not self.disk_is_full and not helped and self._appends == appends:
                # Nothing is written by us before the next commit; others are looked after slowly.
                with trio.move_on_after(self._intervals.disk_idle_s):
                    await self._disk_checked.sleep()

    def _note_disk(self) -> None:
        """Have messages refused, or taken again, by what the budget says."""
        budget = self.budget
        if budget.full == self.disk_is_full:
            return
        self.disk_is_full = budget.full
        log = _log.error if budget.full else _log.warning
        log(
            "free disk is below its floor; messages are refused"
            if budget.full
            else "free disk is above its floor again; messages are accepted",
            free=budget.free,
            owed=budget.owed,
            floor=budget.floor,
        )
        self._outside.duty_changed()

    async def _watch_place(self) -> None:
        """End the server once its directory, lock or log is not at its path any more.

        A start would not find what is acknowledged from then on. Raises FatalDiskError.
        """
        log = self.store.message_log
        while True:
            await self._runtime.executor.run(MESSAGE_WORKER, log.require_in_place)
            await trio.sleep(self._intervals.place_s)

    async def _sync_durable_end(self) -> None:
        """Make the durable end durable soon after a commit, and before the log rests.

        Of facts nobody is told that they are durable, so it is not urgent for them.
        """
        log = self.store.message_log
        while True:
            if log.durable_end_synced:
                await self._appended.sleep()
            if not self._has_told:
                with trio.move_on_after(_FACTS_END_S):
                    await self._told.sleep()
            await trio.sleep(_DURABLE_END_S)
            self._has_told = False
            await self._runtime.executor.run(MESSAGE_WORKER, log.sync_durable_end)
