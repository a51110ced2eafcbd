"""A service that only counts: `python -m benchmarks.attached.service HOST:PORT NAME FORM PATTERN`.

HOST:PORT is a delay server, or with `meta=` before it a meta server, where it receives the subjects
of PATTERN. FORM is `handlers` or `batches`. Prints `ready`, and on SIGTERM one JSON line: received,
distinct, early, first_ms, last_ms, lateness_ms from the due time to the handler, and the CPU
seconds that it took since it was ready.
"""

import json
import resource
import signal
import sys
import time

import anyio
import numpy as np

from benchmarks.quantiles import quantiles
from delay_client import ReceivedMessage, Receiver


class Counted:
    """What came, and when."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.at_ms: list[float] = []
        self.due_ms: list[float] = []

    async def take(self, message: ReceivedMessage) -> None:
        """Note one message."""
        self.ids.append(message.id)
        self.at_ms.append(time.time() * 1000)
        self.due_ms.append(message.due.timestamp() * 1000)

    def summary(self) -> dict[str, object]:
        """Return what is printed."""
        late = [at - due for at, due in zip(self.at_ms, self.due_ms, strict=True)]
        return {
            "received": len(self.ids),
            "distinct": len(set(self.ids)),
            "early": sum(one < 0 for one in late),
            "first_ms": min(self.at_ms, default=0),
            "last_ms": max(self.at_ms, default=0),
            "lateness_ms": quantiles(np.array(late, np.int64)),
        }


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _receiver(where: str, name: str, pattern: str) -> Receiver:
    meta = where.removeprefix("meta=")
    if meta == where:
        return Receiver(name, servers=[where])
    return Receiver(name, subjects=[pattern], meta=meta)


async def _serve(where: str, name: str, form: str, pattern: str) -> None:
    counted = Counted()
    async with _receiver(where, name, pattern) as receiver:
        while not receiver.is_attached:  # noqa: ASYNC110 (once, at the start)
            await anyio.sleep(0.01)
        before = _cpu_seconds()
        print("ready", flush=True)
        if form == "handlers":
            await receiver.run(counted.take, concurrency=50, handle_signals=True)
        else:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_stop_at_sigterm, receiver)
                async for batch in receiver.batches():
                    for message in batch:
                        await counted.take(message)
                    await batch.done()
        cpu = _cpu_seconds() - before
    print(json.dumps(counted.summary() | {"cpu_seconds": cpu}), flush=True)


async def _stop_at_sigterm(receiver: Receiver) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            receiver.stop()
            return


if __name__ == "__main__":
    where, name, form, pattern = sys.argv[1:]
    anyio.run(_serve, where, name, form, pattern)
