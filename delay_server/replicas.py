"""A node's part in its group: it follows and votes until it is the master, then it is followed.

    the record says           the node
    another start is master   follows it: appends, acknowledges, files
    nobody is, in epoch e     votes when asked, once its promise to the last master has run out
    this start is the master  begins the epoch, and serves those who follow

The newest record and each promise are durable before anything follows from them. Roles change in
the process: from slave to master with the directory open, by what the log has beyond what is filed;
back by closing the directory and opening it, as after a cut and after a copy.
"""

import math
import random
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final
from uuid import UUID

import msgspec
import structlog
import trio

from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.basics.errors import MalformedMetaError
from delay_protocol.nodes.following import (
    Asked,
    Follow,
    FollowRefused,
    decode_follow,
    encode_follow_reply,
)
from delay_protocol.nodes.group_changes import Alter, HandOver, Vote
from delay_protocol.nodes.registration import (
    GroupMember,
    GroupRecord,
    NodeRegister,
    Stands,
    Told,
    is_older,
)
from delay_protocol.nodes.snapshots import (
    decode_snapshot_read,
    encode_read_reply,
    encode_snapshot_reply,
)
from delay_protocol.wire.frames import Frame
from delay_server.accepting.commits import MESSAGE_WORKER
from delay_server.damages import Damages
from delay_server.filing.checkpoints import SCHEDULE_WORKER
from delay_server.filing.filer import Filed, Filer
from delay_server.filing.splitter import Splitter
from delay_server.membership.registration import GroupNews, Registration
from delay_server.settings.errors import FencedError
from delay_transport.connections.connection import Connection
from delay_transport.connections.request_client import RequestConnection
from delay_transport.http.credentials import Credentials, UnauthenticatedError
from delay_transport.meta.requests import MetaRefusedError
from delay_transport.meta.talk import Talk, prove
from delay_transport.seams.errors import AddressError, TransportError
from delay_transport.seams.outbox import Wakeup
from delay_transport.seams.runtime import Executor, Runtime, parse_peer_address
from delay_transport.seams.trouble import Trouble
from replication.commit_queue import READ_BYTES, CommitQueue
from replication.core.commit_point import CommitPoint
from replication.core.follower import Cut
from replication.core.handover import HandoverRequest
from replication.core.in_sync import Proposal
from replication.core.record import Member
from replication.core.voter import Later, Promise, Refusal, Voter
from replication.following import Copy, Following
from replication.leading import Leading, answer_of
from replication.records import record_of
from replication.snapshots import SnapshotCopy, SnapshotRefusedError
from storage.batch.batches import Damage
from storage.disk.errors import CopyRefusedError, StorageFullError
from storage.logs.message_log import MESSAGE_LOG_DIRECTORY
from storage.node.store import Store
from storage.state.checkpoint import Checkpoint
from storage.state.identity import Identity
from storage.state.promise_file import Promised, PromiseFile

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

PROMISE_WORKER: Final = "promise"
_AGAIN_S: Final = 0.5
"""Pause before something is asked again of a meta server, or of a master that is not there."""


