"""The reception: where a receiver is attached, and which message comes next. No I/O.

The masters come from a meta server, or from a list. A shell (shells/receiver.py) moves bytes and
passes the time, as it does for senders (exchange.py): this is a Core of shells/lines.py.
"""

import logging
import math
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from delay_client.exchange.links import LinkState
from delay_client.exchange.meta_link import MetaLink
from delay_client.exchange.talks import MastersTalk
from delay_client.messages.config import named_servers
from delay_client.receiving.attachment import Attachment, Shared
from delay_client.receiving.errors import ReceiverRefusedError
from delay_client.receiving.message import ReceivedMessage
from delay_client.receiving.settings import ReceiverConfig, RetryPolicy
from delay_protocol.basics.errors import LocalProtocolError, MalformedItemError
from delay_protocol.basics.levels import parse_levels
from delay_protocol.basics.printable import printable
from delay_protocol.receivers.attaching import (
    INSTANCE_BYTES,
    Attach,
    Flow,
    encode_attach,
    encode_flow,
)
from delay_protocol.receivers.masters import ReceiverRegister, ReceiverRegistered

logger = logging.getLogger("delaywheel.receiver")

ReceiverLine = Attachment | MetaLink
"""A connection that the shell has to make."""

AttachmentT = TypeVar("AttachmentT", bound=Attachment)

_UNBEGUN_MIN = 64
"""Messages that may be here unbegun, however few handlers there are: quick ones want more."""
_LIMITS = (
    "A receiver has a name of 1 to 255 characters, at most 64 subjects of 1 to 255 characters, "
    "a weight from 1 to 1000, and a token of at most 1000 characters"
)
_ALONE_S = 1.0
"""After so long without a delay server a line says why."""


