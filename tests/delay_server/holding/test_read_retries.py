"""What could not be read for now is held until it is offered again."""

import numpy as np
import trio

from delay_server.holding.read_retries import ReadRetries
from storage.batch.entries import ENTRY, Entries


async def test_all_that_is_counted_is_held_while_one_after_another_is_offered() -> None:
    offered: list[int] = []

    def offer(entries: Entries) -> None:
        offered.extend(entries["sequence"].tolist())

    rereading = ReadRetries(offer=offer, tries=3, wait_ms=lambda _failures: 1000)
    for sequence in range(3):
        entries = np.zeros(1, ENTRY)
        entries["sequence"] = sequence
        assert rereading.may_try_again(sequence, "path", "EIO")
        assert not len(rereading.keep(entries))
    seen: set[int] = set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rereading.run)
        await trio.sleep(0.999)
        assert offered == []
        with trio.fail_after(10):
            while len(offered) < 3:
                held = [entry for part in rereading.held() for entry in part["sequence"].tolist()]
                assert sorted(offered + held) == [0, 1, 2]
                assert rereading.count == len(held)
                seen.add(len(held))
                await trio.sleep(0 if trio.current_time() >= 1 else 0.001)
        nursery.cancel_scope.cancel()
    assert seen & {1, 2}, "nothing was looked at in between"
    assert offered == [0, 1, 2]
