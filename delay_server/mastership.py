"""The parts that only the master of a group has: ingest, loader, wheel, sender and dead letters.

A mastership runs on an open node. It begins with nothing in memory and ends with its tasks: in
order when the process stops, at once when the node loses its role. Messages in flight at that
moment are in the log, and the next mastership may send them again.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import numpy as np
import structlog
import trio

from delay_protocol.basics.codes import ItemCode
from delay_protocol.basics.subjects import real_subject, retry_subject
from delay_protocol.wire.hello import Hello
from delay_server.accepting.admission import Admission
from delay_server.accepting.commits import MESSAGE_WORKER, Committer
from delay_server.accepting.duplicates import Duplicates
from delay_server.accepting.ingest import Sift
from delay_server.changing.cancelling import Cancelling
from delay_server.clock.pace import Pacer, TrustedClock
from delay_server.damages import Damages
from delay_server.dead.dead_letters import PENDING_MAX, DeadLetters
from delay_server.dead.recorder import DeadLetterRecorder
from delay_server.filing.loader import Loader
from delay_server.holding.wheel import Wheel
from delay_server.lanes.lanes import Lanes
from delay_server.lanes.routes import SOURCE as META_SERVER
from delay_server.lanes.subject_rules import LaneRules
from delay_server.node import Node
from delay_server.receiving.copies import Copier
from delay_server.receiving.moves import Moves
from delay_server.sending.backlog_reader import BacklogReader
from delay_server.sending.dispatch import Dispatch
from delay_server.sending.fact_recorder import FactRecorder
from delay_server.sending.lateness import Lateness
from delay_server.sending.outlet import Outlet
from delay_server.sending.taken import TakenByMinute
from delay_server.sending.undeliverable import Undeliverable
from delay_server.target_groups import TargetGroups
from delay_transport.seams.runtime import Clock, Runtime
from sender.outcomes.dead import Refusal
from sender.outcomes.outcomes import Outcome as SenderOutcome
from sender.queues.parcels import NOBODY
from sender.sender import Sender
from sender.settings.config import BrokerGroup
from storage.batch.entries import Entries
from storage.batch.facts import FactBlock, Outcome
from storage.disk.disk import Disk
from storage.disk.errors import StorageFullError
from storage.disk.spans import MINUTE_MS
from storage.readers.item_reader import ItemReader
from storage.schedule.handout import held_rows

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_ROUNDS: Final = 5
"""How often all subjects' use is looked at while one may go unused."""
_STOP_FACTS_S: Final = 0.5
"""At the end, what facts get to become durable, even when all other time is used up."""


