"""What of the schedule_log could not be read, and what is damaged.

An error of the operating system is no damage: the file is tried again, for as long as somebody may
(docs/decisions/0020-an-error-of-the-system-is-no-damage.md).
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from storage.batch.batches import Damage
from storage.disk.errors import ReadFailedError


@dataclass(slots=True)
class Unread:
    """A file that the operating system could not read when it was tried last."""

    path: str
    errno: int | None
    reason: str
    failures: int
    """Tries that failed, one after another."""

    given_up: bool = False
    """Whether what cannot be read of it is taken for damage from now on."""


class ReadTroubles:
    """Files that could not be read, and damage that was reported."""

    def __init__(self, on_damage: Callable[[Damage], None]) -> None:
        self.is_patient = False
        """Whether an error of the operating system at reading is passed on, to be tried again later
        (ReadFailedError), rather than taken for damage. A recovery has nobody to try again."""
        self.unread: dict[str, Unread] = {}
        """By path: what could not be read, until it is. Others may look at it, not change it."""
        self.on_damage = on_damage
        self._reported: set[tuple[str, int]] = set()

    def report(self, damage: Damage) -> None:
        """Pass damage on to whoever listens; once, however often it is met."""
        place = (damage.path, damage.position)
        if place not in self._reported:
            self._reported.add(place)
            self.on_damage(damage)

    def is_patient_with(self, path: str) -> bool:
        """Say whether a file that cannot be read is tried again, rather than taken for damage."""
        known = self.unread.get(path)
        return self.is_patient and not (known is not None and known.given_up)

    @contextlib.contextmanager
    def trying(self, path: str) -> Iterator[None]:
        """Note what becomes of an attempt to read all of a file; it may raise ReadFailedError."""
        with self.noting(path):
            yield
        self.unread.pop(path, None)

    @contextlib.contextmanager
    def noting(self, path: str) -> Iterator[None]:
        """Note whether an attempt to read something of a file raises ReadFailedError."""
        try:
            yield
        except ReadFailedError as error:
            known = self.unread.get(path)
            failures = known.failures if known is not None else 0
            given_up = known is not None and known.given_up
            self.unread[path] = Unread(path, error.errno, error.reason, failures + 1, given_up)
            raise

    def give_up_on(self, path: str) -> None:
        """Take what cannot be read of a file for damage, as long as it cannot be."""
        known = self.unread.get(path)
        if known is not None:
            known.given_up = True
