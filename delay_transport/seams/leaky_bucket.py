"""A leaky bucket: how much of something there was lately, against how much there may be."""


class LeakyBucket:
    """Runs out at `rate` a second and is full at `size`; time is an argument, in seconds.

    What is poured in beyond the size is kept: the bucket then takes longer to have room again.
    """

    __slots__ = ("_at", "_level", "_rate", "_size")

    def __init__(self, *, rate: float, size: float) -> None:
        self._rate = rate
        self._size = size
        self._level = 0.0
        self._at = 0.0

    def pour(self, now: float, amount: float) -> None:
        """Add to what there was."""
        self._level = self.level(now) + amount
        self._at = now

    def level(self, now: float) -> float:
        """Return how much there is at `now`, which never decreases from call to call."""
        return max(0.0, self._level - (now - self._at) * self._rate)

    def seconds_until_room(self, now: float) -> float:
        """Return after how long it is no longer over its size; 0 if it is not."""
        return max(0.0, self.level(now) - self._size) / self._rate
