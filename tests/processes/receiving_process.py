"""A receiver as a process: writes down what its handler saw, a line a message, until SIGTERM.

A message of the body `kill` kills it as SIGKILL does.
"""

import os
import signal
import sys
import time
from pathlib import Path

import anyio

from delay_client import ClientConfig, ReceivedMessage, Receiver, ReceiverConfig, RetryLater

CONFIG = ReceiverConfig(
    connecting=ClientConfig(meta_backoff_min_s=0.2, meta_backoff_max_s=1.0, backoff_max_s=0.5)
)


async def main(name: str, meta: str, path: Path) -> None:
    """Have each hundredth message twice; write id, its times, lateness and wall clock when done."""
    with path.open("a", buffering=1, encoding="utf-8") as seen:

        async def handler(message: ReceivedMessage) -> None:
            await anyio.sleep(0.001)
            if message.data == b"kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if message.data.endswith(b"00") and message.put_offs == 0:
                raise RetryLater(0.2)
            times = message.attempt + message.put_offs
            seen.write(f"{message.id} {times} {message.lateness} {time.time()}\n")

        async with Receiver(name, subjects=["r.*"], meta=meta, config=CONFIG) as receiver:
            await receiver.run(handler, handle_signals=True)
        print(receiver.counts.dropped, receiver.counts.garbage)  # noqa: T201 (who started it reads)


if __name__ == "__main__":
    backend, name, meta, path = sys.argv[1:]
    anyio.run(main, name, meta, Path(path), backend=backend)
