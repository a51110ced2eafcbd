"""A node of a group: the real core, a log that is a list, and connections that are modelled."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from delay_protocol.nodes.group_changes import Vote
from delay_protocol.nodes.registration import GroupRecord, NodeRegister, Stands
from meta_server.groups.elections import Heard, Voted
from replication.core.commit_point import CommitPoint
from replication.core.epochs import Behind, Diverges, Epochs, Question
from replication.core.follower import Ack, CutRefusedError, Follower
from replication.core.handover import HandoverRequest
from replication.core.in_sync import Proposal, ProtocolFaultError
from replication.core.master import Master
from replication.core.record import Member, Record, Start
from replication.core.voter import Later, Promise, Refusal, Voter
from replication.records import record_of
from tests.simulation.schedule.events import BrokenPromiseError, Connection, Process

if TYPE_CHECKING:
    from tests.simulation.schedule.group import Group

LAG_S_MAX: Final = 2.5
WINDOW: Final = 2000
"""Records that may be sent beyond the last acknowledgement."""
BATCH: Final = 256
HEARTBEAT_S: Final = 0.5
SILENT_S_MAX: Final = 2.0
"""After which a slave that hears nothing connects anew."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A record of outcomes: these messages were delivered."""

    of: tuple[int, ...]


Value = int | Facts | None
"""A message, outcomes, or the beginning of an epoch."""


@dataclass(slots=True)
class Stream:
    """What a master sends on one connection."""

    connection: Connection
    node: "Node"
    member: Member
    next: int
    acked: int
    told: int = 0
    told_at: float = 0.0


