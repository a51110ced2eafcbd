"""Lateness is of messages that could have been delivered in time."""

import numpy as np

from delay_server.sending.lateness import Lateness
from storage.batch.entries import ENTRY
from storage.disk.spans import MINUTE_MS

MINUTE = 23_091_840


def test_what_was_sent_past_due_is_left_out() -> None:
    lateness = Lateness(lambda: 0)
    entries = np.zeros(3, ENTRY)
    entries["due_ms"] = [MINUTE * MINUTE_MS, (MINUTE + 1) * MINUTE_MS - 1, (MINUTE - 1440) * 60_000]
    entries["minute"] = MINUTE
    lateness.observe(entries[2:], (MINUTE + 1) * MINUTE_MS)
    assert lateness.all.total == lateness.recent().total == 0
    lateness.observe(entries, (MINUTE + 1) * MINUTE_MS)
    assert (lateness.all.total, lateness.all.most) == (2, 60)
    assert lateness.recent().total == 2
