"""What brokers and delay servers ask of a meta server, over a connection to one."""

from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.meta.requests import BrokerRegister, encode_broker_register
from delay_protocol.wire.frames import Frame
from delay_transport.connections.request_client import RequestConnection


class MetaRefusedError(Exception):
    """The meta server refused the request, or its answer is not usable; the text says why."""


def require_success(answer: Frame, peer: str) -> None:
    """Raise MetaRefusedError for an answer of a peer ("the meta server at …") that is none."""
    if answer.code == ResponseCode.SUCCESS:
        return
    if answer.code == ResponseCode.UNKNOWN_CODE:
        raise MetaRefusedError(f"{peer} is none of delaywheel: it does not know the request")
    reason = answer.body.decode(errors="replace")
    if answer.code == ResponseCode.UNAUTHENTICATED:
        raise MetaRefusedError(f"{peer} could not authenticate this node: {reason}")
    raise MetaRefusedError(f"{peer} answered {answer.code}: {reason}")


async def register_broker(
    connection: RequestConnection, request: BrokerRegister, *, timeout_s: float
) -> None:
    """Tell how a broker group is. Raises MetaRefusedError; TransportError without an answer."""
    answer = await connection.request(
        CommandCode.BROKER_REGISTER, encode_broker_register(request), timeout_s=timeout_s
    )
    require_success(answer, f"the meta server at {connection.peer}")
