"""Receivers on the port of producers: they attach, say what they take, and settle.

    what comes                                                       answer
    ATTACH at the master                                             attached, or why not
    ATTACH without the token of its name, where there is a secret    refused for good
    ATTACH at another node, or before it is the master               refused, which node is
    FLOW, SETTLE of a connection that is not attached                53, counted as a fault
    FLOW of fewer bytes than the largest item                        the connection is closed
    SETTLE that cannot be read, or whose LATER is not its message    53, nothing of it is done
    SETTLE with a LATER while too few replicas are heard             51, nothing of it is done
    SETTLE otherwise                                                 0 once all is committed, with
                                                                     how many sequences were unknown
    SETTLE that is not committed when the node loses its role        none: the connection is closed

A verdict is believed only on the connection that its message went to. A LATER that finds no disk
space is answered as all else: its message is still there, and comes again sooner than it was to.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import trio

from delay_protocol.basics.codes import CommandCode, ItemCode, ResponseCode
from delay_protocol.basics.errors import BodyError, MalformedMetaError
from delay_protocol.receivers.attaching import (
    CREDIT_BYTES_MIN,
    LEASE_S,
    Attach,
    Attached,
    AttachRefused,
    decode_attach,
    decode_flow,
    encode_attach_reply,
)
from delay_protocol.receivers.delivering import (
    Settled,
    Verdict,
    decode_settle,
    encode_settle_reply,
)
from delay_protocol.wire.frames import Frame
from delay_server.duty import Duty
from delay_server.mastership import Mastership
from delay_server.receiving.moves import NotMovableError
from delay_transport.connections.connection import Connection
from delay_transport.http.credentials import Credentials
from sender.groups.attached import AttachedGroup
from sender.groups.members import Attachment
from sender.outcomes.dead import Refusal
from sender.queues.parcels import Batch, Parcel, joined
from sender.settings.errors import GroupRefusedError


@dataclass(frozen=True, slots=True)
class _Member:
    """A connection that is attached."""

    master: Mastership
    group: AttachedGroup
    attachment: Attachment


@dataclass(eq=False, slots=True)
class _Settling:
    """A SETTLE that is answered once all that it says is committed."""

    connection: Connection
    frame: Frame
    unknown: int = 0
    waits: int = 1
    """How many parts of it have not come to their end; one is whoever reads it."""


class Receivers:
    """The connections of receivers, at whichever mastership there is."""

    def __init__(
        self,
        *,
        mastership: Callable[[], Mastership | None],
        duty: Callable[[], Duty],
        now_ms: Callable[[], int],
        credentials: Credentials,
    ) -> None:
        self._mastership = mastership
        self._duty = duty
        self._now_ms = now_ms
        self._credentials = credentials
        self._members: dict[Connection, _Member] = {}
        self._settling: set[_Settling] = set()
        self._went_on = trio.lowlevel.ParkingLot()
        """Unparked when something is answered, or a receiver is gone."""

    def take(self, connection: Connection, frame: Frame) -> None:
        """Take an ATTACH, a FLOW or a SETTLE."""
        try:
            if frame.code == CommandCode.ATTACH:
                self._attach(connection, frame)
            elif (member := self._members.get(connection)) is None:
                self._refuse(connection, frame, "this connection is not attached: ATTACH first")
            elif frame.code == CommandCode.FLOW:
                self._flow(member, frame)
            else:
                self._settle(member, connection, frame)
        except (BodyError, NotMovableError) as error:
            self._refuse(connection, frame, str(error))

    def _refuse(self, connection: Connection, frame: Frame, reason: str) -> None:
        connection.fault()
        connection.warn("a receiver's request was refused", code=frame.code, reason=reason)
        connection.answer(frame, ResponseCode.PARAM_ERROR, reason.encode())

    def closed(self, connection: Connection, reason: str) -> None:
        """Give what a connection has not settled to others."""
        member = self._members.pop(connection, None)
        if member is not None:
            member.group.detach(member.attachment, reason)
            self._went_on.unpark_all()

    async def stop(self) -> None:
        """Have nothing more delivered, and wait until all that was is settled and answered."""
        for member in self._members.values():
            member.group.stop()
        while self._settling or any(one.attachment.unsettled for one in self._members.values()):
            await self._went_on.park()

    def drop(self) -> None:
        """Let all receivers go, since this node is the master no more."""
        for settling in self._settling:
            # The next master may know what it says, or not.
            settling.connection.done(1, len(settling.frame.body))
        self._settling.clear()
        for connection in list(self._members):
            connection.close("this node is the master no more")

    # -- ATTACH and FLOW ---------------------------------------------------------------------

    def _attach(self, connection: Connection, frame: Frame) -> None:
        attach = decode_attach(frame.body)
        master, duty = self._mastership(), self._duty()
        if connection in self._members:
            self._refuse(connection, frame, "this connection is attached already")
            return
        reason, is_final = self._credentials.why_not_receive(attach.name, attach.token)
        if reason:
            if is_final:
                connection.fault()
            body = _refused(reason, is_final=is_final)
        elif master is None or duty.leaves_due:
            why = duty.remark or "; ".join(duty.why) or "this node is not the master"
            body = _refused(why)
        elif not attach.name.isprintable() or "%" in attach.name:
            reason = f"{attach.name!a} cannot be shown, or has a % in it: choose another"
            body = _refused(reason, is_final=True)
        else:
            try:
                body = self._attached(master, connection, attach)
            except GroupRefusedError as error:
                body = _refused(str(error))
        connection.answer(frame, ResponseCode.SUCCESS, body)

    def _attached(self, master: Mastership, connection: Connection, attach: Attach) -> bytes:
        if master.targets.routes is None:
            known = [one.name for one in master.sender.status()]
            if attach.name not in known:
                raise GroupRefusedError(f"this server delivers to {', '.join(known)} alone")
            if attach.patterns:
                raise GroupRefusedError("this server has no routes: attach without subjects")
        group = master.sender.attached(attach.name)
        self._members[connection] = _Member(master, group, group.attach(connection, attach))
        hello = master.hello()
        return encode_attach_reply(
            Attached(group=hello.group, epoch=hello.epoch, lease_s=LEASE_S, now_ms=self._now_ms())
        )

    def _flow(self, member: _Member, frame: Frame) -> None:
        flow = decode_flow(frame.body)
        if flow.items and flow.bytes < CREDIT_BYTES_MIN:
            member.attachment.connection.close(
                f"a FLOW of {flow.bytes} bytes: at least {CREDIT_BYTES_MIN}, or no items"
            )
        else:
            member.group.flow(member.attachment, flow)

    # -- SETTLE ------------------------------------------------------------------------------

    def _settle(self, member: _Member, connection: Connection, frame: Frame) -> None:
        by_verdict: dict[Verdict, list[Settled]] = {verdict: [] for verdict in Verdict}
        settled = decode_settle(frame.body)
        if len({one.sequence for one in settled}) < len(settled):
            raise MalformedMetaError("a SETTLE names a sequence twice")
        for one in settled:
            by_verdict[Verdict(one.verdict)].append(one)
        group, attachment, master = member.group, member.attachment, member.master
        unsettled = attachment.unsettled
        known = [one for one in by_verdict[Verdict.LATER] if one.sequence in unsettled]
        # Only that: what takes the place of a message is none that comes in addition.
        if known and (why := self._duty().appends_wait):
            connection.answer(frame, ResponseCode.BROKER_ERROR, why.encode())
            return
        # Before anything is done, since it may be refused.
        planned = []
        if known:
            batch = joined([_parcel_of(*unsettled[one.sequence]) for one in known])
            planned = master.moves.plan(batch, [one.rest for one in known], group.name)

        connection.begin(1, len(frame.body))
        settling = _Settling(connection, frame)
        self._settling.add(settling)
        is_committed = partial(self._ended, settling)
        batches, unknown = group.take(
            attachment, _sequences(by_verdict[Verdict.LATER]), refused=False
        )
        for batch in batches:
            master.sender.forget(batch.entries)
        settling.waits += len(planned)
        master.moves.move(planned, is_committed)
        for one in by_verdict[Verdict.REFUSED]:
            batches, missed = group.take(attachment, [one.sequence], refused=True)
            unknown += missed
            for batch in batches:
                settling.waits += 1
                refusal = Refusal(
                    group.name, int(ItemCode.BLOCK), self._now_ms(), 1, said=_text(one)
                )
                _give_up(master, batch, refusal, is_committed)
        if done := _sequences(by_verdict[Verdict.DONE]):
            unknown += group.done(attachment, done)
            settling.waits += 1
            master.fact_recorder.when_committed(is_committed)
        unknown += group.release(attachment, _sequences(by_verdict[Verdict.RELEASE]))
        settling.unknown = unknown
        self._ended(settling)

    def _ended(self, settling: _Settling) -> None:
        """Hear that a part of a SETTLE is brought to its end."""
        settling.waits -= 1
        if settling.waits or settling not in self._settling:
            return
        self._settling.discard(settling)
        connection, frame = settling.connection, settling.frame
        body = encode_settle_reply(settling.unknown, self._now_ms())
        connection.answer(frame, ResponseCode.SUCCESS, body)
        connection.done(1, len(frame.body))
        self._went_on.unpark_all()


def _refused(reason: str, *, is_final: bool = False) -> bytes:
    return encode_attach_reply(AttachRefused(reason=reason, is_final=is_final))


def _sequences(settled: Sequence[Settled]) -> list[int]:
    return [one.sequence for one in settled]


def _text(settled: Settled) -> str:
    return settled.rest.decode(errors="replace")


def _parcel_of(batch: Batch, place: int) -> Parcel:
    """Return one message of a delivery."""
    mask = np.zeros(len(batch), np.bool_)
    mask[place] = True
    (parcel,) = batch.where(mask).by_lane()
    return parcel


def _give_up(master: Mastership, batch: Batch, refusal: Refusal, told: Callable[[], None]) -> None:
    """Make a dead letter of one message; where there are too many it comes again much later."""
    if master.sender.gives_up:
        master.sender.forget(batch.entries)
        master.give_up(batch.entries, [refusal], [int(batch.tries[0]) + 1], told)
    else:
        master.sender.try_later(batch)
        told()
