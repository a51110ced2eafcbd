"""The parts of a node in any role: its open data directory, and the tasks that maintain it.

A node is opened, then keeps its registration, checkpoints, disk and directory, and waits until it
is the master of its group; a `Mastership` does the rest. Where it loses its role the directory
stays open. What the mastership had in memory is dropped, the start is counted as any other (its
incarnation), and what is in the log and was not applied is applied when a role is known again.
"""

import contextlib
import dataclasses
import random
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from uuid import UUID

import msgspec
import structlog
import trio

from delay_protocol.meta.requests import BrokerState
from delay_protocol.nodes.controls import Controls
from delay_protocol.nodes.registration import NodeRegister, Stands, Told
from delay_protocol.wire.hello import Hello
from delay_server.accepting.disk_budget import DiskBudget
from delay_server.clock.pace import Pacer
from delay_server.controls.controls_store import ControlsStore
from delay_server.controls.meta_sync import ControlsSync
from delay_server.controls.rules_file import read_rules
from delay_server.damages import Damages
from delay_server.filing.checkpoints import SCHEDULE_WORKER, Checkpoints
from delay_server.filing.filer import Filer
from delay_server.filing.schedule_access import ScheduleAccess
from delay_server.filing.splitter import Splitter
from delay_server.fitness import DISK_FULL, Condition, why_behind, why_unfit
from delay_server.membership.registration import Registration
from delay_server.replicas import PROMISE_WORKER, Replica, queue_of
from delay_server.scrub import Scrub
from delay_server.sending.outlet import CONTROLS_WORKER
from delay_server.settings.config import DelayServerConfig
from delay_server.settings.errors import FencedError
from delay_server.upkeep import Intervals, Upkeep
from delay_transport.http.metric_families import installed_version
from delay_transport.http.shared_secret import SharedSecret
from delay_transport.seams.errors import ConfigError
from delay_transport.seams.runtime import Runtime
from delay_transport.settings.watched_file import FILES_WORKER, LOOK_S
from replication.commit_queue import CommitQueue
from replication.core.commit_point import CommitPoint
from replication.core.epochs import Epochs
from replication.core.master import Master
from replication.leading import Leading
from replication.questions import Asks
from replication.records import record_of
from replication.snapshots import Snapshots
from storage.disk.disk import Disk
from storage.disk.errors import DamagedError, DataDirectoryError, LogStateError, StorageFullError
from storage.node.store import RecoverySummary, Store, give_up_unopened
from storage.state.checkpoint import Copied
from storage.state.identity import Identity, read_identity
from storage.state.promise_file import Promised, PromiseFile

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_ASIDE_WORKER = "aside"
SECRET_KEY = "meta.secret_file"  # noqa: S105 (the name of a setting)
_ASIDE_LOOK_S = 1.0
"""Seconds between two looks whether what lies aside may go."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What a node asks of the process that it is in."""

    duty_changed: Callable[[], None]
    """Is called when something has changed that the node's duty follows from."""
    broker_state: Callable[[], BrokerState | None]
    """Returns how clients should see the group; None: nothing is to be said."""
    secret: SharedSecret
    """What nodes and meta servers prove to each other."""
    lose: Callable[[FencedError], None]
    """Ends the mastership."""
    address: str
    """Where clients find the node; empty without a meta server."""
    http_address: Callable[[], str]
    """Returns where people and metrics find it."""
    is_stopping: Callable[[], bool]
    """Returns True once the process is to stop."""


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
        self.damages = damages
        self._outside = outside
        self._intervals = intervals
        self.registration: Registration | None = None
        """With the meta server; None where there is none."""
        self.controls_sync: ControlsSync | None = None
        """The controls of the meta server, likewise."""
        self.taking_controls = trio.Lock()
        """Held while controls are taken, and while a mastership that goes by them is made."""
        self.take_controls: Callable[[Controls], Awaitable[None]] | None = None
        """Set by a mastership: makes controls durable and has them hold."""
        self.replica: Replica | None = None
        """Its part in the group; None where there is no meta server."""
        self.scrub: Scrub | None = None
        """Looks through all files, of a replica."""
        self.leading: Leading | None = None
        """Who follows it, while it is the master and may be followed."""
        self.on_committed: Callable[[], None] = lambda: None
        """Set by a mastership: hears that more is committed."""
        self.in_flight: Callable[[], int] = lambda: 0
        """Set by a mastership: returns how many outcomes are awaited, or not durable."""
        self.flush: Callable[[], Awaitable[None]] | None = None
        """Set by a mastership: makes the last outcomes durable when its tasks have ended."""
        self._clock_right_at = trio.current_time()
        """When the meta server did not take its clock for wrong last."""
        self._unfit = ""
        """Why another node should be the master, as it was said last."""
        # What follows stands once it is open.
        self.store: Store
        self.recovery: RecoverySummary
        self.recovery_seconds: float
        self.commit_point: CommitPoint
        self.controls: ControlsStore
        self.queue: CommitQueue
        self.checkpoints: Checkpoints
        self.access: ScheduleAccess
        self.filer: Filer
        self.budget: DiskBudget
        self.upkeep: Upkeep

    # -- open and close ----------------------------------------------------------------------

    async def open(self) -> None:
        """Open the data directory and recover."""
        began = trio.current_time()
        run = self._runtime.executor.run
        try:
            opened = await run(SCHEDULE_WORKER, self._open_store)
        except (DamagedError, LogStateError) as error:
            if not await run(SCHEDULE_WORKER, self._others_have_all):
                raise
            _log.error("the data directory cannot be opened, and others have all", why=str(error))
            await run(SCHEDULE_WORKER, give_up_unopened, self._disk)
            self.damages.given_up()
            opened = await run(SCHEDULE_WORKER, self._open_store)
        self.store, self.recovery, self.controls = opened
        self.recovery_seconds = trio.current_time() - began
        self.commit_point = CommitPoint(
            durable=self.store.message_log.next_sequence,
            # What was filed was committed before.
            committed=self.store.schedule.last_filed + 1,
            is_sole=not self.config.has_meta,
        )
        self._pacer.recall(self.store.clock_known)
        self.checkpoints = Checkpoints(
            self.store, executor=self._runtime.executor, pacer=self._pacer
        )
        self.access = ScheduleAccess(self._runtime.executor)
        self.filer = Filer(
            store=self.store,
            checkpoints=self.checkpoints,
            access=self.access,
            pacer=self._pacer,
        )
        self.budget = DiskBudget(
            self._disk,
            floor_bytes=self.config.disk_floor_bytes,
            owed_bytes=lambda: self.store.owed_bytes(
                self.filer.backlog_rows, self.filer.backlog_bytes
            ),
        )
        self.upkeep = Upkeep(
            store=self.store,
            checkpoints=self.checkpoints,
            budget=self.budget,
            executor=self._runtime.executor,
            intervals=self._intervals,
            duty_changed=self._outside.duty_changed,
        )
        _tell_of_recovery(self.recovery, self.store.identity)
        if not self.config.has_meta:
            self._tell_of_tail()
        _log.info(
            "recovered",
            files_deleted=len(self.recovery.orphans),
            files_quarantined=len(self.recovery.quarantined),
            damaged=len(self.recovery.damages),
            seconds=round(self.recovery_seconds, 3),
        )
        await self._begin_membership()

    async def _begin_membership(self) -> None:
        """Make what the node is in its group by, where a meta server says what it is."""
        if not self.config.has_meta:
            self.queue = queue_of(
                self.store, self.filer, self.commit_point, executor=self._runtime.executor
            )
            return
        self._boot_id = UUID(int=self._runtime.chance.getrandbits(128), version=4)
        self.replica = Replica(
            store=self.store,
            promised=await self._runtime.executor.run(PROMISE_WORKER, self._read_promise),
            filer=self.filer,
            splitter=Splitter(self.store, self.access, self._pacer),
            damages=self.damages,
            runtime=self._runtime,
            register=self._said,
            why_full=lambda: DISK_FULL if self.upkeep.disk_is_full else "",
            appended=partial(self.upkeep.committed, True),  # noqa: FBT003
            lose=self._outside.lose,
            read_secret=self._read_secret,
            chance=self.own_chance(),
        )
        self.registration = self.replica.registration = self._make_registration(self.replica)

    def _others_have_all(self) -> bool:
        """Return True if another disk was in sync by the newest record told here, durably.

        Whether that is so still the meta server says: a disk in place of the only one in sync is
        refused.
        """
        if not self.config.has_meta:
            return False
        with contextlib.suppress(DamagedError):
            identity = read_identity(self._disk)
            if identity is not None:
                promised = PromiseFile(self._disk, identity.storage_uuid).read()
                told = msgspec.json.decode(promised.told, type=Told | None)
                in_sync = set() if told is None else set(told.record.in_sync.values())
                return bool(in_sync - {identity.storage_uuid})
        return False

    def _read_promise(self) -> Promised:
        """Return what this node has promised; raise DamagedError."""
        return PromiseFile(self._disk, self.store.identity.storage_uuid).read()

    async def close(self) -> None:
        """Let go of the directory; nothing of this node runs any more.

        It becomes the snapshot that was copied, if one was; or one of the log of its group; or it
        is given up.
        """
        run, replica = self._runtime.executor.run, self.replica
        if replica is not None and replica.copied is not None:
            if self.damages.came_with_copy:
                await run(SCHEDULE_WORKER, self.store.keep_aside)
            await run(SCHEDULE_WORKER, self.store.become, replica.copied)
        elif replica is not None and replica.other_log is not None:
            log_uuid = replica.other_log
            _log.warning("this node takes the log of its group for its own", log_uuid=str(log_uuid))
            await run(SCHEDULE_WORKER, self.store.adopt_log, log_uuid)
        elif replica is not None and replica.copies_anew:
            try:
                await run(SCHEDULE_WORKER, self.store.give_up)
            except StorageFullError as error:
                self.damages.put_off()
                _log.error("no disk space to put damaged files aside", reason=str(error))
            else:
                self.damages.given_up()
        else:
            self.store.close()

    def _open_store(self) -> tuple[Store, RecoverySummary, ControlsStore]:
        """Open the data directory."""
        config = self.config
        _, total = self._disk.free_bytes()
        if total < config.disk_bytes_least:
            raise DataDirectoryError(
                f"the file system of {config.node.data_dir} has {total} bytes, and "
                f"{config.disk_bytes_least} are needed: 4 files of the message_log "
                "(storage.message_log_file_bytes_max)"
            )
        now_ms = self._runtime.clock.now_ms()
        with self._telling_where_space_is_missing():
            store, recovery = Store.open(
                self._disk,
                config.store_settings(),
                chance=self.own_chance(),
                now_ms=now_ms,
                on_damage=self.damages.note,
            )
        try:
            if not config.has_meta:
                # Nobody else has a say in what is committed.
                with self._telling_where_space_is_missing():
                    store.apply_tail(store.message_log.next_sequence, now_ms=now_ms)
            controls = ControlsStore(self._disk, log_uuid=store.identity.log_uuid)
            if config.node.rules_file:
                with self._telling_where_space_is_missing():
                    controls.take(read_rules(Path(config.node.rules_file), controls.controls))
        except BaseException:
            store.close()
            raise
        return store, recovery, controls

    @contextlib.contextmanager
    def _telling_where_space_is_missing(self) -> Iterator[None]:
        try:
            yield
        except StorageFullError as error:
            raise StorageFullError(
                f"no disk space to start in {self.config.node.data_dir}: {error}; free some space "
                "on its file system, and start again"
            ) from error

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
            cluster=identity.cluster,
        )

    # -- its part in the group ---------------------------------------------------------------

    def condition(self) -> Condition:
        """Return what speaks for this node as the master of its group, and against it."""
        leading, copied = self.leading, self.store.checkpoint.copied
        if self.registration is None or not self.registration.clock_fault:
            self._clock_right_at = trio.current_time()
        unfiled = self.commit_point.committed - 1 - self.store.schedule.last_filed
        return Condition(
            is_stopping=self._outside.is_stopping(),
            damage=self.damages.fault,
            disk_full_s=self.upkeep.disk_full_s,
            clock_wrong_s=trio.current_time() - self._clock_right_at,
            hangs="" if leading is None else leading.master.members.hangs(leading.now),
            # A master that files late holds nobody up by that.
            unfiled=unfiled if leading is None else 0,
            copied_s=(self._pacer.trusted_ms() - copied.written_ms) / 1000
            if isinstance(copied, Copied)
            else None,
            duplicates_s=self.store.settings.limits.duplicate_window_ms / 1000,
        )

    def _stands(self) -> Stands:
        """Return how this node stands in its group, and how fit it is to be the master."""
        if self.replica is None:
            return Stands()
        condition = self.condition()
        unfit, behind = why_unfit(condition), why_behind(condition)
        if unfit != self._unfit:
            log = _log.warning if unfit else _log.info
            log(
                "another node should be the master" if unfit else "fit to be the master again",
                reason=unfit,
            )
            self._unfit = unfit
        return msgspec.structs.replace(self.replica.stands(), unfit=unfit, behind=behind)

    def _said(self) -> NodeRegister:
        """Return what this start says of itself now."""
        identity, log = self.store.identity, self.store.message_log
        leading = self.leading
        return NodeRegister(
            cluster=identity.cluster,
            group=identity.group,
            node_id=identity.node_id,
            log_uuid=identity.log_uuid,
            storage_uuid=identity.storage_uuid,
            incarnation=identity.incarnation,
            boot_id=self._boot_id,
            last_sequence=log.next_sequence - 1,
            last_epoch=log.last_epoch,
            address=self._outside.address,
            http_address=self._outside.http_address(),
            version=installed_version(),
            committed=self.commit_point.committed - 1,
            uncommitted=self.store.recovery.known
            if leading is None
            else leading.master.outcomes.uncommitted,
            told=None if self.replica is None else self.replica.newest,
            replaces=self.store.replaces,
            stands=self._stands(),
        )

    async def _read_secret(self) -> bytes | None:
        """Return what is to be proved, None where nothing is; raise ConfigError."""
        secret = self._outside.secret
        if not secret.is_set:
            return None
        await self._runtime.executor.run(FILES_WORKER, partial(secret.check, SECRET_KEY))
        return secret.entries[0]

    def _make_registration(self, replica: Replica) -> Registration:
        self.controls_sync = ControlsSync(self.controls, take=self.have_controls)
        return Registration(
            self.config.meta,
            identity=self.store.identity,
            log_epoch=lambda: self.store.message_log.last_epoch,
            node=self._said,
            broker_state=self._outside.broker_state,
            on_changed=self._outside.duty_changed,
            read_secret=self._read_secret,
            controls_sync=self.controls_sync,
            replica=replica,
            network=self._runtime.network,
            clock=self._runtime.clock,
            chance=self.own_chance(),
        )

    async def take_epoch(self) -> bool:
        """Wait until the node may deliver, apply what is committed, and make its epoch durable.

        Where there is no meta server it may at once, and has no epoch. Meanwhile a replica follows.
        False: the directory is to be closed and opened first.
        """
        if self.registration is None or self.replica is None:
            return True
        now_ms = self._runtime.clock.now_ms()
        if not await self.replica.until_master(self.commit_point, now_ms=now_ms):
            return False
        epoch = await self.registration.take_epoch()
        began = trio.current_time()
        await self._begin_epoch(epoch, self.registration, self.replica)
        self.recovery_seconds += trio.current_time() - began
        self._tell_of_tail()
        _log.info(
            "this node is the master in a new epoch",
            epoch=epoch,
            sequence=self.store.message_log.next_sequence - 1,
        )
        await self.registration.until_epoch_known()
        assert self.controls_sync is not None
        with trio.move_on_after(self.config.meta.controls_seconds_max):
            await self.controls_sync.until_heard()
        return True

    async def _begin_epoch(self, epoch: int, registration: Registration, replica: Replica) -> None:
        """Begin an epoch at the end of the log.

        Where nobody else has to have what is durable that makes it committed, and it is applied.
        """
        assert registration.permission is not None
        record, log = registration.permission.record, self.store.message_log
        is_alone = set(record.in_sync) == {self.store.identity.node_id}
        await self._runtime.executor.run(
            SCHEDULE_WORKER, self._begin_epoch_of, epoch, is_alone, self.commit_point.committed
        )
        point = self.commit_point
        master = Master(
            replica.own,
            record_of(record),
            point,
            start=log.next_sequence - 1,
            lag_s_max=self.config.replication.lag_ms_max / 1000,
            now=replica.now,
        )
        # What an earlier start could not commit is not committed yet.
        if known := self.store.recovery.known:
            master.outcomes.durable(log.next_sequence, known, replica.now)
        self.leading = replica.leading = Leading(
            master,
            log=log,
            log_uuid=self.store.identity.log_uuid,
            epochs=Epochs(self.store.epoch_starts(), first=log.first_sequence),
            snapshots=Snapshots(
                disk=self._disk,
                log=log,
                log_uuid=self.store.identity.log_uuid,
                retention=self.store.retention,
                executor=self._runtime.executor,
                take=self.checkpoints.take_whole,
            ),
            executor=self._runtime.executor,
            clock=self._runtime.clock,
            asks=Asks(
                why_not_follow=replica.why_not_follow,
                in_flight=self._awaited,
                change_record=replica.change_record,
                moved=self.hand_on,
                duty_changed=self._outside.duty_changed,
                renew=registration.renew,
                lose=partial(self._lose, epoch),
                on_damage=self.damages.note,
            ),
        )
        self.queue = queue_of(self.store, self.filer, point, executor=self._runtime.executor)

    def _begin_epoch_of(self, epoch: int, is_alone: bool, committed: int) -> None:  # noqa: FBT001
        store, now_ms = self.store, self._runtime.clock.now_ms()
        with self._telling_where_space_is_missing():
            if is_alone:
                store.apply_tail(store.message_log.next_sequence, now_ms=now_ms)
                store.start_epoch(epoch, now_ms=now_ms)
            else:
                store.apply_tail(committed, now_ms=now_ms)
                store.begin_epoch(epoch, now_ms=now_ms)

    def _awaited(self) -> int:
        return self.in_flight()

    def _lose(self, epoch: int, reason: str) -> None:
        own = self.store.identity
        node = f"{own.node_id} of {own.group}"
        self._outside.lose(FencedError(node=node, epoch=epoch, reason=reason))

    def hand_on(self) -> None:
        """Hand on what has become committed."""
        self.queue.hand_on()
        self.on_committed()

    async def have_controls(self, told: Controls) -> None:
        """Store controls; apply them now, or when the mastership starts.

        Raises StorageFullError (nothing has changed then) or FatalDiskError.
        """
        async with self.taking_controls:
            if self.take_controls is not None:
                await self.take_controls(told)
                return
            with trio.CancelScope(shield=True):
                await self._runtime.executor.run(CONTROLS_WORKER, self.controls.take, told)

    async def _watch_rules(self, path: Path) -> None:
        """Go by what the file of rules says, whenever it changes, until cancelled."""
        fault = ""
        while True:
            await trio.sleep(LOOK_S)
            before, now = self.controls.controls, ""
            try:
                told = await self._runtime.executor.run(CONTROLS_WORKER, read_rules, path, before)
                if told is not before:
                    await self.have_controls(told)
                    _log.info("applied the file of rules", version=told.version)
            except (ConfigError, StorageFullError) as error:
                now = str(error)
                if now != fault:
                    _log.error("the last rules stay in force", reason=now)
            fault = now

    async def keep(self, nursery: trio.Nursery) -> None:
        """Look after directory and secret until cancelled; starts with a look at the disk."""
        await self.upkeep.begin(nursery)
        nursery.start_soon(self._outside.secret.keep, self._runtime.executor)
        if self.config.node.rules_file:
            nursery.start_soon(self._watch_rules, Path(self.config.node.rules_file))
        if self.replica is not None:
            nursery.start_soon(self._remove_aside, self.replica)
            self.scrub = Scrub(
                self.store,
                executor=self._runtime.executor,
                backlog_bytes=lambda: self.filer.backlog_bytes,
                chance=self.own_chance(),
            )
            nursery.start_soon(self.scrub.run)

    async def _remove_aside(self, replica: Replica) -> None:
        """Delete what was put aside, once the group counts on the copy that took its place."""
        while not replica.is_counted:  # noqa: ASYNC110 (nobody waits for it)
            await trio.sleep(_ASIDE_LOOK_S)
        if await self._runtime.executor.run(_ASIDE_WORKER, self.store.remove_aside):
            _log.info("deleted the damaged files: the copy in their place is in sync")


def _tell_of_recovery(summary: RecoverySummary, identity: Identity) -> None:
    """Say what the recovery of a data directory found."""
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
    if identity.incarnation == 1:
        _log.warning(
            "the data directory was empty: a new node starts, without messages",
            cluster=identity.cluster,
            group=identity.group,
            node_id=identity.node_id,
            log_uuid=str(identity.log_uuid),
        )
