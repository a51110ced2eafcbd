"""Producers that write down what they send before they send it, and every acknowledgement."""

import contextlib
import random
import threading
import time
import zlib
from typing import Final

from storage.disk.spans import MINUTE_MS
from tests.crash.ledger import Ledger, Sent
from tests.crash.life_clock import LifeClock
from tests.processes.real_processes import Producer, make_item

_RETRY_S: Final = 0.02
_ANSWER_S: Final = 10.0


class LoadingProducer:
    """Sends small requests one after another until it is stopped or the server dies.

    It tries to connect from the start, so that a server which recovers has requests to hold. No
    message is sent twice.
    """

    def __init__(self, name: str, port: int, clock: LifeClock, ledger: Ledger, seed: int) -> None:
        self.refused = 0
        """Messages that were not taken, and the server said so."""
        self._name = name
        self._port = port
        self._clock = clock
        self._ledger = ledger
        self._chance = random.Random(f"{seed}/{name}")
        self._count = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it; to be called when the server is dead, or will answer soon."""
        self._stopping.set()
        self._thread.join(2 * _ANSWER_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(OSError), Producer(self._port, timeout_s=_ANSWER_S) as peer:
                while not self._stopping.is_set():
                    self._send(peer)
                    self._stopping.wait(self._chance.uniform(0.001, 0.01))
            # Not there yet, or dead: what was not answered is nobody's promise.
            time.sleep(_RETRY_S)

    def _send(self, peer: Producer) -> None:
        items = [self._draw() for _ in range(self._chance.randint(1, 30))]
        refused = peer.send([item for _, item in items])
        names = {name for name, _ in items}
        taken = set() if refused is None else {n for n in names if n.encode() not in refused}
        self._ledger.acknowledged.update(taken)
        self.refused += len(names) - len(taken)

    def _draw(self) -> tuple[str, bytes]:
        chance = self._chance
        self._count += 1
        name = f"{self._name}-{self._count}"
        due_ms = self._clock.now_ms() + self._draw_delay_ms()
        size = chance.randint(2_000, 20_000) if chance.random() < 0.05 else chance.randint(1, 300)
        subject = f"crash.{chance.randrange(5)}"
        item = make_item(name, due_ms, subject=subject, value="v" * size)
        self._ledger.sent[name] = Sent(due_ms, zlib.crc32(item))
        return name, item

    def _draw_delay_ms(self) -> int:
        chance, kind = self._chance, self._chance.random()
        if kind < 0.5:
            return chance.randint(-300, 1500) * (self._clock.rate if kind < 0.45 else 1)
        if kind < 0.7:
            return chance.randint(0, 4 * MINUTE_MS)
        if kind < 0.9:
            return chance.randint(2 * MINUTE_MS, 90 * MINUTE_MS)
        return chance.randint(60 * MINUTE_MS, 60 * 60 * MINUTE_MS)
