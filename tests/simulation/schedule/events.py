"""Virtual time: events in order, connections, datagrams, and clocks that drift."""

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Final

CLOCK_DRIFT: Final = 0.01
"""How much faster or slower the boot clock of a node may run."""


class BrokenPromiseError(Exception):
    """A promise is broken: the seed has found something."""


class Events:
    """What happens, in order of time; ties in the order in which they were planned."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = itertools.count()

    def at(self, time: float, then: Callable[..., None], *args: Any) -> None:  # noqa: ANN401
        """Have something happen at a time, or now if that has passed."""
        heapq.heappush(self._queue, (max(time, self.now), next(self._count), then, args))

    def after(self, seconds: float, then: Callable[..., None], *args: Any) -> None:  # noqa: ANN401
        """Have something happen after a while."""
        self.at(self.now + seconds, then, *args)

    def run(self, until: float) -> None:
        """Go on until a time."""
        while self._queue and self._queue[0][0] < until:
            self.now, _, then, args = heapq.heappop(self._queue)
            then(*args)
        self.now = until


class Process:
    """What has a clock of its own, may stand still for a while, and dies with all its timers."""

    def __init__(self, events: Events, name: str) -> None:
        self.events = events
        self.name = name
        self.is_up = True
        self.life = 0
        self.paused_until = 0.0
        self._held: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        """What came while it stood still, in order."""
        self._rate = 1 + events.chance.uniform(-CLOCK_DRIFT, CLOCK_DRIFT)
        self._offset = events.chance.uniform(0, 10_000)

    def local(self) -> float:
        """Return the boot clock of this node."""
        return self._offset + self._rate * self.events.now

    def later(self, seconds: float, then: Callable[..., None], *args: Any) -> None:  # noqa: ANN401
        """Have this life do something after a while, or when it runs on."""
        self.events.after(seconds, self._go, self.life, then, args)

    def _go(self, life: int, then: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self.is_up or life != self.life:
            return
        if self.paused_until > self.events.now or self._held:
            self._held.append((then, args))
            if len(self._held) == 1:
                self.events.at(self.paused_until, self._go_on, life)
            return
        then(*args)

    def _go_on(self, life: int) -> None:
        """Do what had to wait, in order."""
        if self.paused_until > self.events.now and life == self.life:
            self.events.at(self.paused_until, self._go_on, life)
            return
        while self._held and life == self.life and self.is_up:
            then, args = self._held.popleft()
            then(*args)

    def stand_still(self, seconds: float) -> None:
        """Do nothing for a while, as after SIGSTOP; the clock runs on."""
        self.paused_until = max(self.paused_until, self.events.now + seconds)

    def die(self) -> None:
        """Lose all that is in memory, and all timers."""
        self.is_up = False
        self.life += 1
        self._held.clear()

    def live(self) -> None:
        """Begin another life."""
        self.is_up, self.paused_until = True, 0.0


class Network:
    """Datagrams between processes, and connections that keep their order; links may be cut."""

    def __init__(self, events: Events, *, is_calm: bool = False) -> None:
        """`is_calm`: nothing is lost, doubled or late."""
        self._events = events
        self._chance = events.chance
        self.is_calm = is_calm
        self.cut: set[tuple[str, str]] = set()
        """Directed links on which nothing gets through."""

    def _delay(self) -> float:
        chance = self._chance
        is_late = not self.is_calm and chance.random() < 0.04
        return chance.uniform(0.1, 4) if is_late else chance.uniform(0.0005, 0.02)

    def tell(
        self,
        sender: Process,
        receiver: Process,
        then: Callable[..., None],
        *args: Any,  # noqa: ANN401
    ) -> None:
        """Send what may be lost, late, doubled and overtaken, as requests are."""
        chance = self._chance
        if not self.is_calm and chance.random() < 0.01:
            return
        for _ in range(1 + (not self.is_calm and chance.random() < 0.01)):
            self._events.after(self._delay(), self._deliver, sender.name, receiver, then, args)

    def _deliver(
        self, sender: str, receiver: Process, then: Callable[..., None], args: tuple[Any, ...]
    ) -> None:
        if (sender, receiver.name) not in self.cut:
            receiver.later(0.0, then, *args)


class Connection:
    """One connection between two lives; what is sent on it arrives in order, or it is dead.

    A link that is cut loses what is on its way, and with it the connection, of which neither side
    hears at once.
    """

    _numbers = itertools.count(1)

    def __init__(self, network: Network, opener: Process, taker: Process) -> None:
        self.number = next(self._numbers)
        self._network = network
        self._ends = {opener.name: opener, taker.name: taker}
        self._lives = {opener.name: opener.life, taker.name: taker.life}
        self._busy_until = {opener.name: 0.0, taker.name: 0.0}
        self.is_dead = False
        self.on_broken: dict[str, Callable[[], None]] = {}
        """By side, what hears that it is broken."""

    def other(self, name: str) -> Process:
        """Return the other side."""
        return next(end for each, end in self._ends.items() if each != name)

    def send(self, sender: Process, then: Callable[..., None], *args: Any) -> None:  # noqa: ANN401
        """Send something to the other side."""
        receiver, events = self.other(sender.name), sender.events
        chance = events.chance
        is_late = not self._network.is_calm and chance.random() < 0.01
        delay = chance.uniform(0.02, 1) if is_late else chance.uniform(0.0002, 0.003)
        at = max(events.now + delay, self._busy_until[receiver.name])
        self._busy_until[receiver.name] = at
        events.at(at, self._arrive, sender.name, receiver, then, args)

    def _arrive(
        self, sender: str, receiver: Process, then: Callable[..., None], args: tuple[Any, ...]
    ) -> None:
        if (sender, receiver.name) in self._network.cut:
            self.is_dead = True
        if self.is_dead:
            return
        if receiver.life != self._lives[receiver.name] or not receiver.is_up:
            self.is_dead = True
            self._tell_broken(sender)
            return
        receiver.later(0.0, self._take, then, args)

    def _take(self, then: Callable[..., None], args: tuple[Any, ...]) -> None:
        # It may have broken while the process stood still.
        if not self.is_dead:
            then(*args)

    def close(self, closer: Process) -> None:
        """Close it; the other side hears of it soon, if anything gets through."""
        if not self.is_dead:
            self.is_dead = True
            self._tell_broken(self.other(closer.name).name)

    def reset(self) -> None:
        """Break it, so that both sides hear of it."""
        self.is_dead = True
        for name in self._ends:
            self._tell_broken(name)

    def _tell_broken(self, name: str) -> None:
        end, heard = self._ends[name], self.on_broken.get(name)
        if heard is not None and end.is_up and end.life == self._lives[name]:
            end.later(end.events.chance.uniform(0.001, 0.01), heard)
