"""Sends reminders through whatever groups the meta server knows, and says what became of each.

python examples/reminders/send.py 127.0.0.1:8080
"""

import asyncio
import sys
from datetime import timedelta

from delay_client import Client, NoRoute, OutgoingMessage, Receipt, RetryableError

REMINDERS = (
    ("call back", timedelta(seconds=10)),
    ("take the cake out", timedelta(minutes=50)),
    ("renew the passport", timedelta(days=300)),
)


async def send_reminders(meta: str) -> int:
    """Send them; return how many were not accepted."""
    failed = 0
    async with Client(meta=meta, app_code="reminders") as client:
        outcomes = await client.send_many(
            OutgoingMessage("reminder", text, delay, message_id=f"reminder-{number}")
            for number, (text, delay) in enumerate(REMINDERS)
        )
    for (text, _), outcome in zip(REMINDERS, outcomes, strict=True):
        match outcome:
            case Receipt():
                print(f"{text}: on disk at {outcome.server}, due {outcome.due_at}")
            case NoRoute():
                failed += 1
                print(f"{text}: not sent: {outcome}")
            case RetryableError():
                failed += 1
                print(f"{text}: to be sent again as {outcome.message_id}: {outcome}")
            case _:
                failed += 1
                print(f"{text}: refused: {outcome}")
    return failed


if __name__ == "__main__":
    sys.exit(asyncio.run(send_reminders(sys.argv[1])) > 0)
