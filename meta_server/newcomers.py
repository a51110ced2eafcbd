"""How many subjects may be used for the first time: in all, and from one address."""

from collections import OrderedDict
from typing import Final

from delay_transport.leaky_bucket import LeakyBucket
from meta_server.config import RegistrationConfig
from meta_server.errors import RefusedError

ADDRESSES_MAX: Final = 1000
"""Addresses that are told apart; of more than that those that made no subject for longest begin
anew."""


class Newcomers:
    """Admits subjects at the rate of the settings, of which one address has a share."""

    def __init__(self, limits: RegistrationConfig) -> None:
        self._rate = limits.new_subjects_per_second_max
        self._size = self._rate * limits.new_subjects_burst_seconds
        self._share = limits.new_subjects_address_share
        self._all = LeakyBucket(rate=self._rate, size=self._size)
        self._from: OrderedDict[str, LeakyBucket] = OrderedDict()

    def __len__(self) -> int:
        """Return how many addresses are told apart."""
        return len(self._from)

    def admit(self, where: str, now: float) -> None:
        """Count a new subject of a client from there; raise RefusedError if it is too early.

        What is refused is not counted, and takes nothing from others.
        """
        own = self._from.get(where)
        if own is not None and own.seconds_until_room(now):
            raise RefusedError(
                "too many subjects are used for the first time from this address; try again later"
            )
        if self._all.seconds_until_room(now):
            raise RefusedError("too many subjects are used for the first time; try again later")
        if own is None:
            own = self._from[where] = LeakyBucket(
                rate=self._rate * self._share, size=self._size * self._share
            )
            if len(self._from) > ADDRESSES_MAX:
                self._from.popitem(last=False)
        self._from.move_to_end(where)
        own.pour(now, 1)
        self._all.pour(now, 1)
