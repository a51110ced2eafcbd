"""Digests of many records that do not depend on their order: sums of a hash of each.

Two sums of 64 bits each, modulo 2^64. They find what differs by accident; nobody's forgery is kept
out, who may write into the logs anyway.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from spark_tools.files.columns import Int64s, Rows
from spark_tools.judge.sequences import BLOCK

Uint64s = npt.NDArray[np.uint64]
Hashes = tuple[Uint64s, Uint64s]
_Key = TypeVar("_Key")
_SEEDS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_MODULUS = 2**64


@dataclass(slots=True)
class Digest:
    """So many records, and two sums over them."""

    count: int = 0
    low: int = 0
    high: int = 0

    def add(self, other: "Digest") -> None:
        """Add what another digest is of."""
        self.count += other.count
        self.low = (self.low + other.low) % _MODULUS
        self.high = (self.high + other.high) % _MODULUS

    def __str__(self) -> str:
        """Return the sums as 32 hex digits."""
        return f"{self.high:016x}{self.low:016x}"


def _mixed(columns: list[Int64s], seed: int) -> Uint64s:
    hashes = np.full(len(columns[0]), seed, np.uint64)
    for column in columns:
        hashes ^= column.view(np.uint64)
        for factor in _FACTORS:
            hashes *= factor
            hashes ^= hashes >> np.uint64(31)
    return hashes


def hashes_of(columns: list[Int64s]) -> Hashes:
    """Return two hashes of each of some records, of all their columns."""
    low, high = (_mixed(columns, seed) for seed in _SEEDS)
    return low, high


def hashes_of_rows(rows: Rows) -> Hashes:
    """Return the hashes of rows or records: alike where a row is what its record says.

    A row has the filed minute of its record in no segment but the one that it belongs into.
    """
    return hashes_of(
        [
            rows.sequence,
            rows.due_ms,
            rows.size.astype(np.int64),
            rows.id_hash,
            rows.minute,
            rows.origin.astype(np.int64),
        ]
    )


def digests_by(keys: Int64s, hashes: Hashes) -> dict[int, Digest]:
    """Return the digest of the records of each key."""
    if not len(keys):
        return {}
    parts: list[Uint64s] = list(hashes)
    if (keys[1:] < keys[:-1]).any():
        order = np.argsort(keys, kind="stable")
        keys, parts = keys[order], [one[order] for one in parts]
    begins = np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1])
    counts = np.diff(np.append(begins, len(keys)))
    sums = [np.add.reduceat(one, begins).tolist() for one in parts]
    return {
        key: Digest(count, low, high)
        for key, count, low, high in zip(keys[begins].tolist(), counts.tolist(), *sums, strict=True)
    }


def add_digests(into: dict[_Key, Digest], more: Mapping[_Key, Digest]) -> None:
    """Add digests to those of the same keys."""
    for key, digest in more.items():
        into.setdefault(key, Digest()).add(digest)


def digests_of(rows: Rows, hashes: Hashes) -> dict[int, Digest]:
    """Return the digests of rows or records by block of sequences."""
    return digests_by(rows.sequence // BLOCK, hashes)
