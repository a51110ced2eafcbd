"""A producer as a process: `python -m tests.failover_campaign.sending HOW NAME META RECORD RATE`.

HOW is asyncio, trio or blocking. It sends at a steady rate until SIGTERM, with the library's own
deadline, each message in a call of its own, and writes down a line for each: when it is handed
over (`s ID DUE_MS US`), and what the call said (`a ID US ATTEMPTS SERVER`, or `f ID US MAYBE_KEPT
TEXT`), and a line `c CODE US` for each request that a server did not take.
"""

import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import anyio

from delay_client import BlockingClient, Client, DelaywheelError, Receipt, RetryableError
from delay_client.exchange import answers, exchange
from tests.crash.patching import put_in
from tests.failover_campaign.texts import body_of

THREADS: Final = 8
"""Of the blocking producer."""
_FLUSH_S: Final = 0.2
_SOON_MS: Final = (300, 3500)
_LATER_MS: Final = (5000, 12_000)
"""Some are due when whoever took them is not the master any more."""
_LATER_SHARE: Final = 0.03


def now_us() -> int:
    """Return the wall clock of this machine."""
    return time.time_ns() // 1000


class Notebook:
    """The record of one producer."""

    def __init__(self, name: str, path: Path) -> None:
        self._name = name
        self._chance = random.Random(name)
        self._lock = threading.Lock()
        self._file = path.open("a", encoding="utf-8")
        self._flushed = time.monotonic()
        self._count = 0

    def write(self, line: str) -> None:
        """Append a line."""
        with self._lock:
            self._file.write(line + "\n")
            if time.monotonic() - self._flushed > _FLUSH_S:
                self._flushed = time.monotonic()
                self._file.flush()

    def draw(self) -> tuple[str, str, datetime]:
        """Return subject, id and due time of the next message, which is written down as sent."""
        with self._lock:
            self._count += 1
            count = self._count
            bounds = _LATER_MS if self._chance.random() < _LATER_SHARE else _SOON_MS
            delay_ms = self._chance.randrange(*bounds)
        name = f"{self._name}-{count}"
        due_ms = now_us() // 1000 + delay_ms
        self.write(f"s {name} {due_ms} {now_us()}")
        at = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=due_ms)
        return ("b.all" if count % 2 else "r.all"), name, at

    def settle(self, name: str, outcome: Receipt | DelaywheelError) -> None:
        """Write down what a call said."""
        if isinstance(outcome, Receipt):
            self.write(f"a {name} {now_us()} {outcome.attempts} {outcome.server}")
        else:
            kept = isinstance(outcome, RetryableError) and outcome.maybe_kept
            self.write(f"f {name} {now_us()} {int(kept)} {type(outcome).__name__}: {outcome}")

    def count_refusals(self) -> None:
        """Write down each request that a server did not take."""
        read = answers.read_answer

        def read_answer(batch: object, link: object, code: int, body: bytes) -> object:
            if code:
                self.write(f"c {code} {now_us()}")
            return read(batch, link, code, body)  # type: ignore[arg-type]

        put_in(exchange, read_answer=read_answer)

    def close(self) -> None:
        """Write what is left."""
        self._file.close()


async def send_steadily(meta: str, notebook: Notebook, rate: float) -> None:
    """Send on an event loop; end some time after SIGTERM, when everything has its outcome."""
    is_over = False

    async def send(client: Client, subject: str, name: str, at: datetime) -> None:
        try:
            notebook.settle(name, await client.send(subject, body_of(name), at=at, message_id=name))
        except DelaywheelError as error:
            notebook.settle(name, error)

    async def stop() -> None:
        nonlocal is_over
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                is_over = True
                return

    async with anyio.create_task_group() as watch, Client(meta=meta) as client:
        watch.start_soon(stop)
        async with anyio.create_task_group() as calls:
            for wait_s in pace(rate, lambda: is_over):
                await anyio.sleep(wait_s)
                calls.start_soon(send, client, *notebook.draw())


def send_blocking(meta: str, notebook: Notebook, rate: float) -> None:
    """Send from some threads, each of which waits for its answer."""
    is_over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_over.set())

    def send(client: BlockingClient) -> None:
        for wait_s in pace(rate / THREADS, is_over.is_set):
            is_over.wait(wait_s)
            subject, name, at = notebook.draw()
            try:
                notebook.settle(name, client.send(subject, body_of(name), at=at, message_id=name))
            except DelaywheelError as error:
                notebook.settle(name, error)

    with BlockingClient(meta=meta) as client:
        threads = [threading.Thread(target=send, args=(client,)) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(1)


def pace(rate: float, is_over: Callable[[], bool]) -> Iterator[float]:
    """Yield how long to wait before each next message; what is late is sent at once."""
    due = time.monotonic()
    while not is_over():
        # A caller that was held up for long does not catch up.
        due = max(due + 1 / rate, time.monotonic() - 1)
        yield max(due - time.monotonic(), 0)


def main(how: str, name: str, meta: str, record: Path, rate: float) -> None:
    """Send until SIGTERM."""
    notebook = Notebook(name, record)
    notebook.count_refusals()
    try:
        if how == "blocking":
            send_blocking(meta, notebook, rate)
        else:
            anyio.run(send_steadily, meta, notebook, rate, backend=how)
    finally:
        notebook.close()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]), float(sys.argv[5]))
