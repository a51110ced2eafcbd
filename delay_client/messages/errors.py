"""Errors of messages that were not accepted, ordered by remedy.

* DelaywheelError: catch this to catch all of it.
    * RetryableError: the same message, with the same message id, may be sent again later.
        * Unavailable: no server could be reached, or none was in a state to take it.
            * NoRoute: the meta server named no server for its subject, or could not be asked.
        * Overloaded: the servers answered that they cannot keep up.
        * TimedOut (also a TimeoutError): no answer came in time.
    * FatalError: sending the same message again fails again.
        * InvalidMessage (also a ValueError): it cannot be sent as it is written.
            * InvalidToken: a cancel token that is none, was changed, or has another version.
            * OtherCluster: a receipt or a cancel token of another cluster.
        * IllegalSubject: brokers refuse this subject, or it is not served here.
        * MessageTooLarge: it exceeds a limit in bytes.
        * DelayTooLong: it is due beyond the server's horizon.
        * Refused: the server refused it for good for another reason.
        * NotADelayServer: none of the servers that the client was given is a delay server.
        * ClientClosed: the client is not open.

Before the client reports a RetryableError it has already retried, within the given time. Every
error names the message, and its text ends with what to do.
"""

# ruff: noqa: N818 (these names say what happened to a message; each is an Error by its parents)


class DelaywheelError(Exception):
    """A message was not accepted; `str()` says why and what to do."""

    def __init__(
        self,
        text: str,
        *,
        message_id: str | None = None,
        server: str | None = None,
        attempts: int = 0,
    ) -> None:
        super().__init__(text)
        self.message_id = message_id
        """The message's id; use it again when you send the same message again."""
        self.server = server
        """Address of the server that was tried last, if one was."""
        self.attempts = attempts
        """How many times the message was put on the wire."""


class RetryableError(DelaywheelError):
    """Not accepted for now. Send it again with the same message id.

    Where it was kept all the same (`maybe_kept`) it is delivered twice, with that id, unless a
    server knows it for the same (`Receipt.duplicate`).
    """

    def __init__(
        self,
        text: str,
        *,
        message_id: str | None = None,
        server: str | None = None,
        attempts: int = 0,
        maybe_kept: bool = False,
    ) -> None:
        super().__init__(text, message_id=message_id, server=server, attempts=attempts)
        self.maybe_kept = maybe_kept
        """Whether a server may have kept the message although no answer said so. One that is sent
        again with its id, within ten minutes, is mostly known there (`Receipt.duplicate`)."""


class Unavailable(RetryableError):
    """No server could be reached, or none that was reached could take the message."""


class NoRoute(Unavailable):
    """There was no server to try: the meta server named none, or could not be asked."""


class Overloaded(RetryableError):
    """The servers answered that they cannot keep up: send more slowly."""


class TimedOut(RetryableError, TimeoutError):
    """No server answered in time."""


class FatalError(DelaywheelError):
    """The same message would be refused again."""


class InvalidMessage(FatalError, ValueError):
    """The message cannot be sent as it is written; it was not put on the wire."""


class InvalidToken(InvalidMessage):
    """A cancel token that is none, was cut or changed, or is of another version."""


class OtherCluster(InvalidMessage):
    """The receipt or the cancel token is of another cluster than the servers are."""


class IllegalSubject(FatalError):
    """The subject is one that brokers refuse, or that is not served here."""


class MessageTooLarge(FatalError):
    """The message, or one value in it, exceeds a limit in bytes."""


class DelayTooLong(FatalError):
    """The message is due further away than the server keeps messages."""


class Refused(FatalError):
    """The server refused the message for good."""


class NotADelayServer(FatalError):
    """What the client was given as delay servers are none: brokers, say. They got no message."""


class ClientClosed(FatalError):
    """The client was closed with messages on their way, or used where it is not open.

    That is outside its `with` block, in another event loop, or in a process that was forked.
    """
