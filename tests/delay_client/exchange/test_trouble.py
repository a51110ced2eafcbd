"""Promise: who waits is told why after a second, once, and never where nothing waits."""

import math
from dataclasses import dataclass, field

from delay_client.exchange.trouble import TroubleWatch

TEXT = "no message was accepted for 1 s (no answer from a:1): still trying"


@dataclass
class World:
    busy: bool = True
    why: str = "no answer from a:1"
    told: list[str] = field(default_factory=list)
    wakes: list[float] = field(default_factory=list)

    def watch(self) -> TroubleWatch:
        return TroubleWatch(
            self.told.append,
            is_busy=lambda: self.busy,
            why=lambda: self.why,
            wake=self.wakes.append,
        )


def test_a_message_that_nobody_accepts_is_told_after_a_second() -> None:
    world = World()
    watch = world.watch()
    assert watch.at == math.inf
    watch.expect(5)
    watch.expect(5.5)
    assert watch.at == 6, "the first one counts"
    assert world.wakes == [6]
    watch.poll(5.9)
    assert world.told == []
    watch.poll(6)
    assert world.told == [TEXT]
    assert watch.at == math.inf


def test_it_is_told_once_until_a_message_is_accepted() -> None:
    world = World()
    watch = world.watch()
    for now in (0, 10, 20):
        watch.expect(now)
        watch.poll(now + 1)
    assert len(world.told) == 1
    watch.accepted("a:1", 30)
    watch.poll(30.9)
    assert len(world.told) == 1
    watch.poll(31)
    assert len(world.told) == 2


def test_what_is_accepted_now_and_then_is_no_trouble() -> None:
    world = World()
    watch = world.watch()
    watch.expect(0)
    for tenth in range(1, 50):
        watch.accepted("a:1", tenth / 10)
        watch.poll(tenth / 10)
    assert world.told == []


def test_time_in_which_nothing_waits_does_not_count() -> None:
    world = World()
    watch = world.watch()
    watch.expect(0)
    world.busy = False
    # As in a blocking client, which nobody polls between calls.
    watch.expect(100)
    assert world.wakes == [1, 101]
    watch.poll(100.5)
    assert watch.at == math.inf
    world.busy = True
    watch.expect(200)
    watch.poll(200.5)
    assert world.told == []


def test_the_reason_is_printable_and_short() -> None:
    world = World(why="\x1b" + 1000 * "x")
    watch = world.watch()
    watch.expect(0)
    watch.poll(1)
    [text] = world.told
    assert text.isprintable()
    assert 500 < len(text) < 600
