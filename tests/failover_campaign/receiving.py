"""A receiver as a process: `python -m tests.failover_campaign.receiving LOOP META RECORD`.

It writes down each message when its handler has it, before that says DONE: id, due ms, wall ms,
and whether the body is right. SIGTERM stops it.
"""

import sys
import time
from contextlib import suppress
from pathlib import Path

import anyio

from delay_client import ReceivedMessage, Receiver
from tests.failover_campaign.texts import body_of


async def receive(meta: str, record: Path) -> None:
    """Receive until SIGTERM."""
    with record.open("ab", buffering=0) as seen:

        async def handler(message: ReceivedMessage) -> None:
            at_ms = time.time_ns() // 1_000_000
            due_ms = message.due_ms
            is_right = int(message.body == body_of(message.id))
            seen.write(f"{message.id} {due_ms} {at_ms} {is_right}\n".encode())

        async with Receiver("receivers", subjects=["r.*"], meta=meta) as receiver:
            await receiver.run(handler, concurrency=50, handle_signals=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        anyio.run(receive, sys.argv[2], Path(sys.argv[3]), backend=sys.argv[1])