class Mastership:
    """The parts of a master, wired, for as long as the node has the role."""

    def __init__(
        self,
        node: Node,
        runtime: Runtime,
        disk: Disk,
        *,
        pacer: Pacer,
        damages: Damages,
        lateness: Lateness,
        admission: Admission,
        duty_changed: Callable[[], None],
    ) -> None:
        """`duty_changed` is called when something has changed that the node's duty follows from."""
        self._node = node
        self._config = config = node.config
        self._runtime = runtime
        self._pacer = pacer
        self._damages = damages
        self._lateness = lateness
        self.taken = TakenByMinute()
        self._admission = admission
        self._store = node.store
        self.handout = node.store.schedule.hand_out()
        self._dispatching = trio.CancelScope()
        self.undeliverable = Undeliverable(self._store.schedule.subjects.names.__getitem__)
        self.targets = self._make_targets()
        if (routes := self.targets.routes) is not None:
            admission.why_barred, routes.on_barred = routes.why_barred, admission.forget
        self.cancelling = Cancelling(
            read_items=ItemReader(disk, damages.note).read,
            on_settled=self.buried,
            give_back=self.give_back,
        )
        self.wheel = Wheel(slot_ms=config.wheel.slot_ms, now_ms=runtime.clock.now_ms())
        self._make_lanes()
        self._make_committer()
        self.fact_recorder = FactRecorder(
            submit=self.committer.submit,
            sync_ms_max=config.storage.fact_sync_ms_max,
            settle=self.handout.settle,
            on_behind=duty_changed,
        )
        self.sender = self._make_sender()
        self._make_loading()
        self._make_dead_letters()
        self.outlet = Outlet(
            node.controls,
            lane_rules=self.lane_rules,
            lanes=self.lanes,
            sender=self.sender,
            loader=self.loader,
            executor=runtime.executor,
            set_weights=self.targets.set_weights,
            on_room=self._room_has_grown,
            on_barred=partial(_give_up_barred, self, runtime.clock),
            on_shared=self.copy,
        )
        self.lanes.on_changed = self.sender.routes_changed
        self.sender.take_stranded = self.outlet.take_stranded
        node.take_controls = self.outlet.take
        node.flush = self._flush
        node.in_flight = self._in_flight

    def _make_lanes(self) -> None:
        """Make what says which lane a message waits in, and which groups it may go to."""
        config, subjects = self._config, self._store.schedule.subjects
        self.lane_rules = LaneRules(
            name_of=subjects.names.__getitem__,
            routes=self.targets.routes,
            groups=tuple(config.brokers),
        )
        self.lanes = Lanes(
            self.lane_rules,
            lane_entries_min=config.lane_entries_min,
            lanes_max=config.wheel.lanes_max,
            on_disk=self.handout,
            unrouted_max=config.unrouted_max,
        )
        self.lane_rules.attach(self.lanes)

    def _make_committer(self) -> None:
        """Make what appends to the log."""
        store, duplicates = self._store, self._config.duplicates
        self.duplicates: Duplicates | None = None
        """The window of duplicates; None where nothing is recognised."""
        if duplicates.is_on:
            self.duplicates = Duplicates(
                store.message_log, duplicates, now_ms=self._pacer.trusted_ms
            )
        self.committer = Committer(
            message_log=store.message_log,
            filer=self._node.filer,
            executor=self._runtime.executor,
            pacer=self._pacer,
            floor_minute=max(store.schedule.floor_minute, store.message_log.last_floor_minute),
            budget=self._node.budget,
            hour_mark=lambda: self.loader.hour_mark,
            queue=self._node.queue,
            commit_point=self._node.commit_point,
            on_commit=self._node.upkeep.committed,
            replicas=self._node.leading,
            note=(lambda _: None) if self.duplicates is None else self.duplicates.note,
        )
        self._node.on_committed = self.committer.look_again
        self._node.filer.on_room = self.committer.look_again

    def _make_loading(self) -> None:
        """Make what is between the log, the wheel and the sender."""
        store, pacer = self._store, self._pacer
        self.dispatch = Dispatch(
            wheel=self.wheel,
            pacer=pacer,
            lanes=self.lanes,
            offer=self._offer,
            # What is being read for a lane has its place already.
            room=lambda: max(self._room - self.backlog_reader.reserved, 0),
            is_hungry=self.sender.is_hungry,
            on_popped=self._popped,
        )
        self.loader = Loader(
            store=store,
            handout=self.handout,
            give_back=self.handout.give_back,
            wheel=self.wheel,
            limits=self._config.wheel,
            checkpoints=self._node.checkpoints,
            access=self._node.access,
            pacer=pacer,
            lanes=self.lanes,
            held_elsewhere=lambda: self._held_beside_wheel,
            on_wheel_grown=self.dispatch.wheel_has_grown,
            append_floor=self.committer.append_floor,
            on_facts=self._applied,
            on_shared=self.copy,
        )
        self.backlog_reader = BacklogReader(
            handout=self.handout,
            give_back=self.handout.give_back,
            subject_name=store.schedule.subjects.names.__getitem__,
            loader=self.loader,
            lanes=self.lanes,
            pacer=pacer,
            offer=self._offer,
            room=lambda: self._room,
            on_unreserved=self.dispatch.room_has_grown,
        )

    def _make_dead_letters(self) -> None:
        """Make what records messages that brokers refuse for good, and what is done about them."""
        self.dead_recorder = DeadLetterRecorder(
            committer=self.committer,
            read_items=self.cancelling.read,
            subject_for=self.subject_for,
            on_damaged=self.undelivered,
            on_buried=self.buried,
            on_changed=self._node.upkeep.appended,
        )
        self.dead_letters = DeadLetters(
            store=self._store,
            committer=self.committer,
            access=self._node.access,
            executor=self._runtime.executor,
            on_damage=self._damages.note,
            on_appended=self._node.upkeep.appended,
        )
        self._bound_dead_letters()
        self.moves = _moves_of(
            self, admission=self._admission, node=self._node, clock=self._runtime.clock
        )
        self.copier = _copier_of(self, self._node)

    def _make_sender(self) -> Sender:
        schedule = self._store.schedule
        return Sender(
            self._config.broker_groups(),
            hello=self.hello(),
            config=self._config.sender_config(),
            clock=TrustedClock(self._runtime.clock, self._pacer),
            network=self._runtime.network,
            chance=self._node.own_chance(),
            read_items=self.cancelling.read,
            subject_name=schedule.subjects.names.__getitem__,
            on_outcome=self._settled,
            on_damaged=self.undelivered,
            on_dead=self.give_up,
            routes=self.lane_rules,
            may_send=self._may_send,
        )

    def hello(self) -> Hello:
        """Return who delivers, and of which epoch."""
        return self._node.hello(self._store.message_log.last_epoch)

    def _in_flight(self) -> int:
        """Return how much is under way that a handover waits for."""
        node, outcomes = self._node, self.sender.unsent().in_flight + self.fact_recorder.not_durable
        # Whoever is to be told of a commit is told while this node is the master.
        untold = max(node.commit_point.committed - node.queue.next, 0)
        return outcomes + self.committer.taken + untold

    def _may_send(self) -> bool:
        leading = self._node.leading
        if leading is None or leading.may_act():
            return True
        # The duty resumes it when that is over.
        self.sender.pause()
        return False

    # -- begin and end -----------------------------------------------------------------------

    async def begin(self, nursery: trio.Nursery) -> None:
        """Start all tasks of a master but admission, in the order in which they stand on others."""
        nursery.start_soon(self.committer.run)
        nursery.start_soon(self._node.queue.run)
        if self._node.leading is not None:
            nursery.start_soon(self._node.leading.run)
        if self._node.replica is not None:
            nursery.start_soon(self._node.replica.run_told)
        # Behind the commit.
        nursery.start_soon(self._node.filer.run, self.loader)
        nursery.start_soon(self.fact_recorder.run_gate)
        nursery.start_soon(self.loader.run_loading)
        nursery.start_soon(self.loader.run_collecting)
        # Deliver, and record what cannot be.
        nursery.start_soon(self.dead_recorder.run)
        nursery.start_soon(self.dead_letters.run)
        nursery.start_soon(self.copier.run)
        await nursery.start(self.sender.run)
        if self.targets.meta_routes is not None:
            nursery.start_soon(self.targets.meta_routes.run)
        nursery.start_soon(self._run_rounds)
        nursery.start_soon(self._run_dispatch)

    async def read_window(self) -> None:
        """Read the window of duplicates from the log; it takes part in what is committed then."""
        if self.duplicates is not None:
            while not await self._runtime.executor.run(MESSAGE_WORKER, self.duplicates.catch_up):
                pass

    @property
    def sift(self) -> Sift | None:
        """What finds messages that were sent before; None: nothing does."""
        return None if self.duplicates is None else self.duplicates.sift

    async def stop(self, deadline: float) -> None:
        """Bring everything under way to an end, in order; nothing is admitted any more."""
        self._dispatching.cancel()
        await self.sender.drain(deadline=deadline)
        with trio.move_on_at(deadline):
            await self.dead_letters.stop()
        with trio.move_on_at(deadline):
            await self.dead_recorder.stop()
        with trio.move_on_at(deadline):
            await self.moves.unfiled.until_appended()
        unsent = self.sender.unsent()
        if unsent.total:
            _log.warning(
                "undelivered due messages wait for the next start; those in flight or in doubt may "
                "be delivered twice",
                queued=unsent.queued + unsent.early,
                in_flight=unsent.in_flight,
                retrying=unsent.retrying,
                in_doubt=unsent.in_doubt,
            )
        with trio.move_on_at(max(deadline, trio.current_time() + _STOP_FACTS_S)):
            # Only a disk without any space makes this wait; those facts are lost then.
            await self.fact_recorder.stop()
        await self._node.filer.drain()
        await self._node.checkpoints.write()
        log = self._store.message_log
        await self._runtime.executor.run(MESSAGE_WORKER, log.sync_durable_end)

    def fence(self) -> None:
        """Send and record nothing more, from this step on."""
        self.sender.pause()
        self.dead_letters.is_closed = True
        self.dead_recorder.close()

    async def _run_dispatch(self) -> None:
        """Offer due messages until the server stops."""
        with self._dispatching:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.dispatch.run)
                nursery.start_soon(self.backlog_reader.run)

    async def _flush(self) -> None:
        """Make durable the outcomes that are left, once all tasks have ended."""
        leading = self._node.leading
        if leading is not None and not leading.master.members.is_alone:
            # The next master has not got them, so they would only be cut.
            return
        drafts = self.fact_recorder.left()
        if drafts:
            now_ms = self._pacer.now_ms()
            with contextlib.suppress(StorageFullError):
                await self._runtime.executor.run(
                    MESSAGE_WORKER,
                    partial(self._store.message_log.append, drafts, append_ms=now_ms),
                )

    # -- room --------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether more may be held for delivery."""
        return self._room > self.backlog_reader.reserved

    @property
    def _room(self) -> int:
        """How much more should be given to the sender.

        What the sender has given up counts as held.
        """
        return max(self.sender.room - self._beside_sender, 0)

    @property
    def _held_beside_wheel(self) -> int:
        """Messages that have left the wheel and have no outcome."""
        return self.sender.unsent().total + self._beside_sender + self.copier.count

    @property
    def _beside_sender(self) -> int:
        return self.dead_recorder.count + self.moves.unfiled.count + self.cancelling.kept

    def _offer(self, entries: Entries, *, lane: int, late: bool = False) -> None:
        self.outlet.offer(entries, lane=lane, late=late)

    def _popped(self) -> None:
        """Look after what had to wait for the wheel to shrink, and for what had to leave it."""
        # A copy that is seen for the first time may lead to a name that nothing led to.
        self.targets.follow()
        self.sender.hand_out()
        self.loader.wheel_has_shrunk()
        self._wake_backlog_reader()

    def _left_sender(self, entries: Entries) -> None:
        """Forget what has an outcome; it makes room."""
        self.lanes.settled(entries)
        self._room_has_grown()

    def _room_has_grown(self) -> None:
        """Have everybody look who waits for room in the sender, or for less to be held."""
        self.dispatch.room_has_grown()
        self.loader.wheel_has_shrunk()
        self._wake_backlog_reader()

    # -- groups and routes -------------------------------------------------------------------

    def _make_targets(self) -> TargetGroups:
        """Make what says which broker groups there are to deliver to."""
        return TargetGroups(
            self._config,
            subjects=self._store.schedule.subjects,
            network=self._runtime.network,
            chance=self._node.own_chance,
            set_groups=self._deliver_to,
            on_followed=self._wake_backlog_reader,
        )

    def _deliver_to(self, groups: Iterable[BrokerGroup]) -> None:
        self.sender.set_groups(groups)

    def _wake_backlog_reader(self) -> None:
        """Have backlogs read that wait for room, or for a lane that leads anywhere."""
        if self.lanes.parked.anyone_waits:
            self.backlog_reader.wake()

    async def _run_rounds(self) -> None:
        """Forget, now and then, the routes of subjects that are not in use.

        Also reload messages of subjects that did not fit into the parked set: as soon as there is
        room, else every `routes.unused_ms`.
        """
        rounds = 0
        while True:
            await trio.sleep(self._config.routes.unused_ms / 1000 / _ROUNDS)
            for _ in self.targets.round():
                await trio.lowlevel.checkpoint()
            rounds += 1
            if self.lanes.backlog.forgotten and (
                self.lanes.parked.has_room_for_unrouted or not rounds % _ROUNDS
            ):
                self.lanes.remember()
                self.loader.wake()

    # -- outcomes ----------------------------------------------------------------------------

    def _settled(self, entries: Entries, at_ms: int, target: str, outcome: SenderOutcome) -> None:
        self.fact_recorder.cross_off(entries, at_ms, target, Outcome(outcome))
        self._left_sender(entries)
        self._lateness.observe(entries, at_ms)
        self.taken.count(target, len(entries), at_ms)

    def buried(self, entries: Entries) -> None:
        """Let go of messages whose DEAD or MOVE records are applied."""
        self.handout.settle(held_rows(entries))
        self._left_sender(entries)

    def _applied(self, found: Sequence[FactBlock], last: int) -> None:
        """Let go of what the schedule_log knows the outcome of."""
        self.fact_recorder.applied_to(last)
        self.cancelling.applied_to(last)
        for facts in found:
            self.fact_recorder.count(facts)
            self.dead_recorder.unfiled.filed(facts)
            self.moves.unfiled.filed(facts)
        if found:
            self._bound_dead_letters()

    def give_up(
        self,
        entries: Entries,
        refusals: Sequence[Refusal],
        tries: Sequence[int],
        told: Callable[[], None] | None = None,
    ) -> None:
        """Make dead letters of messages; `told`, with one of them only, hears of its record."""
        self.dead_recorder.give_up(entries, refusals, tries, told)
        self._bound_dead_letters()

    def _bound_dead_letters(self) -> None:
        count = self.dead_letters.pending + self.dead_recorder.count
        self.sender.gives_up = count < PENDING_MAX
        self.lanes.takes_barred = self.sender.gives_up

    def subject_for(self, number: int, name: str) -> bytes:
        """Return the subject under which a message goes to one name of receivers alone.

        Of a subject that it does not receive that is the subject itself.
        """
        subject = self._store.schedule.subjects.names[number]
        routes, real = self.targets.routes, real_subject(subject)
        if routes is None or real != subject or name not in routes.names_of(real.decode()):
            return subject
        return retry_subject(real.decode(), name).encode()

    def copy(self, entries: Entries) -> None:
        """Replace messages that several names receive by copies."""
        self.copier.take(entries)

    def give_back(self, entries: Entries) -> None:
        """Leave messages on disk that were held; they come back as their subject may go."""
        self.lanes.withdrawn(entries)
        self._room_has_grown()

    def undelivered(self, entries: Entries) -> None:
        """Leave damaged messages on disk: they stay pending until they are salvaged.

        Those that are cancelled have no bytes either.
        """
        entries = self.cancelling.take_from(entries)
        self.undeliverable.note(entries)
        self._left_sender(entries)

    # -- what can be seen --------------------------------------------------------------------

    def waiting_by_group(self) -> Counter[str]:
        """Return how many due messages wait for each group; one that several may get, for each.

        It costs a look at each lane and at each subject that waits on disk.
        """
        waiting, groups_of = Counter[str](), self.lane_rules.groups_of
        for lane, count in self.sender.queued_by_lane().items():
            waiting.update(dict.fromkeys(groups_of(lane), count))
        for lane, subjects in self.lanes.parked.waiting_in.items():
            left = self.lanes.backlog.of(np.array(sorted(subjects), np.intp), 0).messages
            waiting.update(dict.fromkeys(groups_of(lane), left))
        return waiting

    @property
    def late_now(self) -> int:
        """Messages that are due and have no outcome: those that the sender holds, at the least.

        Where the sender has not got them yet (a held clock, a full wheel) whole minutes that have
        passed are counted instead.
        """
        minute = self._runtime.clock.now_ms() // MINUTE_MS
        overdue = self._store.schedule.pending_before(minute * MINUTE_MS)
        return max(self._held_beside_wheel + self.undeliverable.count, overdue)


