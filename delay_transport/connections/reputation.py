"""Which addresses keep making connections that come to nothing."""

from collections import OrderedDict

from delay_transport.connections.limits import ConnectionLimits
from delay_transport.seams.leaky_bucket import LeakyBucket


class Standing:
    """Counts wasted connections by neighbourhood, of a bounded number of these.

    A connection is wasted if it ends without one request that was no fault. It is counted at its
    end and not before: thousands that come at once after a network was cut are no flood.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self._rate = limits.wasted_per_second_max
        self._size = limits.wasted_per_second_max * limits.wasted_burst_seconds
        self._most = self._size + limits.wasted_per_second_max * limits.wasted_memory_seconds
        self._known_max = limits.wasters_max
        self._known: OrderedDict[str, LeakyBucket] = OrderedDict()

    def __len__(self) -> int:
        """Return how many neighbourhoods are known."""
        return len(self._known)

    def wasted(self, where: str, now: float) -> bool:
        """Count a connection that came to nothing; say whether its standing is bad from now on.

        Whoever has no address ("") has no standing either.
        """
        if not where:
            return False
        bucket = self._known.get(where)
        if bucket is None:
            bucket = self._known[where] = LeakyBucket(
                rate=self._rate, size=self._size, most=self._most
            )
            if len(self._known) > self._known_max:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(where)
        was_bad = bucket.seconds_until_room(now) > 0
        bucket.pour(now, 1)
        return not was_bad and bucket.seconds_until_room(now) > 0

    def proven(self, where: str, now: float) -> None:
        """Let a connection with a good request make up for one without."""
        bucket = self._known.get(where)
        if bucket is not None:
            bucket.pour(now, -1)
            if not bucket.level(now):
                del self._known[where]

    def is_bad(self, where: str, now: float) -> bool:
        """Say whether too many came to nothing lately."""
        bucket = self._known.get(where)
        return bucket is not None and bucket.seconds_until_room(now) > 0
