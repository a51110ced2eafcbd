"""A data directory in which every kind of file has something in it, and what is known of it.

It is made by the storage package's own code on a simulated disk, driven as the server drives it,
through three lives, and is left as a SIGKILL leaves it: the last commits are not filed, nor are the
last outcomes and the last records that give messages up, requeue or drop them. It differs by seed,
and is the same for the same seed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from delay_protocol.nodes.controls import SubjectControl
from delay_server.controls.controls_store import ControlsStore
from storage.disk.spans import MINUTE_MS, Span, key_of_minute
from storage.limits import StorageLimits
from storage.node.store import StoreSettings
from tests.simulation.disk import SimDisk
from tests.simulation.faults import Action, Trap
from tests.storage.dead_rig import Dead, DeadRig
from tests.storage.store_rig import GRACE_MS

HOUR_MS = 60 * MINUTE_MS
SETTINGS = StoreSettings(
    limits=StorageLimits(
        minute_horizon_minutes=4,
        hour_horizon_minutes=240,
        gather_bytes_max=4000,
        open_files_max=16,
        message_log_file_bytes_max=12_000,
        retired_grace_ms=GRACE_MS,
    )
)


@dataclass(frozen=True, slots=True)
class Populated:
    """A directory as a SIGKILL left it.

    older: what each file held at earlier times, newest last; items: of every accepted message, by
    sequence, requeued ones under that of their MOVE record; dead: rows of dead segments, by the
    sequence of their DEAD record; settled: those of them that a MOVE or CANCEL record names;
    crossed_off: sequences, of dead rows too, that have a durable fact;
    retired, quarantined: paths, as the checkpoint lists them; now_ms: the wall clock; end_ms: when
    everything is due.
    """

    files: Mapping[str, bytes]
    older: Mapping[str, list[bytes]]
    items: Mapping[int, bytes]
    dead: Mapping[int, Dead]
    settled: frozenset[int]
    crossed_off: frozenset[int]
    retired: frozenset[str]
    quarantined: frozenset[str]
    now_ms: int
    end_ms: int
    settings: StoreSettings


@cache
def populated(seed: int) -> Populated:
    """Return the directory of a seed."""
    rig = DeadRig(seed, settings=SETTINGS, damage_expected=True)
    older: dict[str, list[bytes]] = {}
    rig.open()
    _settle_a_day(rig, older)
    _operate(rig, 5)
    _live(rig, older, rounds=10)
    _operate(rig, 20)
    _quarantine(rig)
    _live(rig, older, rounds=8)
    rig.reopen()
    _live(rig, older, rounds=6)
    rig.reopen()
    _live(rig, older, rounds=4)
    _give_up(rig, older)
    _seal(rig)
    _leave_unfinished(rig)
    files = rig.disk.contents()
    checkpoint = rig.store.checkpoint
    return Populated(
        files=files,
        older={path: _others(past, files.get(path)) for path, past in older.items()},
        items={sequence: message.item for sequence, message in rig.memory.accepted.items()},
        dead=dict(rig.dead.rows),
        settled=frozenset(rig.dead.settled),
        crossed_off=frozenset(rig.memory.durable_facts),
        retired=frozenset(file.path for file in checkpoint.retired) & files.keys(),
        quarantined=frozenset(checkpoint.quarantined),
        now_ms=rig.now_ms,
        end_ms=max(message.due_ms for message in rig.memory.accepted.values()) + 48 * HOUR_MS,
        settings=SETTINGS,
    )


def _operate(rig: DeadRig, count: int) -> None:
    """Change rules, as an operator does."""
    store = ControlsStore(rig.disk, log_uuid=rig.store.identity.log_uuid)
    for _ in range(count):
        name = f"s{store.controls.version}"
        store.take(store.controls.with_subject(name, SubjectControl(paused=True)))


def _others(past: list[bytes], present: bytes | None) -> list[bytes]:
    return [data for data in dict.fromkeys(past) if data != present]


def _settle_a_day(rig: DeadRig, older: dict[str, list[bytes]]) -> None:
    """Give messages up and settle all of them, until their day has passed and is sealed."""
    rig.split(100)
    _give_up(rig, older)
    _settle(rig, 100, requeue=False)
    rig.checkpoint()
    _remember(rig.disk, older)
    rig.now_ms += 3 * HOUR_MS
    rig.split(1000)
    rig.commit_floor()
    rig.file(10)
    rig.checkpoint()
    _remember(rig.disk, older)


def _give_up(rig: DeadRig, older: dict[str, list[bytes]]) -> None:
    """Give messages up, then requeue some of them and drop others; some stay."""
    for _ in range(3):
        now = rig.now_ms
        rig.commit([now + place for place in range(5)])
        rig.file(10)
        rig.load(steps=1000)
        rig.now_ms += 1000
        rig.bury(4)
        rig.deliver()
        _tell(rig)
        rig.flush()
        rig.checkpoint()
        _remember(rig.disk, older)
    _settle(rig, 3, requeue=True)
    rig.deliver(2)
    _tell(rig)
    rig.checkpoint()
    _remember(rig.disk, older)
    _settle(rig, 3, requeue=False)
    rig.checkpoint()
    _remember(rig.disk, older)


def _settle(rig: DeadRig, count: int, *, requeue: bool) -> None:
    """Requeue or drop some dead letters; their facts are durable."""
    rig.settle(count, requeue=requeue)
    _tell(rig)


def _tell(rig: DeadRig) -> None:
    """File what was committed, and make facts of what became of messages."""
    rig.file(10)
    rig.load(steps=1000)
    rig.cross_off()


def _live(rig: DeadRig, older: dict[str, list[bytes]], *, rounds: int) -> None:
    """Take messages for all spans, deliver what is due, and write checkpoints, for a while."""
    chance = rig.chance
    for _ in range(rounds):
        now = rig.now_ms
        rig.split(3)
        rig.commit([now + chance.randrange(2_000) for _ in range(chance.randrange(1, 5))])
        rig.commit([now + chance.randrange(5 * MINUTE_MS) for _ in range(chance.randrange(1, 4))])
        if chance.random() < 0.5:
            rig.commit([now + 2 * HOUR_MS + chance.randrange(HOUR_MS) for _ in range(2)])
        if chance.random() < 0.3:
            rig.commit([now + 60 * HOUR_MS + chance.randrange(20 * HOUR_MS) for _ in range(2)])
        rig.file(10)
        rig.load(steps=10)
        rig.now_ms += chance.choice([300, 1_500, 20_000, 50_000])
        if chance.random() < 0.2:
            rig.bury(chance.choice([1, 3]))
        if chance.random() < 0.2:
            rig.settle(chance.choice([1, 2]), requeue=chance.random() < 0.5)
        rig.deliver(chance.choice([2, 5, 100]))
        rig.cross_off()
        if chance.random() < 0.3:
            rig.commit_floor()
            rig.file(10)
        if chance.random() < 0.6:
            rig.checkpoint()
        rig.sync_durable_end()
        _remember(rig.disk, older)


def _quarantine(rig: DeadRig) -> None:
    """Damage a batch of an hour segment, so that its file is kept when the segment is split.

    The hour before it is split as well; its files are retired, until the end of the story.
    """
    hour_ms = (rig.now_ms + 150 * MINUTE_MS) // HOUR_MS * HOUR_MS
    rig.commit([hour_ms - 20 * MINUTE_MS, hour_ms - 10 * MINUTE_MS])
    for _ in range(4):
        rig.commit([hour_ms + 45 * MINUTE_MS + place * 1000 for place in range(3)])
        rig.file(10)
        rig.flush()
    rig.checkpoint()
    hours = [segment for segment in rig.store.schedule.segments.values() if segment.key.span == 2]
    segment = max(hours, key=lambda one: one.rows)
    rig.disk.damage(segment.file.path, segment.file.length - 10, b"\xff\xfe\xfd")
    rig.now_ms = segment.key.start * MINUTE_MS - 2 * MINUTE_MS
    rig.split(1000)
    rig.checkpoint()
    rig.load(steps=1000)
    rig.now_ms += 3 * MINUTE_MS
    rig.deliver()
    rig.cross_off()


def _seal(rig: DeadRig) -> None:
    """Close minutes whose messages were all delivered."""
    for _ in range(2):
        rig.load(steps=1000)
        rig.now_ms += MINUTE_MS
        rig.deliver()
        rig.cross_off()
        rig.commit_floor()
        rig.file(10)
        rig.split(100)
        rig.checkpoint()
        rig.sync_durable_end()


def _leave_unfinished(rig: DeadRig) -> None:
    """Leave what is not filed: messages, outcomes, and records about older messages.

    And a segment with facts behind the checkpoint's sequence, since a row before them found no
    space.
    """
    now = rig.now_ms
    rig.commit([now + place for place in range(6)])
    rig.commit([now + MINUTE_MS, now + 2 * HOUR_MS, now + 90 * HOUR_MS])
    rig.file(10)
    rig.checkpoint()
    rig.load(steps=1000)
    rig.commit([now + 120 * HOUR_MS])
    rig.now_ms += 1
    rig.deliver(1)
    rig.cross_off()
    waits = key_of_minute((now + 120 * HOUR_MS) // MINUTE_MS, Span.DAY).path
    rig.disk.arm(Trap(action=Action.FULL, when=lambda _k, path, _l: path == waits))
    rig.checkpoint()
    for _ in range(5):
        rig.now_ms += 1
        rig.deliver(1)
        rig.cross_off()
    now = rig.now_ms
    rig.commit([now, now, now, now])
    rig.file(10)
    rig.load(steps=1000)
    rig.bury(2)
    _tell(rig)
    _settle(rig, 1, requeue=True)
    _settle(rig, 1, requeue=False)
    for place in range(5):
        rig.commit([rig.now_ms + place, rig.now_ms + 3 * MINUTE_MS, rig.now_ms + 3 * HOUR_MS])
    rig.file(2)
    rig.flush()
    rig.settle(1, requeue=True)
    rig.settle(1, requeue=False)
    rig.bury(2)
    rig.deliver(1)
    rig.state_facts()
    rig.sync_durable_end()
    # Beyond the durable end that is known to be durable.
    rig.commit([rig.now_ms + 50])


def _remember(disk: SimDisk, older: dict[str, list[bytes]]) -> None:
    for path, data in disk.contents().items():
        older.setdefault(path, []).append(data)