def _moves_of(master: Mastership, *, admission: Admission, node: Node, clock: Clock) -> Moves:
    """Return what records the messages that receivers want to have later."""
    return Moves(
        committer=master.committer,
        admission=admission,
        read_items=master.cancelling.read,
        subject_name=node.store.schedule.subjects.names.__getitem__,
        subject_for=master.subject_for,
        now_ms=clock.now_ms,
        on_moved=master.buried,
        on_no_space=partial(master.sender.retry, avoid=NOBODY),
        on_changed=node.upkeep.appended,
    )


def _copier_of(master: Mastership, node: Node) -> Copier:
    """Return what copies messages that several names receive."""
    routes = master.targets.routes
    return Copier(
        committer=master.committer,
        budget=node.budget,
        unfiled=master.moves.unfiled,
        read_items=master.cancelling.read,
        subject_name=node.store.schedule.subjects.names.__getitem__,
        names_of=(lambda _: []) if routes is None else routes.names_of,
        give_back=master.give_back,
        on_damaged=master.undelivered,
        on_changed=node.upkeep.appended,
    )


def _give_up_barred(master: Mastership, clock: Clock, entries: Entries) -> None:
    """Make dead letters of messages whose subjects the meta server refuses for good."""
    refusal = Refusal(META_SERVER, int(ItemCode.SUBJECT_NOT_ASSIGNED), clock.now_ms(), 1)
    master.give_up(entries, [refusal] * len(entries), [0] * len(entries))
