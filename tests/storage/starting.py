"""The start of a node that is alone: a data directory is opened, and what is durable is applied."""

import random
from collections.abc import Callable

from storage.batch.batches import Damage
from storage.disk.disk import Disk
from storage.node.store import RecoverySummary, Store, StoreSettings


def start(
    disk: Disk,
    settings: StoreSettings,
    *,
    chance: random.Random,
    now_ms: int,
    on_damage: Callable[[Damage], None],
) -> tuple[Store, RecoverySummary]:
    """Open and recover a data directory; return its store and what was done."""
    store, summary = Store.open(disk, settings, chance=chance, now_ms=now_ms, on_damage=on_damage)
    try:
        store.apply_tail(store.message_log.next_sequence, now_ms=now_ms)
    except BaseException:
        store.close()
        raise
    return store, summary
