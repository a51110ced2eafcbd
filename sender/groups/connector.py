"""The way to a connection that may be sent to: connect to a broker group, and say HELLO.

A broker answers the HELLO with success, or, if it is QMQ's, that it does not know the code. A delay
server answers with what it is: what it got could come back, so it gets nothing.
"""

import structlog
import trio

from delay_protocol.basics.codes import ResponseCode
from delay_protocol.basics.errors import MalformedHelloError, RemoteProtocolError
from delay_protocol.wire.hello import Hello, decode_hello, encode_hello
from delay_transport.seams.errors import TransportError
from delay_transport.seams.runtime import Network
from delay_transport.seams.trouble import Trouble
from sender.groups.connection import BrokerConnection, End, RequestSource
from sender.outcomes.answers import answer_bytes_max
from sender.settings.config import BrokerGroup, SenderConfig

_log: structlog.stdlib.BoundLogger = structlog.get_logger("sender")

Obstacle = tuple[End, str]
"""Why there is no connection, and the same for people."""


class Connector:
    """Makes the connections of one broker group, one after another.

    It keeps the attempt under way, or the wait before it, so that a new address ends either. The
    group calls it from its task, and interrupt() from wherever it hears of another address.
    """

    def __init__(self, *, hello: Hello, network: Network, config: SenderConfig) -> None:
        self._hello = hello
        self._network = network
        self._config = config
        self.trouble = Trouble()
        """Of the group; it begins anew when the circuit opens, or the group moves."""
        self._attempt = trio.CancelScope()
        self._moved_to = ""

    def interrupt(self, address: str) -> None:
        """End the attempt, or the wait before it: the group has this address now."""
        self._moved_to = address
        self._attempt.cancel()

    async def wait_until(self, at: float) -> None:
        """Wait until a time (trio's), or until the group has another address."""
        with trio.CancelScope() as self._attempt:
            await trio.sleep_until(at)

    async def connect(self, target: BrokerGroup) -> trio.abc.Stream | Obstacle:
        """Return a connection to the group's address, on which nothing was said yet."""
        self._moved_to = ""
        with trio.CancelScope() as self._attempt:
            try:
                with trio.fail_after(self._config.connect_timeout_s):
                    return await self._network.connect(target.host, target.port)
            except trio.TooSlowError:
                return End.UNREACHABLE, f"not connected within {self._config.connect_timeout_s:g} s"
            except (OSError, TransportError) as error:
                return End.UNREACHABLE, str(error)
        return End.MOVED, f"to {self._moved_to}"

    async def greet(
        self, stream: trio.abc.Stream, source: RequestSource, target: BrokerGroup
    ) -> BrokerConnection | Obstacle:
        """Say HELLO; return the connection if the broker may be sent to, or else why not."""
        config = self._config
        connection = BrokerConnection(
            stream,
            source,
            answer_bytes_max=answer_bytes_max(items=config.batch_items, size=config.batch_bytes),
            request_timeout_s=config.request_timeout_s,
            stall_s=config.slow_s,
            heartbeat_s=config.heartbeat_s,
        )
        obstacle: Obstacle | None = None
        with trio.CancelScope() as self._attempt:
            obstacle = await self._say_hello(connection, target)
        # Even if it has moved there and back: half a HELLO may have been said.
        if self._moved_to:
            return End.MOVED, f"to {self._moved_to}"
        return obstacle or connection

    async def _say_hello(
        self, connection: BrokerConnection, target: BrokerGroup
    ) -> Obstacle | None:
        hello, timeout_s = encode_hello(self._hello), self._config.connect_timeout_s
        try:
            answer = await connection.greet(hello, timeout_s=timeout_s)
        except trio.TooSlowError:
            return End.HELLO, f"no answer within {timeout_s:g} s"
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            return End.HELLO, str(error.__cause__ or error)
        except RemoteProtocolError as error:
            return End.GARBAGE, str(error)
        if answer is None:
            return End.HELLO, "closed by the peer"
        return self._judge(answer.code, answer.body, target)

    def _judge(self, code: int, body: bytes, target: BrokerGroup) -> Obstacle | None:
        """Return what the answer to a HELLO has against sending there."""
        address, epoch = f"{target.host}:{target.port}", self._hello.epoch
        who = self._delay_server(body)
        if who:
            return End.NO_BROKER, f"{address} is {who}: what it got could come back"
        if code == ResponseCode.BROKER_REJECT:
            return End.FENCED, f"epoch {epoch} is refused, it is never tried again"
        # A QMQ broker does not know HELLO and says so: it cannot fence, but it can be sent to.
        if code not in {ResponseCode.SUCCESS, ResponseCode.UNKNOWN_CODE}:
            return End.HELLO, f"answered with code {code}"
        self.trouble.log(
            _log.info,
            "broker group connected",
            group=target.name,
            fences=code == 0,
            address=address,
            epoch=epoch,
        )
        return None

    def _delay_server(self, body: bytes) -> str:
        """Return which delay server answered a HELLO; empty if it was none."""
        try:
            peer = decode_hello(body)
        except MalformedHelloError:
            return ""
        if not peer.log_uuid:
            return ""
        if peer.log_uuid == self._hello.log_uuid:
            return "this delay server itself, or one of its group"
        return f"the delay server {peer.node_id} of {peer.group}, log {peer.log_uuid}"