class Reception:
    """All that a receiver knows, but for its sockets and its handlers."""

    def __init__(
        self,
        name: str,
        *,
        subjects: Sequence[str],
        meta: str | Sequence[str] | None,
        servers: Sequence[str] | None,
        token: str,
        weight: int,
        config: ReceiverConfig,
        chance: random.Random,
        ring: Callable[[], None],
        ends_task: Callable[[BaseException], bool],
    ) -> None:
        """Raise ValueError for a name, subjects or addresses that cannot be."""
        if isinstance(subjects, str):
            raise ValueError(f"subjects={subjects!r}: give a list of subjects")  # noqa: TRY004
        named = named_servers(servers, meta)
        if meta is None and subjects:
            raise ValueError("subjects are registered with a meta server: give meta=")
        instance = chance.randbytes(INSTANCE_BYTES)
        attach = Attach(
            name=name, instance=instance, patterns=tuple(subjects), weight=weight, token=token
        )
        self._name = name
        levels_ms = parse_levels(config.connecting.levels)
        self._shared = Shared(attach, config, chance, ring, ends_task, levels_ms)
        self.expect(config.concurrency)
        self.todo = self._shared.todo
        """Messages that nobody has begun."""
        self.takers = self._shared.takers
        self.counts = self._shared.counts
        self.fault: ReceiverRefusedError | None = None
        """Why it is no use to go on."""
        self.is_stopping = False
        self._attachments: dict[str, Attachment] = {}
        self._waits = ""
        self._is_alone = False
        self._complains_at = math.inf
        """When it is said why there are no messages."""
        self.lines: Sequence[ReceiverLine] = ()
        """The connections that the shell has to make; a new object after each change."""
        self.wake_at = math.inf
        """Call poll() at this time, or before."""
        register = ReceiverRegister(name=name, patterns=tuple(subjects), token=token)
        connecting = config.connecting
        try:
            encode_attach(attach)
            self._talk = MastersTalk(
                register, config=connecting, chance=chance, registered=self._registered
            )
        except LocalProtocolError as error:
            raise ValueError(f"{error}. {_LIMITS}") from error
        self._meta: MetaLink | None = None
        if meta is not None:
            self._meta = MetaLink(meta, self._talk, config=connecting, chance=chance)
        self._attach_to(named)

    @property
    def has_attached(self) -> bool:
        """Whether messages may come from any delay server."""
        return any(attachment.is_attached for attachment in self._attachments.values())

    @property
    def is_settled(self) -> bool:
        """Whether all verdicts that were given were answered, or dropped with their connection."""
        return all(attachment.is_settled for attachment in self._attachments.values())

    def attach_only_to(self, make: Callable[[Shared], AttachmentT]) -> AttachmentT:
        """Make and have the only attachment, which needs no connection: that to a fake cluster."""
        attachment = make(self._shared)
        self._attachments = {attachment.server: attachment}
        self.lines = ()
        return attachment

    # What the user wants.

    def expect(self, at_a_time: int, *, least: int = _UNBEGUN_MIN) -> None:
        """Let twice as many messages wait here for handlers as they begin at a time."""
        shared = self._shared
        shared.backlog = shared.config.credit_items or max(2 * at_a_time, least)
        shared.room = shared.backlog

    def take(self) -> ReceivedMessage | None:
        """Return the next message, decoded; None if there is none. Poison becomes a dead letter."""
        shared = self._shared
        if shared.room < shared.backlog:
            shared.room = min(2 * shared.room + 1, shared.backlog)
            shared.ring()
        while self.todo:
            message = self.todo.popleft()
            message.desk.begin()
            try:
                message.read()
            except MalformedItemError as error:
                self.counts.poison += 1
                logger.error("receiver %s: refused: %s", self._name, error)  # noqa: TRY400
                message.refuse(f"the receiver cannot decode it: {error}")
            else:
                return message
        return None

    def pause(self, reason: str) -> None:
        """Take no messages for now; what nobody has begun goes back. Raises ValueError."""
        flow = Flow(items=0, reason=reason)
        try:
            encode_flow(flow)
        except LocalProtocolError as error:
            raise ValueError(f"a reason has at most 1000 characters: {error}") from error
        self._shared.pause = flow
        self.release(begun=False)
        self._shared.ring()

    def resume(self) -> None:
        """Take messages again."""
        if not self.is_stopping:
            self._shared.pause = None
            self._shared.ring()

    def stop(self) -> None:
        """Take no messages any more; those that are at work get their verdicts."""
        if not self.is_stopping:
            self.is_stopping = True
            self.pause("the receiver stops")

    def release(self, *, begun: bool) -> None:
        """Give back what nobody has begun, or all that has no verdict, as nobody is at work."""
        for attachment in self._attachments.values():
            attachment.release(begun=begun)

    # What happened.

    def wants_connection(self, line: ReceiverLine, now: float) -> bool:
        """Whether the shell should connect this line now."""
        return not self.is_stopping and line.wants_connection(now)

    def connected(self, line: ReceiverLine, now: float) -> None:
        """Note that the shell has connected."""
        line.connected(now)
        self.poll(now)

    def lost(self, line: ReceiverLine, reason: str, now: float) -> None:
        """Note that the connection was lost or could not be made."""
        line.lost(reason, now)
        self.poll(now)

    def received(self, line: ReceiverLine, data: bytes, now: float) -> None:
        """Take bytes that came in."""
        line.received(data, now)
        if isinstance(line, Attachment) and line.refusal is not None:
            self.fault = ReceiverRefusedError(f"{line.server}: {line.refusal}")
        elif self._talk.is_refused:
            self.fault = ReceiverRefusedError(f"the meta server refuses it: {self._talk.refusal}")
        self.poll(now)

    def poll(self, now: float) -> None:
        """Do what has become due."""
        lines = self.lines
        for line in lines:
            line.poll(now)
        gone = [
            server
            for server, attachment in self._attachments.items()
            if attachment.is_retired and attachment.state is LinkState.IDLE
        ]
        for server in gone:
            del self._attachments[server]
        if gone:
            self._list_lines()
        self._complain(now)
        # One that stops connects to nothing any more, so what waits to be connected wakes nobody.
        events = (
            line.next_event()
            for line in lines
            if line.state is not LinkState.IDLE or not self.is_stopping
        )
        self.wake_at = min([self._complains_at, *events])

    # Masters.

    def _registered(self, reply: ReceiverRegistered) -> None:
        """Attach to the masters that a meta server names, and leave others in good order.

        A group without a master keeps the attachment that it had: that may be elected again.
        """
        if self._meta is not None and self._meta.levels_ms is not None:
            self._shared.levels_ms = self._meta.levels_ms
        try:
            self._shared.policy = RetryPolicy.told(reply.retries)
        except ValueError as error:
            logger.warning("receiver %s: its retry policy is none: %s", self._name, error)
        if reply.waits and reply.waits != self._waits:
            logger.warning("receiver %s: %s", self._name, printable(reply.waits))
        self._waits = reply.waits
        masters = {master.address: master.group for master in reply.masters}
        groups = set(masters.values())
        for server, attachment in self._attachments.items():
            is_needed = attachment.is_attached and attachment.group not in groups
            attachment.is_retired = server not in masters and not is_needed
            if attachment.is_retired:
                attachment.release(begun=False)
        self._attach_to([server for server in masters if server not in self._attachments])

    def _attach_to(self, servers: Sequence[str]) -> None:
        """Make attachments; raise ValueError for no address, unless a meta server gave it."""
        for server in servers:
            try:
                self._attachments[server] = Attachment(server, self._shared)
            except ValueError as error:
                if self._meta is None:
                    raise
                logger.warning("receiver %s: %s", self._name, error)
        self._list_lines()

    def _list_lines(self) -> None:
        meta = () if self._meta is None else (self._meta,)
        self.lines = (*meta, *self._attachments.values())

    def _complain(self, now: float) -> None:
        """Log why there are no messages, once each time that there are none for a while."""
        is_alone = not (self.has_attached or self.is_stopping)
        if is_alone and not self._is_alone:
            self._complains_at = now + _ALONE_S
        elif not is_alone:
            self._complains_at = math.inf
        elif now >= self._complains_at:
            self._complains_at = math.inf
            logger.warning("receiver %s: %s", self._name, self._why_alone())
        self._is_alone = is_alone

    def _why_alone(self) -> str:
        if self._talk.refusal:
            return f"the meta server refuses it: {self._talk.refusal}"
        if self._meta is not None and not self._talk.answers:
            trouble = self._meta.trouble or "nothing came"
            return f"no answer from meta server at {self._meta.server} yet: {trouble}"
        troubles = [
            f"{server}: {attachment.trouble or 'nothing came'}"
            for server, attachment in self._attachments.items()
        ]
        return "; ".join(["not attached to any delay server yet", *troubles])
