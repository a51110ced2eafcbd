"""What can happen to bytes at rest: one injection is one damage to one file, or to two.

Blocks are sectors (512 bytes) and pages (4096), at multiples of their size, as disks lose and
misplace them.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from tests.damage.directory import Populated

BLOCK_SIZES = (512, 4096)


class Kind(Enum):
    """How bytes go bad."""

    FLIP = "flipped bits"
    ZERO = "zeroed block"
    SWAP_WITHIN = "blocks swapped within a file"
    SWAP_BETWEEN = "blocks swapped between files"
    REPEAT = "block repeated over another"
    STALE = "older copy of a block"
    CUT = "file cut short"
    GONE = "file gone"
    WITH_END = "durable end lost, and more"


@dataclass(frozen=True, slots=True)
class Injection:
    """One damage.

    struck: what the files it touches hold afterwards, None for one that is gone; what: in words.
    """

    kind: Kind
    struck: Mapping[str, bytes | None]
    what: str


def draw(directory: Populated, path: str, kind: Kind, chance: random.Random) -> Injection | None:
    """Return a damage of this kind to this file, None if it would change nothing or cannot be."""
    found = _DRAWS[kind](directory, path, chance)
    if found is None:
        return None
    struck, what = found
    changed = {
        name: data
        for name, data in struck.items()
        if data is None or data != directory.files.get(name)
    }
    return Injection(kind, changed, f"{path}: {what}") if changed else None


_Struck = tuple[Mapping[str, bytes | None], str]


def _flip(directory: Populated, path: str, chance: random.Random) -> _Struck | None:
    data = bytearray(directory.files[path])
    if not data:
        return None
    places = [
        (chance.randrange(len(data)), chance.randrange(8))
        for _ in range(chance.choice([1, 1, 2, 3]))
    ]
    for position, bit in places:
        data[position] ^= 1 << bit
    return {path: bytes(data)}, f"bits flipped at {sorted(places)}"


def _zero(directory: Populated, path: str, chance: random.Random) -> _Struck | None:
    data = bytearray(directory.files[path])
    place = _block(len(data), chance)
    if place is None:
        return None
    begin, end = place
    data[begin:end] = bytes(end - begin)
    return {path: bytes(data)}, f"zeros from {begin} to {end}"


def _swap_within(directory: Populated, path: str, chance: random.Random) -> _Struck | None:
    data = directory.files[path]
    size = _size_for(len(data) // 2, chance)
    count = len(data) // size
    if count < 2:
        return None
    first, second = (place * size for place in sorted(chance.sample(range(count), 2)))
    swapped = bytearray(data)
    swapped[first : first + size] = data[second : second + size]
    swapped[second : second + size] = data[first : first + size]
    return {path: bytes(swapped)}, f"{size} bytes at {first} and {second} swapped"


def _swap_between(directory: Populated, path: str, chance: random.Random) -> _Struck | None:
    data = directory.files[path]
    # Half of them with a file of the same log, whose blocks look most alike.
    folder = path.rpartition("/")[0]
    others = [
        other
        for other, content in directory.files.items()
        if other != path and len(content) >= BLOCK_SIZES[0]
    ]
    alike = [other for other in others if other.rpartition("/")[0] == folder]
    other = chance.choice(alike if alike and chance.random() < 0.5 else others)
    size = _size_for(min(len(data), len(directory.files[other])), chance)
    if len(data) < size or len(directory.files[other]) < size:
        return None
    here = chance.randrange(len(data) // size) * size
    there = chance.randrange(len(directory.files[other]) // size) * size
    mine, its = bytearray(data), bytearray(directory.files[other])
    mine[here : here + size] = directory.files[other][there : there + size]
    its[there : there + size] = data[here : here + size]
    what = f"{size} bytes at {here} swapped with those of {other} at {there}"
    return {path: bytes(mine), other: bytes(its)}, what


def _repeat(directory: Populated, path: str, chance: random.Random) -> _Struck | None:
    data = bytearray(directory.files[path])
    size = _size_for(len(data) // 2, chance)
    count = len(data) // size
    if count < 2:
        return None
    source, target = (place * size for place in chance.sample(range(count), 2))
    data[target : target + size] = directory.files[path][source : source + size]
    return {path: bytes(data)}, f"{size} bytes at {source} repeated at {target}"


def _stale(directory: Populated, path: str, chance: random.Random) -> _Struck | None:
    past = directory.older.get(path)
    if not past:
        return None
    before = chance.choice(past)
    data = bytearray(directory.files[path])
    place = _block(max(len(data), 1), chance)
    if place is None:
        return None
    begin, end = place
    old = before[begin:end]
    # Where the file was shorter the block held nothing yet.
    data[begin:end] = old.ljust(end - begin, b"\0")
    return {path: bytes(data)}, f"an older copy from {begin} to {end}"


def _cut(directory: Populated, path: str, chance: random.Random) -> _Struck | None:
    data = directory.files[path]
    if not data:
        return None
    size = chance.randrange(len(data))
    if chance.random() < 0.5:
        size -= size % BLOCK_SIZES[0]
    return {path: data[:size]}, f"cut from {len(data)} to {size} bytes"


def _gone(directory: Populated, path: str, _chance: random.Random) -> _Struck | None:
    return {path: None}, f"gone, {len(directory.files[path])} bytes"


def _with_end(directory: Populated, path: str, chance: random.Random) -> _Struck | None:
    """Damage a file of a log, and lose the durable end that could have told of it."""
    end = f"{path.rpartition('/')[0]}/durable_end"
    if path == end or end not in directory.files:
        return None
    found = chance.choice([_flip, _zero, _repeat, _stale, _cut])(directory, path, chance)
    if found is None:
        return None
    data = directory.files[end]
    ways = {
        "gone": None,
        "empty": b"",
        "zeros": bytes(len(data)),
        "cut short": data[: chance.randrange(len(data))],
        "other bytes": chance.randbytes(len(data)),
    }
    how, left = chance.choice(list(ways.items()))
    return {**found[0], end: left}, f"{found[1]}; {end} {how}"


def _size_for(most: int, chance: random.Random) -> int:
    """Return a block size, the larger one only where there is room for it."""
    return chance.choice([size for size in BLOCK_SIZES if size <= most] or [BLOCK_SIZES[0]])


def _block(length: int, chance: random.Random) -> tuple[int, int] | None:
    """Return where a block of a file of this length begins and ends; the last may be a part."""
    if not length:
        return None
    size = chance.choice(BLOCK_SIZES)
    begin = chance.randrange(length) // size * size
    return begin, min(begin + size, length)


_DRAWS: Mapping[Kind, Callable[[Populated, str, random.Random], _Struck | None]] = {
    Kind.FLIP: _flip,
    Kind.ZERO: _zero,
    Kind.SWAP_WITHIN: _swap_within,
    Kind.SWAP_BETWEEN: _swap_between,
    Kind.REPEAT: _repeat,
    Kind.STALE: _stale,
    Kind.CUT: _cut,
    Kind.GONE: _gone,
    Kind.WITH_END: _with_end,
}
