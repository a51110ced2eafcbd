"""What a master answers to a slave that asks whether their logs are the same."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import UUID

import trio

from delay_protocol.nodes.following import (
    Asked,
    Follow,
    FollowRefused,
    FollowReply,
    LogBehind,
    LogDiverges,
    Matches,
)
from delay_protocol.nodes.registration import REASON_LENGTH_MAX
from delay_transport.seams.runtime import Executor
from replication.commit_queue import READ_WORKER
from replication.core.epochs import Diverges, Epochs, Question
from replication.core.handover import HandoverRequest
from replication.core.in_sync import Proposal
from replication.core.master import Master
from storage.batch.batches import Damage
from storage.disk.errors import DamagedError
from storage.logs.message_log import MessageLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Asks:
    """What the master's side asks of the node that it is in."""

    why_not_follow: Callable[[Follow], str]
    """Says why a start may not follow here; empty if it may."""
    in_flight: Callable[[], int]
    """Returns how many messages are with brokers, and how many outcomes are not durable."""
    change_record: Callable[[Proposal | HandoverRequest], Awaitable[None]]
    """Asks the meta server; what comes of it is told by `recorded`."""
    moved: Callable[[], None]
    """Is called when more may have become committed, or may be told."""
    duty_changed: Callable[[], None]
    """Is called when the master may do something else than before."""
    renew: Callable[[], None]
    """Has the meta server told at once how this node stands, and asked what is so there."""
    lose: Callable[[str], None]
    """Ends the mastership, since it cannot go on."""
    on_damage: Callable[[Damage], None]
    """Called with a part of the log that cannot be read."""

    def note(self, error: DamagedError | OSError) -> None:
        """Note why the log could not be read for a slave, if its bytes are damaged."""
        if isinstance(error, DamagedError):
            self.on_damage(Damage(error.path, error.position, 0, error.reason))


class Questions:
    """Compares the logs of slaves with that of the master, in one epoch."""

    def __init__(
        self,
        master: Master,
        *,
        log: MessageLog,
        log_uuid: UUID,
        epochs: Epochs,
        executor: Executor,
        asks: Asks,
    ) -> None:
        self._master = master
        self._log = log
        self._log_uuid = log_uuid
        self._epochs = epochs
        self._executor = executor
        self._asks = asks
        self._until_durable = trio.lowlevel.ParkingLot()

    def durable(self) -> None:
        """Hear that more is durable here."""
        self._until_durable.unpark_all()

    async def answer(self, follow: Follow) -> FollowReply:
        """Return the answer to a slave, once all that it asks about is durable here."""
        epoch = self._master.record.epoch
        reason = self.why_not(follow)
        if reason:
            return FollowRefused(reason=reason[:REASON_LENGTH_MAX], epoch=epoch)
        asked = follow.asked
        members, log = self._master.members, self._log
        while log.next_sequence < asked.sequence <= members.end:
            # It was sent this while it was being written here.
            await self._until_durable.park()
        self._epochs.first = log.first_sequence
        question = Question(asked.sequence, asked.epoch)
        answer = self._epochs.answer(question, end=members.end)
        if isinstance(answer, Diverges):
            return LogDiverges(asked=asked, epoch=answer.epoch, end=answer.end)
        if answer is not None:
            return LogBehind(asked=asked, first=answer.first)
        return await self._compare(asked)

    async def _compare(self, asked: Asked) -> FollowReply:
        """Answer a slave whose last record is of the same epoch as the one here."""
        log = self._log
        try:
            crc = await self._executor.run(READ_WORKER, log.crc_before, asked.sequence)
        except (DamagedError, OSError) as error:
            self._asks.note(error)
            reason = f"the master cannot read its log: {error}"
            return FollowRefused(reason=reason[:REASON_LENGTH_MAX])
        if crc is None and asked.sequence < log.first_sequence:
            return LogBehind(asked=asked, first=log.first_sequence)
        if asked.sequence == 1 and asked.crc:
            return FollowRefused(reason="an empty log ends with no batch, and so with no CRC")
        if crc != asked.crc:
            # The same place in the same epoch, and not the same bytes.
            return LogDiverges(asked=asked, epoch=asked.epoch, end=asked.sequence - 1)
        return Matches(asked=asked)

    def why_not(self, follow: Follow) -> str:
        """Say why a start may not copy this log; empty if it may."""
        epoch = self._master.record.epoch
        if follow.log_uuid != self._log_uuid:
            return f"its log is {follow.log_uuid}, that of the group is {self._log_uuid}"
        # Only the word of the start that registered last is believed.
        if reason := self._asks.why_not_follow(follow):
            return reason
        if follow.epoch > epoch:
            # The meta server's word ends an epoch, and no other.
            self._asks.renew()
            return f"this node is the master of epoch {epoch}; it asks the meta server for a later"
        if follow.epoch < epoch:
            return f"this node is the master of epoch {epoch}, not {follow.epoch}"
        return ""
