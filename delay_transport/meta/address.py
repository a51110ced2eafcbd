"""Where a meta server is: `GET /meta/address`, as QMQ's clients ask it, over the network seam.

The answer is host:port as plain text. Of several HTTP addresses each is asked in turn, until one
answers.
"""

from collections.abc import Sequence
from typing import Final

import h11
import trio

from delay_transport.seams.errors import AddressError, TransportError
from delay_transport.seams.runtime import Address, Network, format_address, parse_peer_address

META_ADDRESS_PATH = "/meta/address"

_RECEIVE_BYTES = 4096
_CONNECT_S: Final = 1.0
"""For a connection to one HTTP address to stand; then the next address is asked."""
_ANSWER_S: Final = 2.0
"""For its whole answer."""
_ANSWER_BYTES_MAX: Final = 16 * 1024
"""Of its whole answer, headers included. What says more is no meta server."""


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

    def __init__(self, network: Network, addresses: Sequence[Address]) -> None:
        """Ask at these HTTP addresses, one at least."""
        if not addresses:
            raise ValueError("at least one HTTP address of a meta server is needed")
        self._network = network
        self._addresses = tuple(addresses)
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
                found = await _ask(self._network, address)
            except _NoAnswerError as error:
                reasons.append((address, str(error)))
            else:
                self._first = (place + 1) % count
                return found
        raise MetaAddressError(reasons)


class _NoAnswerError(Exception):
    """One HTTP address gave no usable answer; the text says why."""


async def _ask(network: Network, address: Address) -> Address:
    stream = await _connect(network, address)
    try:
        with trio.fail_after(_ANSWER_S):
            text = await _get(stream, address)
    except trio.TooSlowError:
        raise _NoAnswerError(f"no answer within {_ANSWER_S:g} s") from None
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise _NoAnswerError(f"connection lost: {error.__cause__ or error}") from error
    except h11.ProtocolError as error:
        raise _NoAnswerError(f"the answer is not HTTP: {error}") from error
    finally:
        await trio.aclose_forcefully(stream)
    return _address_in(text)


async def _connect(network: Network, address: Address) -> trio.abc.Stream:
    host, port = address
    try:
        with trio.fail_after(_CONNECT_S):
            return await network.connect(host, port)
    except trio.TooSlowError:
        raise _NoAnswerError(f"no connection within {_CONNECT_S:g} s") from None
    except OSError as error:
        raise _NoAnswerError(str(error) or type(error).__name__) from error


async def _get(stream: trio.abc.Stream, address: Address) -> bytes:
    """Return the body of the answer, which must have status 200."""
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_ANSWER_BYTES_MAX)
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
            if received > _ANSWER_BYTES_MAX:
                raise _NoAnswerError(f"an answer of more than {_ANSWER_BYTES_MAX} bytes")
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
