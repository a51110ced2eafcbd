"""Which dead letters somebody means, as an expression over the index."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np
from xxhash import xxh3_64_intdigest

from delay_server.dead.reason import code_of
from storage.batch.number_set import Mask
from storage.schedule.dead_index import DeadIndex, LastRefusal

Millis = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Code = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class Wanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A filter; what is not given does not matter. Bounds of times are wall ms, both included."""

    subject: str | None = None
    subject_prefix: str | None = None
    code: str | Code | None = None
    """Number or name of the last refusal's item code."""
    group: str | None = None
    """The broker group of the last refusal."""
    message_id: str | None = None
    due_from_ms: Millis | None = None
    due_until_ms: Millis | None = None
    dead_from_ms: Millis | None = None
    dead_until_ms: Millis | None = None

    def mask(self, index: DeadIndex) -> Mask:
        """Say which rows of the index are wanted; message ids are told by their hash."""
        rows = index.rows
        mask: Mask = np.ones(len(rows), np.bool_)
        for name in ("due_ms", "dead_ms"):
            kind = name.removesuffix("_ms")
            begin, end = getattr(self, f"{kind}_from_ms"), getattr(self, f"{kind}_until_ms")
            mask &= True if begin is None else rows[name] >= begin
            mask &= True if end is None else rows[name] <= end
        if self.message_id is not None:
            mask &= rows["id_hash"] == np.uint64(xxh3_64_intdigest(bytes_of(self.message_id)))
        if self.subject is not None or self.subject_prefix is not None:
            subjects = [of for name, of in index.subjects.items() if self._subject_fits(name)]
            mask &= np.isin(rows["subject"], subjects)
        if self.code is not None or self.group is not None:
            reasons = [of for last, of in index.reasons.items() if self._refusal_fits(last)]
            mask &= np.isin(rows["reason"], reasons)
        return mask

    def _subject_fits(self, subject: bytes) -> bool:
        if self.subject is not None and subject != bytes_of(self.subject):
            return False
        return self.subject_prefix is None or subject.startswith(bytes_of(self.subject_prefix))

    def _refusal_fits(self, last: LastRefusal) -> bool:
        if self.code is not None and last.code != code_of(str(self.code)):
            return False
        return self.group is None or last.group == self.group


Meant = Wanted | Sequence[int]
"""A filter, or the sequences of dead letters."""


def mask_of(meant: Meant, index: DeadIndex, *, after: int = 0) -> Mask:
    """Say which rows behind sequence `after` are meant and not named by a record already."""
    rows = index.rows
    if isinstance(meant, Wanted):
        mask = meant.mask(index)
    else:
        mask = np.isin(rows["sequence"], np.array(meant, np.int64))
    mask &= ~rows["named"]
    mask &= rows["sequence"] > after
    return mask


def bytes_of(text: str) -> bytes:
    """Return the bytes of a name as it came over HTTP."""
    return text.encode(errors="surrogateescape")
