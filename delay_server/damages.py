"""Damaged bytes of a node's data directory, and what follows from them where others have a copy.

    a slave with damage          says so to its master, which drops it from the in-sync set where
                                 that leaves min ISR, and does not take it in again
    its group counts on it no    it gives its directory up, and copies all anew, as one whose disk
    more                         was wiped does; what it had lies aside until that is done
    a node that is alone         goes on: the rest is delivered

The controls are no copy of what others have: their damage is told, and that is all.
What was damaged at the master when it was copied is no fault of this node, while this process
remembers it: another copy would be no better.
"""

import shlex
from typing import Final

import structlog
import trio

from storage.batch.batches import Damage
from storage.node.store import Store
from storage.state.controls_file import CONTROLS_PATH

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_DAMAGES_KEPT: Final = 100
_PLACES_KEPT: Final = 10_000
"""Damaged places that are known again when they are looked at again; beyond, each look counts."""
COPIED_AGAIN_S: Final = 600.0
"""Seconds until a node gives up its directory a second time: a disk that damages whatever is
written would be copied to without end."""


class Damages:
    """Damaged bytes that were met since the process began, or since all was copied anew."""

    def __init__(self, data_dir: str) -> None:
        self._data_dir = data_dir
        self._places: set[tuple[str, int]] = set()
        self.first: list[Damage] = []
        """The first of them."""
        self.count = 0
        self._own: Damage | None = None
        """The first for which this node is no whole copy."""
        self._copied: set[str] = set()
        """Files that were damaged at the master when they were copied."""
        self._not_before = -float("inf")
        """When it may give up its directory again."""
        self.hindrance = ""
        """Why it does not copy all anew now; empty if nothing hinders it."""

    @property
    def fault(self) -> str:
        """Why what is here is no whole copy; empty if it is, as far as it was read."""
        own = self._own
        return "" if own is None else f"{own.path} is damaged at {own.position}: {own.reason}"[:500]

    def note(self, damage: Damage) -> None:
        """Count and log damage; once, however often it is met."""
        place = (damage.path, damage.position)
        if place in self._places:
            return
        if len(self._places) < _PLACES_KEPT:
            self._places.add(place)
        self.count += 1
        is_told_alone = damage.path == CONTROLS_PATH
        if self._own is None and not is_told_alone and damage.path not in self._copied:
            self._own = damage
        if len(self.first) < _DAMAGES_KEPT:
            self.first.append(damage)
            data = shlex.quote(self._data_dir)
            _log.error(
                "damaged bytes",
                path=damage.path,
                position=damage.position,
                size=damage.size,
                reason=damage.reason,
                verify=f"delaywheel log verify {data}",
                salvage=f"delaywheel log salvage {data} --out salvaged",
            )

    def note_copied(self, damage: Damage) -> None:
        """Count and log damage that a file came with from the master."""
        self._copied.add(damage.path)
        self.note(damage)

    @property
    def came_with_copy(self) -> bool:
        """Return True if what was copied last was damaged at the master."""
        return bool(self._copied)

    def may_copy_anew(self, store: Store) -> bool:
        """Return True if a damaged directory may be given up now for a new copy.

        What lies aside takes its room until the copy is whole, so that has to find room beside it.
        """
        if self._own is None:
            return False
        left_s = self._not_before - trio.current_time()
        if left_s > 0:
            hindrance = f"it was copied anew lately, and is again in {COPIED_AGAIN_S:.0f} s"
        else:
            needed = sum(one.length + one.facts_length for one in store.checkpoint.segments)
            free, _ = store.disk.free_bytes()
            hindrance = (
                f"a copy has some {needed} bytes, and {free} are free on this disk"
                if needed > free
                else ""
            )
        if hindrance != self.hindrance:
            self.hindrance = hindrance
            if hindrance:
                _log.error("nothing is copied anew in the place of what is damaged", why=hindrance)
        return not hindrance

    def given_up(self) -> None:
        """Begin anew: the directory is one without records now."""
        _log.warning(
            "this node gave up its damaged data directory, and copies all anew",
            fault=self.fault or "it cannot be opened",
        )
        self._places.clear()
        self._copied.clear()
        self.first, self.count, self._own = [], 0, None
        self.put_off()

    def put_off(self) -> None:
        """Give nothing up for a while."""
        self._not_before = trio.current_time() + COPIED_AGAIN_S