GATHER_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of rows that a slave writes together: writing them takes three times as many, and a slave
that catches up does nothing else."""


def queue_of(
    store: Store,
    filer: Filer,
    point: CommitPoint,
    *,
    executor: Executor,
) -> CommitQueue:
    """Return what hands on what is committed to be filed, beginning behind what is filed."""
    return CommitQueue(
        store.message_log,
        point,
        first=store.schedule.last_filed + 1,
        executor=executor,
        submit=filer.submit,
        has_room=lambda: filer.has_room and filer.backlog_bytes <= READ_BYTES,
        on_damage=store.schedule.on_damage,
    )


class NobodyTakes:
    """What is filed is held for delivery by nobody: this node sends nothing."""

    gather_bytes_max = GATHER_BYTES_MAX

    async def take_filed(self, filed: Filed) -> None:
        """Leave it on disk."""

    async def filed(self, filed: Filed) -> None:
        """Go on."""


class Replica:
    """What a node has promised, whom it follows, and who follows it."""

    def __init__(
        self,
        *,
        store: Store,
        promised: Promised,
        filer: Filer,
        splitter: Splitter,
        damages: Damages,
        runtime: Runtime,
        register: Callable[[], NodeRegister],
        why_full: Callable[[], str],
        appended: Callable[[], None],
        lose: Callable[[FencedError], None],
        read_secret: Callable[[], Awaitable[bytes | None]],
        chance: random.Random,
    ) -> None:
        """Go on from what is promised.

        register: returns what this start says of itself; why_full: says why nothing more can be
        kept, empty if it can; appended: hears of each append of a slave; lose: ends the
        mastership; read_secret: returns what is to be proved to a master, None where nothing is.
        """
        self._store = store
        self._filer = filer
        self._splitter = splitter
        self._damages = damages
        self._runtime = runtime
        self._register = register
        self._why_full = why_full
        self._appended = appended
        self._lose = lose
        self._read_secret = read_secret
        self._chance = chance
        self._file = PromiseFile(store.disk, store.identity.storage_uuid)
        self.newest = self._kept = msgspec.json.decode(promised.told, type=Told | None)
        """The newest that this disk was told, and the newest of that that is durable here."""
        told = None if self._kept is None else record_of(self._kept.record)
        self.voter = Voter(Promise(promised.epoch, told), now=self.now)
        self.registration: Registration | None = None
        """Set once there is one."""
        self.record: GroupRecord | None = None
        """The newest that is durable here."""
        self.leading: Leading | None = None
        """Set by the node while it is the master."""
        self.following: Following | None = None
        """While it follows."""
        self._stood = "it has not asked yet"
        """How it stood when it followed last."""
        self.snapshot: SnapshotCopy | None = None
        """While it copies one."""
        self.copied: Checkpoint | None = None
        """That of a snapshot that was copied; the directory is to become it."""
        self._news: GroupNews | None = None
        self._vote_epoch = 0
        self._gone = 0
        """The epoch of a master of which the start is gone, by who asks for the vote."""
        self._voted = 0
        self._trouble = Trouble()
        self._changed = Wakeup()
        self._scope = trio.CancelScope()
        self._hand_over = "", ""
        """To which node it was asked to hand over last, and why."""
        self._is_cut = False
        """True once the log was cut: what is in memory of it is not to be gone by."""
        self._group_log: UUID | None = None

    @property
    def now(self) -> float:
        """The boot clock in seconds."""
        return self._runtime.clock.boot_ms() / 1000

    @property
    def own(self) -> Member:
        """The node with its disk."""
        identity = self._store.identity
        return Member(identity.node_id, identity.storage_uuid)

    @property
    def master_elsewhere(self) -> str:
        """Which other node is the master, for producers; empty if none is known."""
        registration = self.registration
        if registration is None or registration.permission is None:
            return ""
        master = registration.permission.record.master
        if master is None or master.node_id == self.own.node:
            return ""
        member = registration.members.get(master.node_id)
        where = "" if member is None else f" at {member.address}"
        return f"the master of this group is {master.node_id}{where}"

    @property
    def copy_fault(self) -> str:
        """Why its group does not count on the copy of this node, a slave; empty if it does."""
        following = self.following
        if fault := self._damages.fault:
            return f"its copy is not whole: {fault} {self._damages.hindrance}".rstrip()
        if following is None or not following.is_matched:
            return f"this node does not follow its master: {self.standing}"
        if not self.is_counted:
            return (
                "the disk of this node is not in sync with its group: the status of the master "
                "says why"
            )
        return ""

    @property
    def is_counted(self) -> bool:
        """True if the record that is durable here has its disk in sync."""
        return self.record is not None and self.own.storage in self.record.in_sync.values()

    @property
    def copies_anew(self) -> bool:
        """True if its files are damaged, and it is a slave that nobody counts on.

        That is by the newest record that it was told, durable here.
        """
        is_slave = bool(self.master_elsewhere) and self.record is not None
        is_out = self._news is None and not self.is_counted
        return is_slave and is_out and self._damages.may_copy_anew(self._store)

    @property
    def standing(self) -> str:
        """Why it does not follow, in a sentence; empty if it does, or is the master."""
        if self.leading is not None:
            return ""
        if self.following is not None:
            return self.following.standing
        return self._stood if self.master_elsewhere else "no master is known"

    # -- what the meta server says ---------------------------------------------------------------

    def told(self, news: GroupNews) -> None:
        """Hear of the group; acted upon once it is durable.

        An older record, or another one of the same epoch and version, is that of a store that was
        set back: nothing said with it is taken.
        """
        if self.newest is not None and is_older(news.record, self.newest.record):
            return
        self.newest = Told(record=news.record, nodes=tuple(sorted(news.members)))
        asked, leading = news.asked, self.leading
        if leading is not None and news.record.epoch == leading.master.record.epoch:
            leading.recorded(record_of(news.record))
        if asked is not None:
            self._vote_epoch, self._gone = asked.vote_epoch, asked.gone
            if asked.vote_epoch:
                # Whoever asks again has forgotten the vote.
                self._voted = min(self._voted, asked.vote_epoch - 1)
            # The next master may be in sync by this very record.
            self._hear_of_handover(asked.hand_over_to, asked.hand_over_why)
        if news.log_uuid is not None:
            self._group_log = news.log_uuid
        self._news = news
        self._wake()

    @property
    def other_log(self) -> UUID | None:
        """The uuid of the group's log where this node has another one, without any record."""
        log_uuid = self._group_log
        is_other = log_uuid not in {None, self._store.identity.log_uuid}
        return log_uuid if is_other and self._store.message_log.next_sequence == 1 else None

    def _hear_of_handover(self, to: str, why: str) -> None:
        """Begin to hand over, if that is asked; once for each time."""
        before, self._hand_over = self._hand_over, (to, why)
        if to and before != (to, why) and self.leading is not None:
            refused = self.leading.hand_over(to)
            log = _log.warning if refused else _log.info
            log("this node is to hand the group over", to=to, reason=why, refused=refused)

    def stands(self) -> Stands:
        """Return how this node stands in its group."""
        now, leading, promise = self.now, self.leading, self.voter.to_master
        hears, hears_sender = promise.hears(now)
        if leading is None:
            return Stands(
                hears=hears, hears_sender=hears_sender, vote_in_s=max(promise.until - now, 0.0)
            )
        return Stands(
            may_send=not leading.master.why_not_act(now),
            lacks_promises_s=leading.master.lacks_promises_s(now),
            hears_nobody=leading.master.members.hears_nobody(now),
        )

    def says_else_in(self) -> float:
        """Return after how many seconds it stands in another way, if it hears nothing."""
        left = self.voter.to_master.until - self.now
        return left if left > 0 else math.inf

    def lose(self, error: FencedError) -> None:
        """End the mastership."""
        self._lose(error)

    def _wake(self) -> None:
        """Have whoever follows or waits look what has changed."""
        self._changed.wake()
        if self._must_stop_following():
            self._scope.cancel()

    def _must_stop_following(self) -> bool:
        news, record = self._news, self.record
        if self._vote_epoch > self._voted and self._vote_epoch >= self.voter.promise.epoch:
            return self._vote_in_s() <= 0
        if news is None or record is None:
            return False
        return news.record.epoch > record.epoch or news.record.master != record.master

    async def run_told(self) -> None:
        """Make the newest record durable while this node is the master."""
        while True:
            await self._take_news()
            await self._changed.sleep()

    async def _take_news(self) -> None:
        """Make what was told durable, and act by it from now on."""
        while (news := self._news) is not None:
            self._news, told = None, self.newest
            change = self.voter.told(record_of(news.record))
            if told != self._kept:
                await self._keep(change or self.voter.promise, told)
            self.record = news.record

    async def _keep(self, promise: Promise, told: Told | None) -> None:
        """Make a promise durable; StorageFullError ends the process, which must not forget it."""
        kept = Promised(epoch=promise.epoch, told=msgspec.Raw(msgspec.json.encode(told)))
        with trio.CancelScope(shield=True):
            await self._runtime.executor.run(PROMISE_WORKER, self._file.write, kept)
        self._kept = told

    # -- until it is the master ------------------------------------------------------------------

    async def until_master(self, point: CommitPoint, *, now_ms: int) -> bool:
        """Follow, vote and file until the record names this start as the master.

        False: the directory is to be closed and opened first, since its log was cut, it has copied
        a snapshot, or has no records and its group has another log. Raises CutRefusedError, with
        nothing changed.
        """
        run, store = self._runtime.executor.run, self._store
        await run(SCHEDULE_WORKER, partial(store.apply_tail, point.committed, now_ms=now_ms))
        point.commit_to(store.schedule.last_filed + 1)
        queue = queue_of(store, self._filer, point, executor=self._runtime.executor)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._filer.run, NobodyTakes())
            nursery.start_soon(self._splitter.run)
            nursery.start_soon(queue.run)
            self._filer.on_room = queue.look_again
            comes = await self._follow_and_vote(point, queue)
            nursery.cancel_scope.cancel()
        return comes

    async def _follow_and_vote(self, point: CommitPoint, queue: CommitQueue) -> bool:
        while True:
            await self._take_news()
            if self._is_cut or self.copied is not None or self.other_log or self.copies_anew:
                return False
            if self._vote_epoch > self._voted and await self._vote():
                continue
            record = self.record
            if record is not None and self._is_master(record):
                if queue.next >= point.committed and not self._filer.backlog_bytes:
                    return True
                # What is committed is filed first; meanwhile there may be another master.
                with trio.move_on_after(_FILED_LOOK_S):
                    await self._changed.sleep()
                continue
            master = None if record is None else record.master
            address = self._address_of(record)
            if record is None or master is None or not address:
                with trio.move_on_after(_AGAIN_S):
                    await self._changed.sleep()
                continue
            await self._follow(record, address, point, queue)

    def _is_master(self, record: GroupRecord) -> bool:
        """Say whether the record names this start, and nothing that it has promised forbids it."""
        permission = None if self.registration is None else self.registration.permission
        return (
            permission is not None
            and permission.delivers
            and permission.record.epoch == record.epoch
            and self.voter.may_follow(record.epoch)
        )

    def _address_of(self, record: GroupRecord | None) -> str:
        """Return where the master of a record serves replicas; empty if it may not be asked."""
        if record is None or record.master is None or self.registration is None:
            return ""
        name = record.master.node_id
        member = self.registration.members.get(name)
        if member is None or name == self.own.node or not self.voter.may_follow(record.epoch):
            return ""
        return member.address

    # -- votes -----------------------------------------------------------------------------------

    def _vote_in_s(self) -> float:
        """Return for how many seconds what was promised keeps this node from the vote asked for."""
        promise, gone = self.voter.to_master, self._gone
        if gone and promise.still_hears(gone, self.now):
            self._trouble.log(
                _log.error,
                "the start of the master is said to be gone, and still speaks: are there two "
                "processes with one directory?",
                epoch=gone,
            )
        return promise.asked_to_vote(self._vote_epoch, self.now, gone=gone)

    async def _vote(self) -> bool:
        """Vote, if that may be now; True if something has come of it."""
        epoch, registration = self._vote_epoch, self.registration
        answer = self.voter.asked(epoch, self.now, gone=self._gone)
        if isinstance(answer, Refusal):
            _log.warning("this node does not vote", epoch=epoch, reason=answer.sentence)
            self._voted = epoch
            return True
        if isinstance(answer, Later) or registration is None:
            return False
        await self._keep(answer, self._kept)
        log, identity = self._store.message_log, self._store.identity
        vote = Vote(
            epoch=epoch,
            last_epoch=log.last_epoch,
            end=log.next_sequence,
            applied=self._store.schedule.last_filed + 1,
        )
        try:
            reply = await registration.change(vote)
        except FencedError as error:
            self._lose(error)
            return True
        except (TransportError, MetaRefusedError, MalformedMetaError) as error:
            self._trouble.log(_log.warning, "could not vote", epoch=epoch, reason=str(error))
            await trio.sleep(_AGAIN_S)
            return True
        self._voted = epoch
        _log.info(
            "this node voted",
            node=identity.node_id,
            epoch=epoch,
            end=vote.end,
            refused=reply.refusal,
        )
        self.told(GroupNews(reply.record, registration.members))
        return True

    # -- following -------------------------------------------------------------------------------

    async def _follow(
        self, record: GroupRecord, address: str, point: CommitPoint, queue: CommitQueue
    ) -> None:
        """Follow the master of a record until there is another one, or a vote is asked."""
        store, runtime = self._store, self._runtime
        try:
            where = parse_peer_address(address)
        except AddressError as error:
            self._trouble.log(_log.error, "the master has no usable address", reason=str(error))
            await trio.sleep(_AGAIN_S)
            return
        copy = Copy(
            log=store.message_log,
            worker=MESSAGE_WORKER,
            point=point,
            queue=queue,
            promise=self.voter.to_master,
            applied=lambda: store.schedule.last_filed + 1,
            why_full=self._why_full,
            damage=lambda: self._damages.fault,
            cut=self._cut,
            behind=self._behind,
            appended=self._appended,
        )
        self.following = following = Following(
            copy,
            epoch=record.epoch,
            follow=lambda asked: question_of(self._register(), record.epoch, asked),
            talk=self._talk,
            executor=runtime.executor,
            clock=runtime.clock,
            network=runtime.network,
        )
        try:
            with trio.CancelScope() as self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._look_for_votes)
                    await following.run(where)
                    nursery.cancel_scope.cancel()
        finally:
            self._stood = following.standing or "it has stopped to"
            self.following = None

    async def _look_for_votes(self) -> None:
        """End following when a vote that was asked for may be given, or the news ask for it."""
        while True:
            if self._vote_epoch > self._voted:
                wait_s = self._vote_in_s()
                if wait_s <= 0:
                    self._scope.cancel()
                await trio.sleep(max(wait_s, _VOTE_LOOK_S))
            else:
                if self._news is not None and not self._must_stop_following():
                    await self._take_news()
                if self.copies_anew:
                    self._scope.cancel()
                with trio.move_on_after(_AGAIN_S):
                    await self._changed.sleep()

    async def _talk(self, connection: RequestConnection) -> Talk:
        """Begin to talk with a master, which has the secret if this node has it."""
        secret = await self._read_secret()
        return await prove(
            connection, secret, chance=self._chance, timeout_s=_PROOF_S_MAX, who="the master"
        )

    async def _cut(self, cut: Cut, committed: int) -> range:
        """Cut the log, where nothing else writes to it; the directory is opened anew then."""
        applied = self._store.schedule.last_filed
        assert committed > applied, f"a cut down to {committed}, and {applied} is applied"
        log = self._store.message_log
        act = partial(log.cut_to, cut.epoch, cut.end, not_below=committed)
        # Whatever comes in between: nothing goes on from a log that was cut.
        self._is_cut = True
        return await self._runtime.executor.run(MESSAGE_WORKER, act)

    async def _behind(self, talk: Talk, follow: bytes, first: int) -> str:
        """Copy a snapshot into a directory that has no records, and is not counted as in sync.

        One that has records is given up, as a damaged one is: it lacks what it cannot copy.
        """
        store = self._store
        last = store.message_log.next_sequence - 1
        behind = f"its log ends with record {last}, and the master's begins with {first}"
        if self.record is None or self.is_counted:
            return f"{behind}: its disk counts as in sync, so hand over to another node"
        if store.has_records:
            self._damages.note(Damage(MESSAGE_LOG_DIRECTORY, 0, 0, behind))
            return behind
        assert self.following is not None
        self.following.standing = "its log ends before the master's begins: it copies a snapshot"
        self.snapshot = snapshot = SnapshotCopy(
            disk=store.disk,
            log_uuid=store.identity.log_uuid,
            executor=self._runtime.executor,
            on_damage=self._damages.note_copied,
            why_full=self._why_full,
        )
        try:
            self.copied = await snapshot.run(talk, follow)
        except (SnapshotRefusedError, CopyRefusedError) as error:
            return f"no snapshot was copied: {error}"
        except StorageFullError as error:
            return f"no disk space for a snapshot: {error}"
        finally:
            self.snapshot = None
        return ""

    # -- leading ---------------------------------------------------------------------------------

    async def change_record(self, wanted: Proposal | HandoverRequest) -> None:
        """Ask the meta server for what the core wants of it."""
        registration, leading = self.registration, self.leading
        if registration is None or leading is None:
            return
        try:
            reply = await registration.change(_change_of(wanted))
        except FencedError as error:
            self._lose(error)
            return
        except (TransportError, MetaRefusedError, MalformedMetaError) as error:
            self._trouble.log(_log.warning, "the group was not changed", reason=str(error))
            await trio.sleep(_AGAIN_S)
            return
        self.told(GroupNews(reply.record, registration.members))
        if reply.refusal:
            self._trouble.log(_log.warning, "a change was refused", reason=reply.refusal)
            await trio.sleep(_AGAIN_S)

    def why_not_follow(self, follow: Follow) -> str:
        """Say why a start may not follow this node; empty if it may."""
        registration = self.registration
        members = {} if registration is None else registration.members
        reason = _why_no_member(follow, self._store.identity, members)
        if reason and registration is not None:
            # It may have registered since.
            registration.renew()
        return reason


