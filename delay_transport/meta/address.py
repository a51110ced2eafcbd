"""Where a meta server is: `GET /meta/address`, as QMQ's clients ask it, over the network seam.

The answer is host:port as plain text. Of several HTTP addresses each is asked in turn, until one
answers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import h11
import trio

from delay_transport.seams.constants import constant
from delay_transport.seams.errors import AddressError, TransportError
from delay_transport.seams.runtime import Address, Network, format_address, parse_peer_address

META_ADDRESS_PATH = "/meta/address"

_RECEIVE_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaAddressLimits:
    """What asking for the address of a meta server may take."""

    find_connect_seconds_max: float = constant(1.0)
    """Seconds for a connection to one HTTP address to stand; then the next address is asked."""

    find_answer_seconds_max: float = constant(2.0)
    """Seconds for its whole answer."""

    find_answer_bytes_max: int = constant(16 * 1024)
    """Bytes of its whole answer, headers included. What says more is no meta server."""

    def __post_init__(self) -> None:
        """Refuse values with which no meta server would be found."""
        for name in MetaAddressLimits.__slots__:
            value = getattr(self, name)
            if math.isnan(value) or value <= 0:
                raise ValueError(f"{name} must be more than 0, not {value}")


class MetaAddressError(TransportError):
    """No HTTP address answered with the address of a meta server.

    `reasons` has what is wrong with each, in the order in which they were asked.
    """

    def __init__(self, reasons: Sequence[tuple[Address, str]]) -> None:
        told = "; ".join(f"{format_address(address)}: {reason}" for address, reason in reasons)
        super().__init__(f"no meta server found by GET {META_ADDRESS_PATH}: {told}")
        self.reasons = tuple(reasons)


class MetaLocator:
    """Asks HTTP addresses in turn; the next time it begins after the one that answered last.

    A caller that asks again could not use that answer, so another server gets its chance first.
    """

    def __init__(
        self,
        network: Network,
        addresses: Sequence[Address],
        limits: MetaAddressLimits | None = None,
    ) -> None:
        """Ask at these HTTP addresses, one at least."""
        if not addresses:
            raise ValueError("at least one HTTP address of a meta server is needed")
        self._network = network
        self._addresses = tuple(addresses)
        self._limits = limits or MetaAddressLimits()
        self._first = 0

    async def locate(self) -> Address:
        """Return where a meta server listens; raise MetaAddressError if no address answers.

        Takes at most the seconds to connect and to answer of every address.
        """
        reasons: list[tuple[Address, str]] = []
        count = len(self._addresses)
        for place in range(self._first, self._first + count):
            address = self._addresses[place % count]
            try:
                found = await _ask(self._network, address, self._limits)
            except _NoAnswerError as error:
                reasons.append((address, str(error)))
            else:
                self._first = (place + 1) % count
                return found
        raise MetaAddressError(reasons)


async def find_meta_server(
    network: Network, addresses: Sequence[Address], limits: MetaAddressLimits | None = None
) -> Address:
    """Return where a meta server listens, from the first HTTP address that answers.

    Raises MetaAddressError. Who asks more than once uses a MetaLocator.
    """
    return await MetaLocator(network, addresses, limits).locate()


class _NoAnswerError(Exception):
    """One HTTP address gave no usable answer; the text says why."""


async def _ask(network: Network, address: Address, limits: MetaAddressLimits) -> Address:
    stream = await _connect(network, address, limits.find_connect_seconds_max)
    try:
        with trio.fail_after(limits.find_answer_seconds_max):
            text = await _get(stream, address, limits.find_answer_bytes_max)
    except trio.TooSlowError:
        seconds = limits.find_answer_seconds_max
        raise _NoAnswerError(f"no answer within {seconds:g} s") from None
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise _NoAnswerError(f"connection lost: {error.__cause__ or error}") from error
    except h11.ProtocolError as error:
        raise _NoAnswerError(f"the answer is not HTTP: {error}") from error
    finally:
        await trio.aclose_forcefully(stream)
    return _address_in(text)


async def _connect(network: Network, address: Address, seconds_max: float) -> trio.abc.Stream:
    host, port = address
    try:
        with trio.fail_after(seconds_max):
            return await network.connect(host, port)
    except trio.TooSlowError:
        raise _NoAnswerError(f"no connection within {seconds_max:g} s") from None
    except OSError as error:
        raise _NoAnswerError(str(error) or type(error).__name__) from error


async def _get(stream: trio.abc.Stream, address: Address, bytes_max: int) -> bytes:
    """Return the body of the answer, which must have status 200."""
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=bytes_max)
    request = h11.Request(
        method="GET",
        target=META_ADDRESS_PATH,
        headers=[
            (b"Host", format_address(address).encode("ascii", "replace")),
            (b"Accept", b"text/plain"),
            (b"Connection", b"close"),
        ],
    )
    head, end = http.send(request), http.send(h11.EndOfMessage())
    assert head is not None
    assert end is not None
    await stream.send_all(head + end)
    body = b""
    received = 0
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            data = await stream.receive_some(_RECEIVE_BYTES)
            received += len(data)
            if not received:
                raise _NoAnswerError("closed without an answer")
            if received > bytes_max:
                raise _NoAnswerError(f"an answer of more than {bytes_max} bytes")
            http.receive_data(bytes(data))
        elif isinstance(event, h11.Response):
            if event.status_code != 200:
                raise _NoAnswerError(f"answered with status {event.status_code}")
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return body


def _address_in(body: bytes) -> Address:
    try:
        return parse_peer_address(body.decode("ascii").strip())
    except (UnicodeDecodeError, AddressError) as error:
        raise _NoAnswerError(f"the answer is not an address: {body[:100]!r}") from error
