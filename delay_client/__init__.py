"""What services install: send messages now that are delivered later.

    async with Client(meta="127.0.0.1:8080") as client:
        receipt = await client.send("boarding.call", "LH 400", delay=timedelta(minutes=40))

`Client` runs on asyncio and on trio; `BlockingClient` is the same for everyone else.
"""

import logging

from delay_client.blocking import BlockingClient
from delay_client.client import Client
from delay_client.config import ClientConfig
from delay_client.errors import (
    ClientClosed,
    DelayTooLong,
    DelaywheelError,
    FatalError,
    IllegalSubject,
    InvalidMessage,
    MessageTooLarge,
    NoRoute,
    Overloaded,
    Refused,
    RetryableError,
    TimedOut,
    Unavailable,
)
from delay_client.messages import Outcome, OutgoingItem, OutgoingMessage, Receipt

# A library never says how its users log.
logging.getLogger("delaywheel").addHandler(logging.NullHandler())

__all__ = [
    "BlockingClient",
    "Client",
    "ClientClosed",
    "ClientConfig",
    "DelayTooLong",
    "DelaywheelError",
    "FatalError",
    "IllegalSubject",
    "InvalidMessage",
    "MessageTooLarge",
    "NoRoute",
    "Outcome",
    "OutgoingItem",
    "OutgoingMessage",
    "Overloaded",
    "Receipt",
    "Refused",
    "RetryableError",
    "TimedOut",
    "Unavailable",
]