_VOTE_LOOK_S: Final = 0.05
_FILED_LOOK_S: Final = 0.01
"""How often a node that is to be the master looks whether all that is committed is filed."""
_PROOF_S_MAX: Final = 5.0
"""Seconds for the answer of a master to a challenge."""


_NO_MASTER: Final = FollowRefused(reason="this node is not the master of its group")


class Slaves:
    """Takes what slaves say on the port of producers: hands each one to whoever leads."""

    def __init__(self, leading: Callable[[], Leading | None], credentials: Credentials) -> None:
        self._leading = leading
        self._credentials = credentials
        self._unproven = Trouble(again_s=60.0)

    def take(self, connection: Connection, frame: Frame) -> None:
        """Take what a slave says."""
        try:
            self._take(connection, frame)
        except UnauthenticatedError as error:
            connection.fault()
            why = str(error)
            self._unproven.log(connection.warn, "a slave does not prove the secret", reason=why)
            connection.answer(frame, ResponseCode.UNAUTHENTICATED, why.encode())
        except MalformedMetaError as error:
            connection.fault()
            connection.close(str(error))

    def _take(self, connection: Connection, frame: Frame) -> None:
        leading = self._leading()
        if frame.code == CommandCode.NODE_CHALLENGE:
            answer = self._credentials.challenge(connection, frame.body)
            connection.answer(frame, ResponseCode.SUCCESS, answer)
        elif frame.code == CommandCode.FOLLOW:
            body, seal = self._credentials.open(connection, frame.code, frame.body)
            follow = decode_follow(body)
            reply = answer_of(connection, frame, seal, encode_follow_reply)
            if leading is None:
                reply(_NO_MASTER)
            else:
                leading.follows(connection, follow, reply)
        elif frame.code in {CommandCode.SNAPSHOT, CommandCode.SNAPSHOT_READ}:
            self._take_of_snapshot(leading, connection, frame)
        elif frame.code in {CommandCode.ACK, CommandCode.LEAVE} and leading is not None:
            leading.take(connection, frame)
        else:
            connection.fault()
            connection.close("no slave of this node")

    def _take_of_snapshot(
        self, leading: Leading | None, connection: Connection, frame: Frame
    ) -> None:
        body, seal = self._credentials.open(connection, frame.code, frame.body)
        begun = answer_of(connection, frame, seal, encode_snapshot_reply)
        if leading is None:
            begun(_NO_MASTER)
        elif frame.code == CommandCode.SNAPSHOT:
            leading.begin_snapshot(connection, decode_follow(body), begun)
        else:
            read = answer_of(connection, frame, seal, encode_read_reply)
            leading.read_snapshot(connection, decode_snapshot_read(body), read)

    def closed(self, connection: Connection, reason: str) -> None:
        """Hear that a connection is gone."""
        self._credentials.forget(connection)
        leading = self._leading()
        if leading is not None:
            leading.closed(connection, reason)


