"""The client library: send messages now that are delivered later.

    async with Client(meta="127.0.0.1:8080") as client:
        receipt = await client.send("boarding.call", "LH 400", delay=timedelta(minutes=40))

    async with Receiver("boarding", subjects=["boarding.*"], meta="127.0.0.1:8080") as receiver:
        await receiver.run(handle)

`Client` and `Receiver` run on asyncio and on trio; `BlockingClient` sends for everyone else.

    shells      The exchange and the reception with sockets
    receiving   Messages that come, without I/O
    exchange    Messages on their way, without I/O
    messages    Messages, receipts, settings and errors

Each part imports only from parts below it.
"""

from delay_client.messages.changed import Changed, ChangeOutcome, MessageName
from delay_client.messages.config import ClientConfig
from delay_client.messages.errors import (
    ClientClosed,
    DelayTooLong,
    DelaywheelError,
    FatalError,
    IllegalSubject,
    InvalidMessage,
    InvalidToken,
    MessageTooLarge,
    NoRoute,
    NotADelayServer,
    OtherCluster,
    Overloaded,
    Refused,
    RetryableError,
    TimedOut,
    Unavailable,
)
from delay_client.messages.message import Outcome, OutgoingItem, OutgoingMessage, Receipt
from delay_client.receiving.errors import ReceiverRefusedError, Reject, RetryLater
from delay_client.receiving.message import MessageBatch, ReceivedMessage
from delay_client.receiving.settings import ReceiverConfig, RetryPolicy
from delay_client.shells.blocking import BlockingClient
from delay_client.shells.client import Client
from delay_client.shells.receiver import Receiver
from delay_protocol.messages.changes import ChangeState

__all__ = [
    "BlockingClient",
    "ChangeOutcome",
    "ChangeState",
    "Changed",
    "Client",
    "ClientClosed",
    "ClientConfig",
    "DelayTooLong",
    "DelaywheelError",
    "FatalError",
    "IllegalSubject",
    "InvalidMessage",
    "InvalidToken",
    "MessageBatch",
    "MessageName",
    "MessageTooLarge",
    "NoRoute",
    "NotADelayServer",
    "OtherCluster",
    "Outcome",
    "OutgoingItem",
    "OutgoingMessage",
    "Overloaded",
    "Receipt",
    "ReceivedMessage",
    "Receiver",
    "ReceiverConfig",
    "ReceiverRefusedError",
    "Refused",
    "Reject",
    "RetryLater",
    "RetryPolicy",
    "RetryableError",
    "TimedOut",
    "Unavailable",
]
