"""What must be true of a group, whatever happened: one function for each promise, without state.

Each takes a history and the disks after a power cut of all machines, as files by path, and yields
what is broken. The disks are read by `independent_reader.py`, which knows the pages of docs/formats
alone.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from delay_protocol.nodes.registration import GroupRecord
from tests.simulation import independent_reader as reader
from tests.simulation.independent_reader import Batch, MismatchError
from tests.simulation.story.history import History, What

Files = Mapping[str, bytes]
Disks = Mapping[str, Files]

SOON_S: Final = 0.5
"""Where nothing is broken an outcome is at the best other disk within 200 ms (outcome_lag.py), and
what is in flight has one within as long."""
ANSWER_S: Final = 0.1
"""An answer may be on its way to a producer for so long."""
HARMS: Final = {
    "kill": 0.0,
    "power_cut": 0.0,
    "clean_stop": 0.0,
    "wipe": 0.0,
    "partition": 1.0,
    "one_way": 1.0,
    "slow_disk": 15.0,
    "full_disk": 3.0,
    "meta_kill": 3.0,
}
"""What may keep an outcome from becoming committed for longer, and the seconds for which that may
last when it is over: an fsync that has begun goes on, a node waits before it looks for space or
connects anew, and one that was started while no meta server answered follows when one does."""


class Logs:
    """The logs of disks, each byte read once: a file only grows, unless its end is cut."""

    def __init__(self) -> None:
        self._read: dict[tuple[str, str], tuple[bytes, list[Batch]]] = {}

    def batches(self, name: str, files: Files) -> list[Batch]:
        """Return the batches of a disk that a start would find, in order."""
        found: list[Batch] = []
        for path in sorted(files):
            if path.startswith("message_log/") and path.endswith(".log"):
                found += self._of_file(name, path, files[path])
        return found

    def rows(self, name: str, files: Files) -> list[Batch]:
        """Return the batches of the segments of a disk."""
        return [
            batch
            for path in files
            if path.startswith("schedule_log/")
            for batch in self._of_file(name, path, files[path])
        ]

    def _of_file(self, name: str, path: str, data: bytes) -> list[Batch]:
        known, batches = self._read.get((name, path), (b"", []))
        if not data.startswith(known):
            known, batches = b"", []
        batches = list(batches)
        end = batches[-1].position + batches[-1].size if batches else reader.FILE_HEADER_SIZE
        try:
            header = reader.read_file_header(data)
            while end < len(data):
                batch = reader.read_batch(data, end, len(data), header)
                if batches and batch.previous_crc != batches[-1].crc:
                    break
                batches.append(batch)
                end = batch.position + batch.size
        except MismatchError:
            # What was being written: a start cuts it.
            pass
        self._read[name, path] = data[:end], batches
        return batches


def ids_of(batch: Batch) -> list[str]:
    """Return the ids of the messages that a batch accepts, or has filed."""
    if batch.kind not in {reader.MESSAGE, reader.ROWS}:
        return []
    return _ids(batch)


def _ids(batch: Batch) -> list[str]:
    return [reader.read_item(item).message_id.decode() for item in batch.items]


def missing_on(
    logs: Logs,
    name: str,
    files: Files,
    history: History,
    may_stay: Callable[[str], bool] = lambda _: False,
) -> set[str]:
    """Return which acknowledged messages a disk alone has not got.

    A copy need not have what had left before it was made, or may have been cancelled.
    """
    batches = [*logs.batches(name, files), *logs.rows(name, files)]
    # Of what was moved or given up a copy may have the record alone.
    kinds = {reader.MESSAGE, reader.ROWS, reader.MOVE, reader.DEAD}
    found = {one for batch in batches if batch.kind in kinds for one in _ids(batch)}
    missing = history.acknowledged() - found
    if missing and is_copy(files):
        missing -= {str(event.about) for event in history.of(What.ARRIVED)}
        missing = {one for one in missing if not may_stay(one)}
    return missing


def is_copy(files: Files) -> bool:
    """Say whether a disk began as the copy of another."""
    checkpoint = files.get("checkpoint/checkpoint")
    return checkpoint is not None and reader.read_checkpoint(checkpoint).is_copy


def kept(
    logs: Logs,
    history: History,
    disks: Disks,
    record: GroupRecord,
    may_stay: Callable[[str], bool] = lambda _: False,
) -> Iterator[str]:
    """Promise 1: each disk in sync, alone, has every acknowledged message."""
    for name in sorted(record.in_sync):
        missing = missing_on(logs, name, disks[name], history, may_stay)
        if missing:
            yield f"kept: {len(missing)} acknowledged are not on {name}: {sorted(missing)[:3]}"


def once(logs: Logs, history: History, disks: Disks) -> Iterator[str]:
    """Promise 2: nothing was accepted more often than it was sent and not refused."""
    sent = history.perhaps_kept()
    for name, files in disks.items():
        has = Counter(one for batch in logs.batches(name, files) for one in ids_of(batch))
        often = [one for one, count in has.items() if count > sent[one]]
        if often:
            yield f"once: {name} has {often[:3]} more often than they were sent"


def not_twice(
    logs: Logs, disks: Disks, is_changed: Callable[[str], bool] = lambda _: False
) -> Iterator[str]:
    """Nothing that was sent again has two rows; a story is shorter than the window.

    A node that began as a copy knows no repeats of what came before. is_changed: what may have been
    cancelled or given up: sent again, it is another message.
    """
    if any(map(is_copy, disks.values())):
        return
    for name, files in disks.items():
        rows = Counter(one for batch in logs.batches(name, files) for one in _originals(batch))
        twice = [one for one, count in rows.items() if count > 1 and not is_changed(one)]
        if twice:
            yield f"once: {name} has two rows of {twice[:3]}"


def _originals(batch: Batch) -> list[str]:
    """Return the ids of messages as their producers sent them; a copy for a name is none."""
    if batch.kind != reader.MESSAGE:
        return []
    items = [reader.read_item(item) for item in batch.items]
    subjects = (batch.names[place] for place in batch.columns["subject"])
    return [
        item.message_id.decode()
        for item, subject in zip(items, subjects, strict=True)
        if item.subject == subject
    ]


def never_early(
    history: History, times_of: Callable[[str], Collection[int]] = lambda _: ()
) -> Iterator[str]:
    """Promise 3: nothing arrives before it is due; times_of: those to which it may be moved."""
    due = {
        str(event.about): min(event.told_ms, *times_of(str(event.about)), event.told_ms)
        for event in history.of(What.SENT)
    }
    for event in history.of(What.ARRIVED):
        if event.told_ms < due[str(event.about)]:
            early_ms = due[str(event.about)] - event.told_ms
            yield f"early: {event.about} arrived {early_ms} ms before it was due"
    for event in history.of(What.RECEIVED):
        assert isinstance(event.about, tuple)
        message_id, due_ms = event.about
        if event.told_ms < max(due_ms, due[message_id]):
            yield f"early: {message_id} was received {due_ms - event.told_ms} ms before it was due"


def leaves(
    history: History,
    *,
    due_before_ms: int,
    may_stay: Callable[[str], bool] = lambda _: False,
) -> Iterator[str]:
    """Promise 4: what was acknowledged arrives, unless it may stay: it may be cancelled."""
    arrived = {str(event.about) for event in history.of(What.ARRIVED)}
    due = {str(event.about): event.told_ms for event in history.of(What.SENT)}
    missing = {one for one in history.acknowledged() - arrived if not may_stay(one)}
    left = [one for one in missing if due[one] < due_before_ms]
    if left:
        yield f"leaves: {len(left)} acknowledged did not arrive: {sorted(left)[:3]}"


def few_twice(history: History) -> Iterator[str]:
    """Promise 5: what arrives twice had no committed outcome when its master died or changed."""
    ends = list(_ends_of_masters(history))
    resets = [event.at_s for event in history.of(What.STRUCK) if event.who == "reset"]
    harms = list(_harms(history))
    # A receiver works for a while before it says what becomes of a message.
    received = {
        (event.about[0], event.told_ms): event.at_s
        for event in history.of(What.RECEIVED)
        if isinstance(event.about, tuple)
    }
    arrivals: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for event in history.of(What.ARRIVED):
        from_s = received.get((event.about, event.told_ms), event.at_s)
        arrivals[str(event.about)].append((from_s, event.at_s))
    copies = history.perhaps_kept()

    def is_excused(from_s: float, first_s: float, again_s: float) -> bool:
        if any(abs(at_s - first_s) <= SOON_S for at_s in resets):
            return True
        soon_s = first_s + SOON_S
        lasts = [until_s + SOON_S for begun_s, until_s in harms if begun_s <= soon_s]
        open_until_s = max([soon_s, *lasts])
        return any(from_s <= at_s <= min(again_s, open_until_s) for at_s in ends)

    for message_id, times in arrivals.items():
        # What was sent several times is several messages, of which each may arrive.
        again = times[copies[message_id] :]
        for (from_s, first_s), (_, again_s) in zip(times, again, strict=False):
            if not is_excused(from_s, first_s, again_s):
                yield f"twice: {message_id} arrived at {first_s:.1f} s and {again_s:.1f} s"


def done_once(history: History) -> Iterator[str]:
    """Yield what a receiver was told to be done with, and what came again all the same."""
    copies, done = history.perhaps_kept(), dict[object, float]()
    for event in history.of(What.DONE, What.RECEIVED):
        assert isinstance(event.about, tuple)
        message_id, _ = event.about
        if event.what is What.DONE:
            done[event.about] = event.at_s
        elif event.about in done and copies[message_id] == 1:
            done_s = done[event.about]
            yield f"done: {message_id} came again at {event.at_s:.1f} s, done at {done_s:.1f} s"


def _ends_of_masters(history: History) -> Iterator[float]:
    """Yield when a master may have ended: with its process, or with its epoch."""
    epoch = 0
    for event in history.of(What.ENDED, What.RECORDED):
        record = event.about
        if not isinstance(record, GroupRecord):
            yield event.at_s
        elif record.epoch != epoch:
            epoch = record.epoch
            yield event.at_s


def _harms(history: History) -> Iterator[tuple[float, float]]:
    """Yield from when until when something was broken that may keep outcomes back."""
    begun: dict[tuple[str, object], float] = {}
    for event in history.of(What.STRUCK, What.HEALED):
        if event.who not in HARMS:
            continue
        if event.what is What.STRUCK:
            begun[event.who, event.about] = event.at_s
        else:
            yield begun.pop((event.who, event.about)), event.at_s + HARMS[event.who]
    for from_s in begun.values():
        yield from_s, float("inf")


def one_master(logs: Logs, history: History, disks: Disks) -> Iterator[str]:
    """Promise 6: in an epoch one node acknowledges, the one that the record of it names."""
    masters: dict[int, set[str]] = defaultdict(set)
    for event in history.of(What.RECORDED):
        record = event.about
        assert isinstance(record, GroupRecord)
        if record.master is not None:
            masters[record.epoch].add(record.master.node_id)
    for epoch, names in masters.items():
        if len(names) > 1:
            yield f"one master: epoch {epoch} has {sorted(names)}"
    epochs: dict[str, set[int]] = defaultdict(set)
    for name, files in disks.items():
        for batch in logs.batches(name, files):
            for one in ids_of(batch):
                epochs[one].add(batch.epoch)
    for event in history.of(What.ACKED):
        # Who recognises what a master before it took confirms it.
        first = min(epochs[str(event.about)], default=0)
        may = {name for epoch, names in masters.items() if epoch >= first for name in names}
        if first and event.who not in may:
            yield f"one master: {event.who} acknowledged {event.about}, and {sorted(may)} may"
    yield from _acknowledged_late(history)


def _acknowledged_late(history: History) -> Iterator[str]:
    """Yield who acknowledges though another node has been recorded as the master for a while."""
    master, since_s = "", 0.0
    for event in history.of(What.RECORDED, What.ACKED):
        record = event.about
        if isinstance(record, GroupRecord):
            name = "" if record.master is None else record.master.node_id
            if name and name != master:
                master, since_s = name, event.at_s
        elif event.who != master and event.at_s - since_s > ANSWER_S:
            yield f"one master: {event.who} acknowledged {event.about} when {master} was the master"


def alike(logs: Logs, disks: Disks, record: GroupRecord) -> Iterator[str]:
    """Replicas in sync have the same records at the same places, byte for byte."""
    seen: dict[int, tuple[str, int]] = {}
    for name in sorted(record.in_sync):
        for batch in logs.batches(name, disks[name]):
            other, crc = seen.setdefault(batch.base, (name, batch.crc))
            if crc != batch.crc:
                yield f"alike: record {batch.base} of {name} is not that of {other}"
                return
