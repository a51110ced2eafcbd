"""How a request is answered: with a refusal, or once the store has what it changes.

Each refusal of a request for what it is counts as a fault of its connection. The listener slows a
connection down that makes many.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
import trio

from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.nodes.registration import REASON_LENGTH_MAX
from delay_protocol.wire.frames import Frame
from delay_transport.connections.connection import Connection
from delay_transport.seams.newcomers import Newcomers
from meta_server.known.commits import Committer, Intent
from meta_server.known.errors import MetaServerError, NotNowError, RefusedError, StateError
from meta_server.known.model import Change
from meta_server.wire.refusals import Refusals

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class Patience:
    """How long a request waits for the store before it is answered that it does."""

    until: float
    """In trio time."""
    is_over: bool = False


class Replies:
    """Refuses requests, and answers those that wait for the store."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._patient: dict[Patience, Callable[[], None]] = {}
        """What gives up waiting for the store, the one that does so first at the front."""
        self.refusals = Refusals()

    def refuse(self, connection: Connection, frame: Frame, reason: str) -> None:
        """Answer 51; the reason goes into the log, and to the peer where it could not mislead."""
        self.refusals.note(connection, frame.code, reason)
        would_mislead = frame.code == CommandCode.BROKER_ACQUIRE_META
        text = b"" if would_mislead else reason[:REASON_LENGTH_MAX].encode(errors="replace")
        connection.answer(frame, ResponseCode.BROKER_ERROR, text)

    def refuse_or_retry(
        self,
        connection: Connection,
        frame: Frame,
        error: MetaServerError,
        refused: Callable[[str], bytes],
    ) -> None:
        """Answer by what `refused` makes of the reason; or 51 where the same may be taken later."""
        if isinstance(error, NotNowError | StateError) or not isinstance(error, RefusedError):
            self.refuse(connection, frame, str(error))
            return
        connection.fault()
        self.refusals.note(connection, frame.code, str(error))
        connection.answer(frame, ResponseCode.SUCCESS, refused(str(error)[:REASON_LENGTH_MAX]))

    def later(
        self,
        connection: Connection,
        frame: Frame,
        keys: tuple[object, ...],
        *,
        plan: Callable[[], Sequence[Change]],
        answer: Callable[[], None],
        refuse: Callable[[MetaServerError], None] | None = None,
        patience: Patience | None = None,
        is_urgent: bool = False,
    ) -> None:
        """Answer when the store has what is planned, or 51 when that takes too long."""
        size = len(frame.body)

        def give_up() -> None:
            connection.done(1, size)
            self.refuse(connection, frame, "the store is slow; this is stored when it can be")

        def done(error: MetaServerError | None) -> None:
            if patience is not None:
                self._patient.pop(patience, None)
            is_told = patience is not None and patience.is_over
            if not is_told:
                connection.done(1, size)
            if error is None:
                answer()
            elif is_told:
                _log.warning("not stored", peer_was_told=True, reason=str(error))
            elif refuse is not None:
                refuse(error)
            else:
                if isinstance(error, RefusedError):
                    connection.fault()
                self.refuse(connection, frame, str(error))

        self._committer.submit(Intent(keys=keys, plan=plan, done=done, is_urgent=is_urgent))
        connection.begin(1, size)
        if patience is not None:
            self._patient[patience] = give_up

    def answer_overdue(self, now: float) -> None:
        """Answer those who have waited for the store for as long as they can; `now` in trio time.

        What they asked for is stored all the same, when the store can.
        """
        while self._patient:
            patience, give_up = next(iter(self._patient.items()))
            if patience.until > now:
                return
            del self._patient[patience]
            patience.is_over = True
            give_up()


def admit(newcomers: Newcomers, connection: Connection) -> None:
    """Count what is new and comes by a connection; raise NotNowError if it is too early."""
    told = newcomers.refusal(trio.current_time(), address=connection.where)
    if told is not None:
        raise NotNowError(told)
