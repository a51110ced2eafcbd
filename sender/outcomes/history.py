"""What is known of entries from earlier tries: who refused them for good, and who may have them."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import structlog

from delay_protocol.basics.codes import ItemCode
from delay_protocol.receivers.attaching import UNSETTLED_REASON
from delay_transport.seams.trouble import Trouble
from sender.outcomes.answers import Codes
from sender.outcomes.dead import OnDead, Refusal, Refusals
from sender.queues.parcels import Batch, Entries, Mask
from sender.queues.places import Having
from sender.settings.config import SenderConfig

_log: structlog.stdlib.BoundLogger = structlog.get_logger("sender")

DOUBTS_MAX: Final = 100_000
"""Entries in doubt that are known, about 100 bytes each. A drain says how many."""

_REFUSAL_LOG_S: Final = 60.0
"""Refused items are logged once in this long; the counts tell the rest."""


class History:
    """The refusals and doubts of entries without an outcome.

    It keeps both until an entry has an outcome. The sender calls it when entries are refused for
    good or in doubt, and when it has nothing more to do for them.
    """

    def __init__(self, *, config: SenderConfig, on_dead: OnDead) -> None:
        """Hand what is given up to `on_dead`."""
        self._refusals = Refusals()
        self._tries_max = config.dead_letter_tries
        self.left_with = Refusals()
        """Entries that receivers left with and had not settled."""
        self._doubts: set[int] = set()
        """Sequences of entries that a broker may have that did not answer for them, up to a limit.

        They are tried again, and are in doubt until a broker has answered for them.
        """
        self._on_dead = on_dead
        self._refused = Trouble(again_s=_REFUSAL_LOG_S)

    @property
    def in_doubt(self) -> int:
        """Entries that a broker may have that did not answer for them."""
        return len(self._doubts)

    @property
    def doubts_all(self) -> bool:
        """Whether more were in doubt than are known."""
        return len(self._doubts) >= DOUBTS_MAX

    def doubtful(self, wanted: frozenset[int]) -> dict[int, Having]:
        """Return those of these sequences that a broker may have that did not answer for them."""
        return dict.fromkeys(wanted & self._doubts, Having("", 0.0))

    def note_doubt(self, entries: Entries) -> None:
        """Note that nobody knows what became of these."""
        room = max(DOUBTS_MAX - len(self._doubts), 0)
        self._doubts.update(entries["sequence"][:room].tolist())

    def log_refusal(self, batch: Batch, codes: Codes, *, group: str, subject: bytes) -> None:
        """Log that items were refused for good; `subject` is the first one's."""
        self._refused.log(
            _log.warning,
            "items refused for good",
            group,
            group=group,
            items=len(batch),
            first_code=int(codes[0]),
            first_subject=subject.decode(errors="replace"),
            first_tries=int(batch.tries[0]) + 1,
        )

    def give_up(
        self, batch: Batch, codes: Codes, *, group: str, at_ms: int, has_others: bool
    ) -> Batch:
        """Hand on what was refused for good often enough; return the rest, which may be empty."""
        given_up, refusals = self._refusals.note(
            batch, codes, group=group, at_ms=at_ms, tries_max=self._tries_max, has_others=has_others
        )
        return self._hand_on(batch, given_up, refusals)

    def give_up_unsettled(self, batch: Batch, *, group: str, at_ms: int, tries_max: int) -> Batch:
        """Hand on what `tries_max` receivers left with, now one more; return the rest."""
        codes = np.full(len(batch), ItemCode.BLOCK, np.int32)
        given_up, refusals = self.left_with.note(
            batch,
            codes,
            group=group,
            at_ms=at_ms,
            tries_max=tries_max,
            has_others=False,
            said=UNSETTLED_REASON,
        )
        return self._hand_on(batch, given_up, refusals)

    def _hand_on(self, batch: Batch, given_up: Mask, refusals: Sequence[Refusal]) -> Batch:
        """Hand on what is given up, and return the rest."""
        if not refusals:
            return batch
        dead = batch.where(given_up)
        self.forget(dead.entries)
        self._on_dead(dead.entries, refusals, (dead.tries + np.uint32(1)).tolist())
        return batch.where(~given_up)

    def forget(self, entries: Entries) -> None:
        """Forget entries for which nothing more is to be done."""
        self._refusals.forget(entries)
        self.left_with.forget(entries)
        if self._doubts:
            self._doubts.difference_update(entries["sequence"].tolist())

    def forget_refusals(self, taken: list[Entries]) -> list[Entries]:
        """Forget who refused entries, or left with them, that may be away for long; return them.

        Others want their places.
        """
        for entries in taken:
            self._refusals.forget(entries)
            self.left_with.forget(entries)
        return taken
