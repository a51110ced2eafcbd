"""A trouble that lasts costs a line at its begin, one an hour, and one at its end."""

from typing import Any

import trio
from trio.testing import MockClock

from delay_transport.seams.trouble import Trouble

Line = tuple[float, str, dict[str, Any]]


def test_an_event_is_written_at_once_then_hourly_and_anew_when_the_trouble_is_over() -> None:
    lines = trio.run(_two_hours_of_trouble, clock=MockClock(autojump_threshold=0))
    assert lines == [
        (0, "away", {"reason": "refused"}),
        (3600, "away", {"reason": "refused", "repeated": 359}),
        (7200, "away", {"reason": "refused", "repeated": 359}),
        (7210, "connected", {}),
        (7210, "away", {"reason": "silent"}),
    ]


async def _two_hours_of_trouble() -> list[Line]:
    lines: list[Line] = []
    began = trio.current_time()

    def write(event: str, **details: object) -> None:
        lines.append((round(trio.current_time() - began), event, details))

    trouble = Trouble()
    assert not trouble.over()
    for _ in range(721):
        trouble.log(write, "away", reason="refused")
        await trio.sleep(10)
    trouble.log(write, "connected")
    assert trouble.over()
    trouble.log(write, "away", reason="silent")
    return lines
