"""The corpus: a text file per target, an input per line, in hex.

    # a remark
    0012dec10ade
    a name: 0012dec10ade

An input with a name is a regression: it made a decoder break a promise once, and is never thrown
away. The others are there because they reach code that no smaller one reaches; `make fuzz` replaces
them. `-` stands for the empty input.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "corpus"
_BYTES_PER_PIECE: Final = 45
"""Long inputs go on in lines that begin with a space."""


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One input; name: of a regression, or empty."""

    name: str
    data: bytes


def path_of(target: str) -> Path:
    """Return where the corpus of a target lies."""
    return FOLDER / f"{target}.hex"


def read_corpus(target: str) -> list[Entry]:
    """Return the corpus of a target, regressions first; none if there is no file."""
    path = path_of(target)
    return parse(path.read_text(encoding="ascii")) if path.exists() else []


def write_corpus(target: str, entries: Iterable[Entry]) -> None:
    """Replace the corpus of a target."""
    FOLDER.mkdir(exist_ok=True)
    path_of(target).write_text(render(entries), encoding="ascii")


def parse(text: str) -> list[Entry]:
    """Return the inputs that a text holds. ValueError for a line that is none."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(" "):
            lines[-1] += line.strip()
        elif line and not line.startswith("#"):
            lines.append(line)
    entries = []
    for line in lines:
        name, _, data = line.rpartition(":")
        entries.append(Entry(name, bytes.fromhex(data.strip().removeprefix("-"))))
    return sorted(entries, key=lambda entry: not entry.name)


def render(entries: Iterable[Entry]) -> str:
    """Return the text that `parse` reads: regressions by name, then the others by size."""
    ordered = sorted(
        set(entries), key=lambda one: (not one.name, one.name, len(one.data), one.data)
    )
    lines: list[str] = []
    for entry in ordered:
        cut = 2 * _BYTES_PER_PIECE
        digits = entry.data.hex() or "-"
        prefix = f"{entry.name}: " if entry.name else ""
        lines.append(prefix + digits[:cut])
        lines += [" " + digits[at : at + cut] for at in range(cut, len(digits), cut)]
    return "\n".join(lines) + "\n"
