"""What happened in a simulated run, as one hash: equal seeds must give equal traces.

Every seam of the simulation notes what it was asked and what it answered. Where two runs of one
seed differ, `lines` of both (with `keep=True`) show the first step at which they parted.
"""

import hashlib

_LINES_PER_UPDATE = 256
"""Lines hashed in one go: joining them costs less than a hash call for each."""


class Trace:
    """A running SHA-256 over lines."""

    def __init__(self, *, keep: bool = False) -> None:
        self._hash = hashlib.sha256()
        self._waiting: list[str] = []
        self._keep = keep
        self._kept: list[str] = []
        self._hashed = 0

    @property
    def count(self) -> int:
        """How many lines were noted."""
        return self._hashed + len(self._waiting)

    @property
    def lines(self) -> list[str]:
        """The lines noted so far; without `keep` only the last few."""
        return self._kept + self._waiting

    def note(self, line: str) -> None:
        """Add a line."""
        self._waiting.append(line)
        if len(self._waiting) >= _LINES_PER_UPDATE:
            self._flush()

    def digest(self) -> str:
        """Return the hash of all lines so far, in hex."""
        self._flush()
        return self._hash.copy().hexdigest()

    def _flush(self) -> None:
        if not self._waiting:
            return
        self._hash.update("\n".join(self._waiting).encode())
        self._hash.update(b"\n")
        self._hashed += len(self._waiting)
        if self._keep:
            self._kept += self._waiting
        else:
            self._kept = self._waiting[-32:]
        self._waiting = []
