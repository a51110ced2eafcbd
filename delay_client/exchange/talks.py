"""Talks with a meta server: what is asked on a connection, and when. Pure.

RouteTalk    the routes of subjects, for a sender (delay_protocol/meta/session.py)
MastersTalk  where the masters are, told at once and on each change, for receivers and for cancels

Of a MastersTalk one question waits at a time (delay_protocol/receivers/masters.py). The meta server
answers the first at once and holds each further one until there is something new, for HOLD_S at
most.
"""

import logging
import math
import random
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from delay_client.exchange.circuits import pause_s
from delay_client.messages.config import ClientConfig
from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.basics.errors import MalformedMetaError
from delay_protocol.basics.printable import printable
from delay_protocol.meta.requests import encode_client_register
from delay_protocol.meta.session import MetaSession
from delay_protocol.receivers.masters import (
    HOLD_S,
    REPLY_BYTES_MAX,
    ReceiverRefused,
    ReceiverRegister,
    ReceiverRegistered,
    decode_receiver_reply,
    encode_receiver_register,
)
from delay_protocol.wire.frames import FRAME_OVERHEAD, Frame

Question = tuple[CommandCode, bytes, str]
"""Code and body of a request, and what it is about."""


class RouteTalk(MetaSession):
    """A sender's talk: of the routes of its subjects."""

    logger = logging.getLogger("delaywheel.client")
    """Where it is told that the meta server is away."""
    frame_bytes_max = 256 * 1024
    """A larger frame is none of its answers, which have some hundred bytes, some kB with many
    groups."""

    @property
    def is_needed(self) -> bool:
        """True if routes of any subjects are wanted."""
        return len(self) > 0

    def outgoing(self, now: float) -> Sequence[Question]:
        """Return the questions to be sent now."""
        return [
            (CommandCode.CLIENT_REGISTER, encode_client_register(request), request.subject)
            for request in self.next_requests(now)
        ]

    def take(self, frame: Frame, about: str | None, now: float) -> str | None:
        """Take a frame; return the subject if its route has changed by it."""
        return self.answered(about, frame, now)


class MastersTalk:
    """The talk of receivers, and of clients that cancel or move: they have no name."""

    frame_bytes_max = FRAME_OVERHEAD + REPLY_BYTES_MAX

    def __init__(
        self,
        register: ReceiverRegister,
        *,
        config: ClientConfig,
        chance: random.Random,
        registered: Callable[[ReceiverRegistered], None],
    ) -> None:
        """Tell `registered` of each answer that names masters.

        Raises LocalProtocolError for a name or patterns that no question can have.
        """
        encode_receiver_register(register)
        self._register = register
        name = register.name
        self._who = f"receiver {name}" if name else "to cancel or move"
        self.logger = logging.getLogger("delaywheel.receiver" if name else "delaywheel.client")
        self._config = config
        self._chance = chance
        self._registered = registered
        self.is_needed = True
        """False while nobody wants to know; a receiver always does."""
        self.answers = 0
        self.refusal = ""
        """Why the meta server refuses the receiver at present; empty: it does not."""
        self.is_refused = False
        """Whether it was refused for good before it was ever told anything: it was set up wrongly.
        One that has run goes on, and asks again."""
        self._was_told = False
        self._setbacks = 0
        self._told = 0
        self._asks_at = math.inf
        self._answer_by = math.inf
        """While a question waits: when it must have been answered."""

    @property
    def is_told(self) -> bool:
        """True if the last answer is right until the next: the meta server tells of changes."""
        return self._told > 0

    def connected(self, now: float) -> None:
        """Note that there is a new connection, where nothing was told yet."""
        self._told = 0
        self._asks_at = now
        self._answer_by = math.inf

    def disconnected(self, now: float) -> None:  # noqa: ARG002 (as RouteTalk)
        """Note that there is none any more."""
        self._told = 0
        self._asks_at = self._answer_by = math.inf

    def outgoing(self, now: float) -> Sequence[Question]:
        """Return the question to be sent now, if there is one."""
        if now < self._asks_at:
            return ()
        held_s = HOLD_S if self._told else 0.0
        self._answer_by = now + held_s + self._config.meta_answer_timeout_s
        self._asks_at = math.inf
        body = encode_receiver_register(replace(self._register, told=self._told))
        return ((CommandCode.RECEIVER_REGISTER, body, self._register.name),)

    def take(self, frame: Frame, about: str | None, now: float) -> None:
        """Take an answer; ask again at once, or after a pause where it was a refusal."""
        if about is None:
            return
        self._answer_by = math.inf
        self._asks_at = now
        self.answers += 1
        refusal = printable(self._read(frame))
        if refusal and refusal != self.refusal:
            self.logger.warning("%s: the meta server: %s", self._who, refusal)
        self.refusal = refusal
        self._setbacks = self._setbacks + 1 if refusal else 0
        if refusal:
            max_s = self._config.meta_backoff_max_s
            self._asks_at += pause_s(self._setbacks, self._config, self._chance, max_s=max_s)

    def stalls_at(self) -> float:
        """Return when the connection is dead, unless an answer comes before."""
        return self._answer_by

    def next_at(self) -> float:
        """Return when there is something to ask, unless more happens before."""
        return self._asks_at

    def _read(self, frame: Frame) -> str:
        """Return why an answer is a refusal, or "" once what it tells was passed on."""
        if frame.code != ResponseCode.SUCCESS:
            return f"code {frame.code} {frame.body.decode(errors='replace')}".rstrip()
        try:
            reply = decode_receiver_reply(frame.body)
        except MalformedMetaError as error:
            return f"an answer that cannot be read: {error}"
        if isinstance(reply, ReceiverRefused):
            self.is_refused = not self._was_told
            return reply.reason or "no reason"
        self._told = reply.version
        self._was_told = True
        self._registered(reply)
        return ""