def question_of(said: NodeRegister, epoch: int, asked: Asked) -> Follow:
    """Return what a start asks the master of an epoch."""
    return Follow(
        cluster=said.cluster,
        group=said.group,
        node_id=said.node_id,
        storage_uuid=said.storage_uuid,
        incarnation=said.incarnation,
        boot_id=said.boot_id,
        log_uuid=said.log_uuid,
        epoch=epoch,
        asked=asked,
    )


def _change_of(wanted: Proposal | HandoverRequest) -> Alter | HandOver:
    """Return what the core wants as the meta server is asked for it."""
    if isinstance(wanted, HandoverRequest):
        return HandOver(epoch=wanted.epoch, version=wanted.version, target=wanted.master.node)
    in_sync = {member.node: member.storage for member in sorted(wanted.in_sync)}
    return Alter(epoch=wanted.epoch, version=wanted.version, in_sync=in_sync)


def _why_no_member(follow: Follow, own: Identity, members: Mapping[str, GroupMember]) -> str:
    """Say why a start is none that is registered in this node's group; empty if it is one."""
    if (follow.cluster, follow.group) != (own.cluster, own.group):
        return f"this is {own.group} of {own.cluster}, not {follow.group} of {follow.cluster}"
    known = members.get(follow.node_id)
    if follow.node_id == own.node_id or known is None:
        return f"{follow.node_id} is not registered as a node of {own.group}"
    start = (follow.storage_uuid, follow.incarnation, follow.boot_id)
    if start != (known.storage_uuid, known.incarnation, known.boot_id):
        return (
            f"{follow.node_id} is registered by another start, incarnation {known.incarnation}; "
            f"this one is {follow.incarnation}"
        )
    return ""
