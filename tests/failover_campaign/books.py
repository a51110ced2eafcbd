"""The books of a round: what producers were told, what came, and for how long nothing did.

Deliveries are judged by the books of `make crash` (tests/crash/ledger.py). Moments are us of the
wall clock, which all processes of a machine share.
"""

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from tests.crash.ledger import Death, Delivery, Ledger, Sent

WINDOW_S: Final = 0.5
"""What may come twice after a failover came at most this long before it: 200 ms of outcomes, and
what was in flight."""
_WRITTEN_US: Final = 1_000_000
"""After which producers have certainly written down what they were told."""


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A message that came."""

    where: str
    at_ms: int
    name: str
    due_ms: int
    is_right: bool = True


@dataclass(slots=True)
class Books:
    """What everybody wrote down, as far as it was read."""

    ledger: Ledger
    answered_us: list[int] = field(default_factory=list)
    """When messages were acknowledged, in the order in which that was read."""
    delivered_us: dict[str, list[int]] = field(
        default_factory=lambda: {"brokers": [], "receivers": []}
    )
    failed: dict[str, tuple[bool, str]] = field(default_factory=dict)
    """Per message that a call failed for: maybe_kept, and what the error says."""
    repeated_us: list[int] = field(default_factory=list)
    """When a message came that had come before."""
    refused: list[tuple[int, int]] = field(default_factory=list)
    """Requests that a server did not take: when, and the code."""
    attempts: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    """What is wrong, in sentences."""
    _read: dict[Path, int] = field(default_factory=dict)
    _deliveries: int = 0
    _early: list["_Arrival"] = field(default_factory=list)
    """What has come and producers have not yet written down: they keep some lines back."""

    def strike(self, at_us: int) -> None:
        """Enter the moment of a fault, or of its end.

        What came just before a fault may come again. What the old master's kernel still had comes
        when links and processes are back, and may have come from the new one.
        """
        self.ledger.deaths.append(Death(at_us * 1000, WINDOW_S))

    def read(
        self, sent: Sequence[Path], delivered: Sequence[Path], received: Sequence[Path]
    ) -> None:
        """Take over what was written down since the last time."""
        arrivals = []
        for path in delivered:
            for line in self._lines(path):
                one = json.loads(line)
                came = one["received_ms"], one["message_id"], one["due_ms"]
                arrivals.append(_Arrival("brokers", *came))
        for path in received:
            for line in self._lines(path):
                name, due_ms, at_ms, is_right = line.split(" ")
                came = int(at_ms), name, int(due_ms)
                arrivals.append(_Arrival("receivers", *came, is_right == "1"))
        for path in sent:
            for line in self._lines(path):
                self._take_sent(line)
        self._early += sorted(arrivals, key=lambda one: one.at_ms)
        self._settle(final=False)

    def finish(self) -> None:
        """Judge what is left."""
        self._settle(final=True)

    def _settle(self, *, final: bool) -> None:
        left = []
        for one in self._early:
            if one.name not in self.ledger.sent and not final:
                left.append(one)
                continue
            self._deliveries += 1
            self.delivered_us[one.where].append(one.at_ms * 1000)
            if one.name in self.ledger.first:
                self.repeated_us.append(one.at_ms * 1000)
            at = one.at_ms * 1_000_000, one.at_ms
            self.faults += self.ledger.take(
                Delivery(self._deliveries, *at, one.due_ms, 0, one.is_right, one.name)
            )
        self._early = left

    def _take_sent(self, line: str) -> None:
        what, rest = line.split(" ", 1)
        match what:
            case "s":
                name, due_ms, _ = rest.split(" ")
                self.ledger.sent[name] = Sent(int(due_ms), 0)
            case "a":
                name, at_us, attempts, _ = rest.split(" ")
                self.ledger.acknowledged.add(name)
                self.answered_us.append(int(at_us))
                self.attempts[int(attempts)] += 1
            case "f":
                name, _, kept, text = rest.split(" ", 3)
                self.failed[name] = (kept == "1", text)
            case "c":
                code, at_us = rest.split(" ")
                self.refused.append((int(at_us), int(code)))

    def _lines(self, path: Path) -> Iterator[str]:
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(data)
        return iter(data.decode().splitlines())


def longest_gap_ms(moments_us: Sequence[int], from_us: int, until_us: int) -> int:
    """Return for how long nothing came in a time, from the last moment before it."""
    moments = sorted(moments_us)
    begin = max(bisect_left(moments, from_us) - 1, 0)
    around = moments[begin : bisect_left(moments, until_us)]
    if not around or until_us - around[-1] > _WRITTEN_US:
        # It is still silent.
        around.append(until_us)
    return round(max((after - before for before, after in pairwise(around)), default=0) / 1000)
