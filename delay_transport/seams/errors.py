"""Errors between two processes, and what the caller should do about each.

* TransportError
    * AddressError: an address in a setting cannot be read, or does not resolve. Correct it.
    * ListenError: an address cannot be listened on (in use, not ours). Stop and say so.
    * NoAddressError: what was to be connected to is no address; an OSError as well, since for who
      connects it is one more peer that cannot be reached.
    * ConnectError: a peer cannot be reached. Nothing was sent; try again later, or elsewhere.
    * ConnectionLostError: a connection ended with requests unanswered. Each of them may or may not
      have been carried out.
    * RequestTimeoutError: no answer within the caller's time. It may or may not have been carried
      out; the connection goes on.
    * TooManyInFlightError: the peer does not keep up; wait for answers before asking for more.

* ConfigError: a setting of a process is unknown, missing or makes no sense. It does not start; the
  message names where the setting came from, the setting and what to do.

What a peer does wrong on the wire is delay_protocol's RemoteProtocolError; it never leaves this
package as an exception but ends the one connection, as a CloseReason or a ConnectionLostError.
"""


class TransportError(Exception):
    """Anything the transport raises on purpose."""


class AddressError(TransportError, ValueError):
    """A text is not an address we could listen on or connect to."""

    def __init__(self, *, text: str, reason: str) -> None:
        super().__init__(f"{text!r} is not an address: {reason}")
        self.text = text
        self.reason = reason


class NoAddressError(TransportError, OSError):
    """Nobody can be connected to at this host and port, because they are none."""

    def __init__(self, *, address: str, reason: str) -> None:
        super().__init__(f"cannot connect to {address}: {reason}")
        self.address = address
        self.reason = reason


class ListenError(TransportError):
    """Nothing can be accepted on this address."""

    def __init__(self, *, address: str, reason: str) -> None:
        super().__init__(f"cannot listen on {address}: {reason}")
        self.address = address
        self.reason = reason


class ConnectError(TransportError):
    """The peer was not reached; nothing of any request was sent."""

    def __init__(self, *, address: str, reason: str) -> None:
        super().__init__(f"cannot connect to {address}: {reason}")
        self.address = address
        self.reason = reason


class ConnectionLostError(TransportError):
    """The connection ended; what was unanswered may or may not have been carried out.

    `unanswered` are the opaques that were submitted and never answered, oldest first.
    """

    def __init__(self, *, peer: str, reason: str, unanswered: tuple[int, ...] = ()) -> None:
        super().__init__(f"connection to {peer} lost: {reason}")
        self.peer = peer
        self.reason = reason
        self.unanswered = unanswered


class RequestTimeoutError(TransportError):
    """No answer came in time; the request may or may not have been carried out."""

    def __init__(self, *, peer: str, code: int, seconds: float) -> None:
        super().__init__(f"no answer from {peer} to request code {code} within {seconds:g} s")
        self.peer = peer
        self.code = code
        self.seconds = seconds


class TooManyInFlightError(TransportError):
    """A limit on what may be unanswered or unsent is reached; nothing was queued."""

    def __init__(self, *, peer: str, requests: int, unsent_bytes: int) -> None:
        super().__init__(f"{peer}: {requests} requests unanswered, {unsent_bytes} bytes unsent")
        self.peer = peer
        self.requests = requests
        self.unsent_bytes = unsent_bytes


class ConfigError(Exception):
    """The configuration cannot be used."""

    def __init__(self, *, source: str, key: str, reason: str, remedy: str = "") -> None:
        where = f"{source}: {key}" if key else source
        super().__init__(f"{where}: {reason}" + (f"; {remedy}" if remedy else ""))
        self.source = source
        """The file, or the option that gave the setting."""
        self.key = key
        """The setting as `section.key`; empty if the file as a whole is meant."""
        self.reason = reason
        self.remedy = remedy
        """What to do about it; empty if the reason says so."""
