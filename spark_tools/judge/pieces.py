"""Pieces of the message_log that were read once: digests of what is due in each hour."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_tools.files.columns import Int64s
from spark_tools.judge.digests import Digest, Uint64s
from storage.batch.batches import Damage

HOURS_SCHEMA = pa.schema(
    [("hour", pa.int64()), ("count", pa.int64()), ("low", pa.uint64()), ("high", pa.uint64())]
)


@dataclass(frozen=True, slots=True)
class HourDigests:
    """Digests by hour, in order; hours are minutes since 1970."""

    hour: Int64s
    count: Int64s
    low: Uint64s
    high: Uint64s

    @classmethod
    def from_dict(cls, digests: Mapping[int, Digest]) -> "HourDigests":
        """Return them as arrays."""
        hours = sorted(digests)
        found = [digests[hour] for hour in hours]
        return cls(
            np.array(hours, np.int64),
            np.array([one.count for one in found], np.int64),
            np.array([one.low for one in found], np.uint64),
            np.array([one.high for one in found], np.uint64),
        )

    @classmethod
    def from_table(cls, table: pa.Table) -> "HourDigests":
        """Return those of a table of HOURS_SCHEMA."""
        return cls(*(table[name].to_numpy() for name in HOURS_SCHEMA.names))

    def table(self) -> pa.Table:
        """Return them as a table of HOURS_SCHEMA."""
        return pa.table([self.hour, self.count, self.low, self.high], schema=HOURS_SCHEMA)

    def of(self, hour: int) -> Digest:
        """Return the digest of one hour."""
        place = int(np.searchsorted(self.hour, hour))
        if place == len(self.hour) or self.hour[place] != hour:
            return Digest()
        return Digest(int(self.count[place]), int(self.low[place]), int(self.high[place]))

    def dict(self) -> dict[int, Digest]:
        """Return them by hour."""
        return {hour: self.of(hour) for hour in self.hour.tolist()}

    def since(self, hour: int) -> "HourDigests":
        """Return those of an hour and all later ones."""
        place = int(np.searchsorted(self.hour, hour))
        return HourDigests(
            self.hour[place:], self.count[place:], self.low[place:], self.high[place:]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Sequences of the message_log that were read, the second exclusive, and what is due when.

    damages: what could not be read of it; such a piece is read again by the next run.
    """

    first: int
    after: int
    hours: HourDigests
    damages: tuple[Damage, ...] = ()