class Node(Process):
    """One node; what is durable survives `die`, the rest is made anew by `begin`."""

    def __init__(self, group: "Group", name: str) -> None:
        super().__init__(group.events, name)
        self.group = group
        self.storage = group.new_uuid()
        self.log: list[tuple[int, Value]] = []
        self.base = 1
        """The first record that is kept."""
        self.synced = 1
        """The end of what is durable."""
        self.checkpoint = 1
        """The end of what is filed, durably."""
        self.epochs = Epochs()
        self.promise = Promise()
        self.incarnation = 0
        self.free_at = 0.0
        """Until then its disk finishes nothing."""
        self.files_slowly_until = 0.0
        self.cannot_append_until = 0.0
        self.master: Master | None = None
        self.begin()

    # -- its lives ---------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a life with what is durable."""
        now = self.local()
        self.incarnation += 1
        self.boot = self.group.new_uuid()
        self.voter = Voter(self.promise, now=now)
        self.point = CommitPoint(durable=self.synced, committed=self.checkpoint, is_sole=False)
        self.applied = self.checkpoint
        self.record: Record | None = None
        self.master = None
        self.follower: Follower | None = None
        self.connection: Connection | None = None
        self.heard_master_at = now
        self.streams: dict[int, Stream] = {}
        self._actions: deque[tuple[Callable[[], None], Callable[[], None]]] = deque()
        self._is_writing = False
        self._forget_mastership()
        self._said = Stands()
        chance = self.events.chance
        self.later(chance.uniform(0, 0.05), self._heartbeat)
        self.later(chance.uniform(0, 0.05), self._look)
        self.later(chance.uniform(0, 0.05), self._say_alive)

    def _forget_mastership(self) -> None:
        self.accepts = False
        self.waiting: deque[tuple[int, int]] = deque()
        self.known: set[int] = set()
        self.rows: deque[int] = deque()
        self.in_flight: set[int] = set()
        self.outcomes: list[int] = []
        self._is_filing_outcomes = False

    def die(self) -> None:
        """Lose what was not synced, but for some of it."""
        super().die()
        kept = self.events.chance.randint(self.synced, self.end)
        del self.log[kept - self.base :]
        self.epochs.cut(kept)
        self.synced = kept
        self.master = None

    def wipe(self) -> None:
        """Get an empty disk."""
        self.storage = self.group.new_uuid()
        self.log, self.base, self.synced, self.checkpoint = [], 1, 1, 1
        self.epochs, self.promise, self.incarnation = Epochs(), Promise(), 0

    def restart(self) -> None:
        """Live again."""
        if not self.is_up:
            self.live()
            self.begin()

    @property
    def end(self) -> int:
        """The end of what is written."""
        return self.base + len(self.log)

    @property
    def member(self) -> Member:
        """This node with its disk."""
        return Member(self.name, self.storage)

    @property
    def start(self) -> Start:
        """This start."""
        return Start(self.member, self.incarnation, self.boot)

    # -- its disk ----------------------------------------------------------------------------

    def write(self, action: Callable[[], None], then: Callable[[], None]) -> None:
        """Do something to the log; `then` when it is durable. One after another, in groups."""
        self._actions.append((action, then))
        self._write_on()

    def _write_on(self) -> None:
        if self._is_writing or not self._actions:
            return
        self._is_writing = True
        actions, self._actions = list(self._actions), deque()
        for action, _ in actions:
            action()
        chance = self.events.chance
        if self.group.may_strike and chance.random() < self.group.death_in_fsync:
            self.group.faults["death inside fsync"] += 1
            self.die()
            self.events.after(chance.uniform(0.1, 8), self.restart)
            return
        seconds = max(chance.uniform(0.0005, 0.01), self.free_at - self.events.now)
        self.later(seconds, self._written, self.end, [then for _, then in actions])

    def _written(self, end: int, then: Sequence[Callable[[], None]]) -> None:
        self._is_writing = False
        self.synced = max(self.synced, end)
        for each in then:
            each()
        self._write_on()

    def _append(self, epoch: int, values: Sequence[Value]) -> None:
        for value in values:
            if value is None:
                self.epochs.begin(epoch, self.end)
            self.log.append((epoch, value))

    def _records(self, first: int, behind: int) -> list[tuple[int, Value]]:
        return self.log[first - self.base : behind - self.base]

    def make_promise(self, promise: Promise, then: Callable[[], None]) -> None:
        """Make a promise durable."""

        def durable() -> None:
            if promise.epoch > self.promise.epoch or promise.told != self.promise.told:
                self.promise = promise
            then()

        self.later(self.events.chance.uniform(0.0005, 0.01), durable)

    # -- what is committed -------------------------------------------------------------------

    def _commit_moved(self, before: int) -> None:
        committed = self.point.committed
        if committed == before:
            return
        self.group.check_commit(self, before, committed)
        self._file()
        if self.master is not None:
            self.master.outcomes.committed_to(committed)
            self._answer()

    def _file(self) -> None:
        """Apply what is committed, where filing is not slow."""
        if self.events.now < self.files_slowly_until:
            return
        before, self.applied = self.applied, self.point.committed
        if self.master is not None:
            for _, value in self._records(before, self.applied):
                if isinstance(value, int) and value not in self.known:
                    self.rows.append(value)

    def _answer(self) -> None:
        """Acknowledge what is committed."""
        while self.waiting and self.waiting[0][0] < self.point.committed:
            sequence, message = self.waiting.popleft()
            self.group.acknowledged(message, sequence, self)

    def _keep_house(self) -> None:
        """Write a checkpoint, and let go of old records, now and then."""
        chance = self.events.chance
        self._file()
        if chance.random() < 0.1:
            self.checkpoint = min(self.applied, self.synced)
        if chance.random() < 0.05:
            first = min(self.checkpoint - self.group.kept_records, self.synced)
            if first > self.base:
                del self.log[: first - self.base]
                self.base = self.epochs.first = first

    # -- what the meta server says -----------------------------------------------------------

    def _say_alive(self) -> None:
        self._say()
        self.later(1.0, self._say_alive)

    def _say(self) -> None:
        """Tell how this node stands, with what is known of its log."""
        uncommitted = self.master.outcomes.uncommitted if self.master is not None else 0
        self._said = self._stands()
        node = NodeRegister(
            cluster="c1",
            group="d1",
            node_id=self.name,
            log_uuid=self.storage,
            storage_uuid=self.storage,
            incarnation=self.incarnation,
            boot_id=self.storage,
            last_sequence=self.synced - 1,
            address="",
            http_address="",
            version="",
            uncommitted=uncommitted,
            stands=self._said,
        )
        meta = self.group.meta
        self.group.network.tell(self, meta, meta.on_heard, self, Heard(0.0, node))

    def _stands(self) -> Stands:
        now, master, promise = self.local(), self.master, self.voter.to_master
        unfit = "full" if self.events.now < self.cannot_append_until else ""
        behind = "files slowly" if self.events.now < self.files_slowly_until else ""
        if master is None:
            hears, hears_sender = promise.hears(now)
            return Stands(
                hears=hears,
                hears_sender=hears_sender,
                vote_in_s=max(promise.until - now, 0.0),
                unfit=unfit,
                behind=behind,
            )
        return Stands(
            may_send=self.accepts and not master.why_not_act(now),
            lacks_promises_s=master.lacks_promises_s(now),
            hears_nobody=master.members.hears_nobody(now),
            unfit=unfit,
            behind=behind,
        )

    def _say_what_has_changed(self) -> None:
        """Tell at once that the master may send, or no more; and that a promise is over."""
        before, now = self._said, self._stands()
        if (before.may_send, before.vote_in_s > 0) != (now.may_send, now.vote_in_s > 0):
            self._say()

    def on_told(self, told: GroupRecord) -> None:
        """Take the record of the group."""
        record, now = record_of(told), self.local()
        if self.master is not None and record.epoch == self.master.record.epoch:
            self._master_told(record, now)
        elif self.master is not None and record.epoch > self.master.record.epoch:
            self.step_down()
        change = self.voter.told(record)
        if change is None:
            self._act_on(record)
        else:
            self.make_promise(change, lambda: self._act_on(record))

    def _master_told(self, record: Record, now: float) -> None:
        assert self.master is not None
        before = self.point.committed
        self.master.recorded(record, now)
        self._commit_moved(before)

    def _act_on(self, record: Record) -> None:
        newest = self.voter.promise.told
        if newest is None or record.pair != newest.pair or not self.voter.may_follow(record.epoch):
            return
        if self.voter.promise.epoch > self.promise.epoch:
            return
        self.record = record
        if self.master is not None and self.master.record.epoch >= record.epoch:
            return
        if record.master == (self.name, self.incarnation) and self.member in record.in_sync:
            self._become_master(record)
        elif record.master is None:
            self._stop_following()
        elif self.follower is None or self.follower.epoch != record.epoch:
            self._stop_following()
            self._connect()

    def on_asked_to_vote(self, epoch: int, gone: int) -> None:
        """Vote, or promise to do so later."""
        if self.master is not None and self.master.record.epoch >= epoch:
            return
        answer = self.voter.asked(epoch, self.local(), gone=gone)
        if isinstance(answer, (Later, Refusal)):
            return
        if self.master is not None:
            self.step_down()
        self._stop_following()
        promise = answer

        def vote() -> None:
            if self.voter.promise.epoch != epoch:
                return
            self.group.network.tell(
                self,
                self.group.meta,
                self.group.meta.on_vote,
                self.name,
                Voted(
                    self.storage,
                    self.incarnation,
                    Vote(
                        epoch=epoch,
                        last_epoch=self.epochs.before(self.synced),
                        end=self.synced,
                        applied=self.applied,
                    ),
                ),
            )

        self.make_promise(promise, lambda: self.write(lambda: None, vote))

    # -- the master --------------------------------------------------------------------------

    def _become_master(self, record: Record) -> None:
        self._stop_following()
        # What was being written when it followed is durable first.
        self.write(lambda: None, lambda: self._begin_epoch(record))

    def _begin_epoch(self, record: Record) -> None:
        is_so_still = self.voter.promise.told == record and self.voter.may_follow(record.epoch)
        if self.master is not None or self.follower is not None or not is_so_still:
            return
        self.group.check_new_master(self, record)
        self._forget_mastership()
        master = self.master = Master(
            self.member,
            record,
            self.point,
            start=self.end,
            lag_s_max=LAG_S_MAX,
            now=self.local(),
        )
        own = self._records(self.applied, self.end)
        self.known = {m for _, value in own if isinstance(value, Facts) for m in value.of}
        settled = self.known | self.group.settled_at(self.applied)
        self.rows = deque(m for m in self.group.messages_below(self.applied) if m not in settled)

        def begin() -> None:
            if self.master is master:
                self._append(record.epoch, [None])
                master.members.written(self.end, self.local())

        def durable() -> None:
            if self.master is master:
                self.accepts = True
                self._durable()

        self.write(begin, durable)

    def step_down(self) -> None:
        """Acknowledge and send nothing more."""
        for stream in list(self.streams.values()):
            stream.connection.close(self)
        self.streams = {}
        self.master = None
        self._forget_mastership()

    def hand_over(self, to: str) -> str:
        """Ask the master to hand over; return why it does not."""
        assert self.master is not None
        reason = self.master.hand_over(to, self.local())
        for stream in list(self.streams.values()):
            self._send_on(stream, always=True)
        return reason

    def on_wish(self, epoch: int, to: str) -> None:
        """Hand over, as the meta server asks the master of an epoch to."""
        if self.master is not None and self.accepts and self.master.record.epoch == epoch:
            self.hand_over(to)

    def on_message(self, message: int) -> None:
        """Take a message of a producer, if that may be."""
        master = self.master
        if master is None or not self.accepts or self.events.now < self.cannot_append_until:
            return
        if master.why_not_append(self.local()) or len(self.waiting) > 5000:
            return
        self._submit([message])

    def _submit(self, values: Sequence[Value]) -> None:
        """Append in the present epoch, and have it become durable."""
        master = self.master
        assert master is not None
        epoch, ends = master.record.epoch, []

        def append() -> None:
            if self.master is not master:
                return
            first = self.end
            self._append(epoch, values)
            ends.append(self.end)
            self.waiting += [
                (first + place, value)
                for place, value in enumerate(values)
                if isinstance(value, int)
            ]
            master.members.written(self.end, self.local())
            for stream in list(self.streams.values()):
                self._send_on(stream)

        def durable() -> None:
            if self.master is not master:
                return
            count = sum(len(value.of) for value in values if isinstance(value, Facts))
            if count:
                master.outcomes.durable(ends[0], count, self.local())
            self._durable()

        self.write(append, durable)

    def _durable(self) -> None:
        assert self.master is not None
        before = self.point.committed
        self.master.members.durable(self.synced)
        self._commit_moved(before)

    # -- what goes to slaves -----------------------------------------------------------------

    def on_follow(
        self, connection: Connection, slave: "Node", start: Start, epoch: int, question: Question
    ) -> None:
        """Answer a slave that asks to follow."""
        master = self.master
        if master is None or master.record.epoch != epoch or not self.accepts:
            connection.close(self)
            return
        answer = self.epochs.answer(question, end=self.end)
        if answer is not None:
            connection.send(self, slave.on_other_log, connection, answer)
            return
        now = self.local()
        master.members.connected(start, connection.number, sequence=question.sequence, now=now)
        stream = Stream(connection, slave, start.member, question.sequence, question.sequence)
        self.streams = {
            number: one for number, one in self.streams.items() if one.member != start.member
        }
        self.streams[connection.number] = stream
        connection.on_broken[self.name] = lambda: self._lost(stream)
        connection.send(self, slave.on_matches, connection, question)
        self._send_on(stream)

    def on_asks_for_snapshot(self, connection: Connection, slave: "Node") -> None:
        """Send what is filed, and how it goes on."""
        if self.master is None or not self.accepts:
            connection.close(self)
            return
        if slave.member in self.group.meta.in_sync():
            raise BrokenPromiseError(f"{slave.name} is in sync and takes a snapshot")
        at = self.checkpoint
        starts = [(epoch, start) for epoch, start in self.epochs.all() if start < at]
        self.group.count("snapshot")
        connection.send(self, slave.on_snapshot, connection, at, starts)

    def _lost(self, stream: Stream) -> None:
        self.streams.pop(stream.connection.number, None)
        if self.master is not None:
            number = stream.connection.number
            self.master.members.disconnected(stream.member, number, self.local())

    def _send_on(self, stream: Stream, *, always: bool = False) -> None:
        master, connection = self.master, stream.connection
        if master is None or stream.next < self.base:
            connection.close(self)
            self._lost(stream)
            return
        now = self.local()
        while stream.next < self.end and stream.next - stream.acked < WINDOW:
            behind = min(stream.next + BATCH, self.end)
            records = self._records(stream.next, behind)
            self._send_batches(stream, records, now)
            stream.next = behind
            master.members.sent(stream.member, connection.number, behind)
            always = False
        if always:
            self._send_batches(stream, [], now)

    def _send_batches(
        self, stream: Stream, records: Sequence[tuple[int, Value]], now: float
    ) -> None:
        stream.told, stream.told_at = self.point.committed, now
        stream.connection.send(
            *(self, stream.node.on_batches, stream.connection, stream.next, records),
            (stream.told, now, self.master is not None and not self.master.why_not_act(now)),
        )

    def on_ack(self, stream_of: Connection, slave: Member, ack: Ack) -> None:
        """Take an acknowledgement."""
        stream = self.streams.get(stream_of.number)
        if self.master is None or stream is None:
            return
        before = self.point.committed
        try:
            self.master.members.acknowledged(
                slave,
                stream_of.number,
                end=ack.end,
                applied=ack.applied,
                echo=ack.echo,
                now=self.local(),
            )
        except ProtocolFaultError as error:
            raise BrokenPromiseError(f"{slave.node}: {error}") from error
        stream.acked = max(stream.acked, ack.end)
        self._commit_moved(before)
        self._send_on(stream)

    def on_leaves(self, stream_of: Connection, slave: Member, reason: str) -> None:
        """Hear that a slave cannot append."""
        if self.master is not None:
            self.master.members.leaves(slave, stream_of.number, reason)

    # -- the slave ---------------------------------------------------------------------------

    def _stop_following(self) -> None:
        if self.connection is not None:
            self.connection.close(self)
        self.follower = self.connection = None
        self.voter.to_master.is_connected = False

    def _connect(self) -> None:
        record = self.record
        if record is None or record.master is None or not self.voter.may_follow(record.epoch):
            return
        if record.master[0] == self.name or self.events.now < self.cannot_append_until:
            return
        master = self.group.nodes[record.master[0]]
        self._stop_following()
        if not master.is_up or (self.name, master.name) in self.group.network.cut:
            return
        connection = Connection(self.group.network, self, master)
        self.group.connections.append(connection)
        self.connection, self.heard_master_at = connection, self.local()
        self.voter.to_master.is_connected = True
        connection.on_broken[self.name] = lambda: self._broken(connection)
        self.follower = Follower(epoch=record.epoch, committed=self.point.committed)
        # What is written behind the durable end is asked about when it is durable.
        self.write(lambda: None, lambda: self._ask(connection))

    def _broken(self, connection: Connection) -> None:
        if self.connection is connection:
            self.follower = self.connection = None
            self.voter.to_master.is_connected = False

    def _ask(self, connection: Connection) -> None:
        if self.connection is not connection or self.follower is None:
            return
        question = self.follower.ask(Question(self.synced, self.epochs.before(self.synced)))
        master = self.group.nodes[connection.other(self.name).name]
        connection.send(
            self, master.on_follow, connection, self, self.start, self.follower.epoch, question
        )

    def _snapshot_goes_on(self, connection: Connection) -> None:
        self._follows_by(connection)

    def _follows_by(self, connection: Connection) -> Follower | None:
        if self.connection is not connection or self.follower is None:
            return None
        self.heard_master_at = self.local()
        return self.follower

    def on_matches(self, connection: Connection, question: Question) -> None:
        """Hear that the log is the same as the master's."""
        follower = self._follows_by(connection)
        if follower is not None:
            follower.matches(question)

    def on_other_log(self, connection: Connection, answer: Diverges | Behind) -> None:
        """Hear that the log is another one than the master's: cut, or take a snapshot."""
        follower = self._follows_by(connection)
        if follower is None:
            return
        try:
            cut = follower.diverges(answer, end=self.synced)
        except CutRefusedError as error:
            raise BrokenPromiseError(f"{self.name}: {error}") from error
        if cut is None:
            master = self.group.nodes[connection.other(self.name).name]
            connection.send(self, master.on_asks_for_snapshot, connection, self)
            return
        end = min(cut.end, self.end)
        while end > self.base and self.log[end - 1 - self.base][0] > cut.epoch:
            end -= 1
        self.group.check_cut(self, end)

        def act() -> None:
            del self.log[end - self.base :]
            self.epochs.cut(end)
            self.synced = end
            self.point = CommitPoint(durable=end, committed=self.point.committed, is_sole=False)

        self.write(act, lambda: self._ask(connection))

    def on_snapshot(
        self, connection: Connection, at: int, starts: Sequence[tuple[int, int]]
    ) -> None:
        """Take what is filed in place of the log, when all of it has come."""
        if self._follows_by(connection) is None:
            return

        def whole() -> None:
            if self._follows_by(connection) is None:
                return
            self.log, self.base, self.synced = [], at, at
            self.checkpoint = self.applied = at
            self.epochs = Epochs(starts, first=at)
            self.point = CommitPoint(durable=at, committed=at, is_sole=False)
            assert self.follower is not None
            self.follower = Follower(epoch=self.follower.epoch, committed=at)
            self._ask(connection)

        for seconds in (0.5, 1.0, 1.5, 2.0):
            self.later(seconds, self._snapshot_goes_on, connection)
        self.later(self.events.chance.uniform(0.5, 2.5), whole)

    def on_batches(
        self,
        connection: Connection,
        first: int,
        records: Sequence[tuple[int, Value]],
        head: tuple[int, float, bool],
    ) -> None:
        """Append what comes; `head`: what is committed, the master's time, whether it may send."""
        committed, time, may_send = head
        follower = self._follows_by(connection)
        if follower is None or not self.voter.may_follow(follower.epoch):
            return
        master = self.group.nodes[connection.other(self.name).name]
        if self.events.now < self.cannot_append_until:
            connection.send(self, master.on_leaves, connection, self.member, "its disk is full")
            # It hears nothing more of what comes; what it has said gets through first.
            self.follower = None
            self.later(0.5, self._stop_following)
            return
        is_promised = self.voter.to_master.heard(follower.epoch, self.local(), may_send=may_send)
        goes_on = follower.batches(
            first, first + len(records), committed=committed, time=time, is_promised=is_promised
        )
        if not goes_on:
            self._acknowledge()
            self._count_commit()
            return

        def append() -> None:
            if self.follower is follower and first == self.end:
                for epoch, value in records:
                    self._append(epoch, [value])
                follower.appended(self.end)

        def durable() -> None:
            if self.follower is follower:
                self._acknowledge()
                self._count_commit()

        follower.expects(first + len(records))
        self.write(append, durable)

    def _count_commit(self) -> None:
        assert self.follower is not None
        before = self.point.committed
        self.point.durable_to(self.synced)
        self.point.commit_to(self.follower.committed)
        self._commit_moved(before)

    def _acknowledge(self) -> None:
        connection, follower = self.connection, self.follower
        if connection is None or follower is None or not follower.has_matched:
            return
        master = self.group.nodes[connection.other(self.name).name]
        ack = follower.ack(end=self.synced, applied=self.applied)
        connection.send(self, master.on_ack, connection, self.member, ack)

    # -- what happens again and again --------------------------------------------------------

    def _heartbeat(self) -> None:
        for stream in list(self.streams.values()):
            self._send_on(stream, always=True)
        self._acknowledge()
        now = self.local()
        if self.connection is not None and now - self.heard_master_at > SILENT_S_MAX:
            self._stop_following()
        if self.master is None and self.connection is None:
            self._connect()
        self.later(HEARTBEAT_S, self._heartbeat)

    def _look(self) -> None:
        self.later(0.1, self._look)
        self._keep_house()
        self._say_what_has_changed()
        master, now = self.master, self.local()
        if master is None:
            return
        before = self.point.committed
        wanted = master.look(now, in_flight=len(self.in_flight) + len(self.outcomes))
        self._commit_moved(before)
        self._answer()
        meta, own = self.group.meta, (self.name, self.incarnation)
        if isinstance(wanted, Proposal):
            in_sync = {member.node: member.storage for member in wanted.in_sync}
            pair = (wanted.epoch, wanted.version)
            self.group.network.tell(self, meta, meta.on_alter, own, pair, in_sync)
        elif isinstance(wanted, HandoverRequest):
            pair = (wanted.epoch, wanted.version)
            self.group.network.tell(self, meta, meta.on_hand_over, own, pair, wanted.master.node)
        for decision in master.members.changed(now):
            self.group.count(f"decided: {decision.standing.value}")
        for stream in self.streams.values():
            if stream.told < self.point.committed and now - stream.told_at > 0.02:
                self._send_batches(stream, [], now)
        self._deliver()

    def _deliver(self) -> None:
        """Send what is due, while that may be; the broker has it at once, and answers later."""
        master = self.master
        assert master is not None
        for _ in range(min(len(self.rows), self.group.sent_at_once)):
            reason = master.why_not_send(self.local())
            if reason:
                self.group.count("a tick without sending")
                return
            message = self.rows.popleft()
            if message in self.known:
                continue
            self.known.add(message)
            self.in_flight.add(message)
            self.group.delivered(message, self)
            chance = self.events.chance
            seconds = (
                chance.uniform(0.001, 0.05) if chance.random() < 0.98 else chance.uniform(0.1, 2)
            )
            self.later(seconds, self._outcome, master, message)

    def has_outcome_of(self, message: int) -> bool:
        """Say whether the log has an outcome of a message, or had it."""
        at = self.group.settled_below(message)
        return (at is not None and at < self.base) or any(
            isinstance(value, Facts) and message in value.of for _, value in self.log
        )

    def _outcome(self, master: Master, message: int) -> None:
        if self.master is not master:
            return
        self.in_flight.discard(message)
        self.outcomes.append(message)
        if not self._is_filing_outcomes:
            self._is_filing_outcomes = True
            self.later(0.01, self._keep_outcomes, master)

    def _keep_outcomes(self, master: Master) -> None:
        self._is_filing_outcomes = False
        if self.master is master and self.outcomes:
            facts = Facts(tuple(self.outcomes))
            self.outcomes = []
            self._submit([facts])
