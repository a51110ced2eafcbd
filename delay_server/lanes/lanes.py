"""In which lane of the sender a subject's messages stand, and which of them wait on disk. Pure.

A *lane* is a number; in the sender lanes take turns. Which one a subject has:

    0                    that of all others, where every subject goes to any group
    1 to lanes_max       its own, while more than a little of it is held for delivery
    base - 1             what comes back from disk of subjects that belong in lane 0
    base + NO_ROUTE      while it has no route, or is paused: nothing leaves there
    base + BARRED        while the meta server refuses it for good: dead letters are made of it
    base + SHARED        while several names receive it: each gets a copy (receiving/copies.py)
    base + route         that of all others which go to the same broker groups (routes.py)

If more is to be held of a lane than its share, the messages beyond it are given back, and their
subjects are *parked*: whatever is popped of them, or would enter the wheel, is given back as well,
and comes from disk again as fast as the lane leaves (backlog_reader.py). A subject without a route,
or one that is paused, is parked whenever a message of it is due, and stays so until it may go. The
share is half of what is free, as in the shared buffers of network switches: k lanes that wait leave
2/(2+k) of the room free for all others. Lane 0 has no share: beside it there is nobody.

What is parked is kept by number: a few bytes each, however many messages it has. A parked subject
is in the same lane of the handout (storage/schedule/handout.py), any other in its lane 0.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from delay_server.lanes.backlog import Backlog, Unrouted
from delay_server.lanes.own_lanes import OwnLanes
from delay_server.lanes.parked import UNROUTED_MAX, Parked
from storage.batch.entries import Entries
from storage.batch.number_set import grown
from storage.disk.sorting import each_once

NO_ROUTE: Final = 0
"""The route of subjects that have none or are paused."""

BARRED: Final = 1
"""The route of subjects that will never have one."""

SHARED: Final = 2
"""The route of subjects of which each of several names gets a copy; those that lead to broker
groups, or to one name, are numbered from 3."""

_ASKED_AT_ONCE: Final = 2048
"""Entries looked at in one step; a subject that is new takes some 3 us."""

Subjects = npt.NDArray[np.uint32]


class RouteNumbers(Protocol):
    """Where Lanes looks up the route of a subject, by its number."""

    @property
    def directs(self) -> bool:
        """Whether any subject has another lane than 0 by it; else it need not be asked."""

    def look(self, subjects: Subjects) -> npt.NDArray[np.int32]:
        """Return the route of each; those that were not seen yet are asked for."""

    def forget_numbers(self, held: npt.NDArray[np.bool_]) -> Iterator[None]:
        """Forget the numbers that are not held, in steps: they may come to mean other subjects."""

    def paused(self, subjects: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
        """Say which subjects, of those that Lanes knows, are paused."""


class OnDisk(Protocol):
    """What Lanes tells the handout."""

    def give_back(self, entries: Entries, *, is_forgotten: bool = False) -> None:
        """Have rows on disk only again; nothing comes by those that are forgotten."""

    def assign(self, subjects: npt.NDArray[np.intp], lane: int) -> None:
        """Put subjects into a lane, which comes by what is on disk only of them."""

    def remember(self) -> None:
        """Have all lanes come by what was forgotten."""


class Lanes:
    """Counts what the sender holds of each subject and lane, and decides who has to wait.

    Invariant: `_held_in[lane]` is the sum of `_held` over the subjects of the lane (but not kept
    for lane 0).
    """

    def __init__(
        self,
        routes: RouteNumbers | None = None,
        *,
        on_disk: OnDisk,
        lane_entries_min: int,
        lanes_max: int,
        unrouted_max: int = UNROUTED_MAX,
    ) -> None:
        """Give a lane to each subject of which more than `lane_entries_min` are held.

        At most `lanes_max` subjects have one, and at most `unrouted_max` are parked without a
        route. What is due of further ones without a route is on disk only, and nothing here leads
        to it: it is `forgotten`, until it is remembered.
        """
        self._on_disk = on_disk
        self._lane_entries_min = lane_entries_min
        self.lanes_max = lanes_max
        self._routes = routes
        self.base = lanes_max + 2
        """The lane of the route 0."""
        self.barred = self.base + BARRED
        """The lane whose entries become dead letters."""
        self.takes_barred = True
        """Whether more of these are taken; else what is due of them waits on disk."""
        self.shared = self.base + SHARED
        """The lane whose entries are copied."""
        self.anywhere = -self.base
        """The route that leads to lane 0."""
        self.catching_up = self.base - 1
        """The lane in which what has waited on disk comes back that belongs in lane 0, which has no
        share."""
        self._held = np.zeros(64, np.int64)
        self._own = OwnLanes(lanes_max)
        self._lane_of = np.zeros(64, np.int32)
        """The lane of each subject of which anything is held, or that is parked, as it was counted
        last."""
        self.backlog = Backlog()
        self._held_in = np.zeros(max(64, self.base + 1), np.int64)
        self.parked = Parked(on_disk, nowhere=self.base, unrouted_max=unrouted_max)
        self._changed: set[int] = set()
        self.on_changed: Callable[[set[int]], None] = _nobody_minds
        """Called with lanes that lead elsewhere now, or of whose entries some belong elsewhere."""

    # -- looks -------------------------------------------------------------------------------

    def held(self, subject: int) -> int:
        """Return how many entries the sender holds of a subject."""
        return int(self._held[subject]) if subject < len(self._held) else 0

    def held_in(self, lane: int) -> int:
        """Return how many entries the sender holds of a lane; 0 for lane 0."""
        return int(self._held_in[lane]) if lane < len(self._held_in) else 0

    def number(self, subject: int) -> int:
        """Return the lane that is a subject's own; 0 if it has none."""
        return self._own.number(subject)

    def subject_of(self, lane: int) -> int | None:
        """Return the subject whose own lane this is."""
        return self._own.subject_of(lane)

    def is_parked(self, subject: int) -> bool:
        """Whether what comes of a subject is dropped for now."""
        return subject in self.parked

    def holders(self) -> npt.NDArray[np.intp]:
        """Return the subjects of which the sender holds anything."""
        return np.flatnonzero(self._held)

    def oldest_parked(self) -> npt.NDArray[np.intp]:
        """Return the subjects whose messages wait on disk, for room or a route, oldest first."""
        return self.backlog.oldest_first(self.parked.numbers())

    def holds_subjects(self, first: int, count: int) -> npt.NDArray[np.bool_]:
        """Say of which of so many subject numbers from `first` on anything is known here."""
        held = np.zeros(count, np.bool_)
        part = slice(first, first + count)
        known = (self._held[part] > 0) | (self._own.of_subject[part] > 0)
        held[: len(known)] = known
        return held | self.parked.contains(np.arange(first, first + count))

    def forget_numbers(self, held: npt.NDArray[np.bool_]) -> Iterator[None]:
        """Hear, in steps, which subject numbers anybody holds, before the others are freed."""
        if self._routes is not None:
            yield from self._routes.forget_numbers(held)

    def _blocked(self, *, paused: bool) -> npt.NDArray[np.intp]:
        """Return the subjects that are parked because they are paused, or for want of a route."""
        parked = self.parked.numbers()
        blocked: npt.NDArray[np.intp] = parked[self._lane_of[parked] == self.base]
        if self._routes is not None and len(blocked):
            blocked = blocked[self._routes.paused(blocked) == paused]
        return blocked

    def unrouted(self, shown: int) -> Unrouted:
        """Return what waits for want of a route, with the numbers of so many subjects."""
        return self.backlog.of(self._blocked(paused=False), shown)

    def paused(self, shown: int) -> Unrouted:
        """Return what waits because it is paused, with the numbers of so many subjects."""
        return self.backlog.of(self._blocked(paused=True), shown)

    def place_known(self, subjects: npt.NDArray[np.intp]) -> None:
        """Put subjects into the lanes where they belong now, but for those not known any more."""
        known = self._held[subjects] > 0
        known |= self.parked.contains(subjects) | (self._own.of_subject[subjects] > 0)
        if known.any():
            self._place(subjects[known].astype(np.uint32), coming=0)

    def is_known(self, subject: int) -> bool:
        """Whether anything of a subject is held, or it waits, or has a lane."""
        return bool(self.held(subject) or self.number(subject)) or subject in self.parked

    def lane_of(self, subject: int) -> int:
        """Return the lane of a subject as it was counted last; 0 for one that is not known."""
        return int(self._lane_of[subject]) if subject < len(self._lane_of) else 0

    def known(self) -> npt.NDArray[np.intp]:
        """Return the subjects of which the sender holds anything, or that wait, or have a lane."""
        known = self._held > 0
        known[self.parked.numbers()] = True
        known[self._own.subjects()] = True
        return np.flatnonzero(known)

    def remember(self) -> None:
        """Have everything loaded again to which nothing here leads."""
        self.backlog.forgotten = 0
        self._on_disk.remember()

    def share(self, room: int, lane: int) -> int:
        """Return how much may be held of a lane while there is room for `room` more of all."""
        if lane == self.barred and not self.takes_barred:
            return 0
        # Those of single subjects are few; with a least share each, routes could take all room.
        least = self._lane_entries_min if lane <= self.lanes_max else 1
        return max(least, room // 2)

    # -- what comes and goes -----------------------------------------------------------------

    def admit(self, entries: Entries, room: int) -> list[tuple[int, Entries]]:
        """Return due entries by lane, counted as held, without those that have to wait.

        `room` is what the sender has room for.
        """
        subjects = np.ascontiguousarray(entries["subject"])
        self._grow(subjects)
        if self._is_plain and not self._lane_of[subjects].any():
            np.add.at(self._held, subjects, 1)
            if int(self._held[subjects].max()) <= self._lane_entries_min:
                return [(0, entries)]
            np.subtract.at(self._held, subjects, 1)
        room = max(room - len(entries), 0)
        if len(self.parked):
            waits = self.parked.contains(subjects.astype(np.intp))
            if waits.any():
                self._drop(entries[waits])
                entries, subjects = entries[~waits], subjects[~waits]
        return self._admit(entries, subjects, room) if len(entries) else []

    @property
    def _is_plain(self) -> bool:
        """Whether all lanes but the first are out of use."""
        directs = self._routes is not None and self._routes.directs
        return not (directs or len(self._own) or len(self.parked))

    def _admit(self, entries: Entries, subjects: Subjects, room: int) -> list[tuple[int, Entries]]:
        self._place(subjects)
        offers: list[tuple[int, Entries]] = []
        for lane, part in _by_lane(entries, self._lane_of[subjects]):
            taken = self._admitted(lane, len(part), room)
            if taken < len(part):
                late = part[taken:]
                self.parked.park(each_once(late["subject"]).astype(np.intp), lane)
                self._drop(late)
            if taken:
                self._hold(part["subject"][:taken], lane)
                offers.append((lane, part[:taken]))
        return offers

    def _admitted(self, lane: int, count: int, room: int) -> int:
        """Return how many of so many entries of a lane may be held."""
        if not lane:
            return count
        if lane == self.base:
            return 0
        return min(max(self.share(room, lane) - self.held_in(lane), 0), count)

    def drained(self, entries: Entries) -> list[tuple[int, Entries]]:
        """Return entries that came from disk by lane, counted as held."""
        subjects = np.ascontiguousarray(entries["subject"])
        self._grow(subjects)
        self.backlog.returned(entries)
        self._place(subjects)
        offers: list[tuple[int, Entries]] = []
        for lane, part in _by_lane(entries, self._lane_of[subjects]):
            if lane == self.base:
                # While they were read their subjects were paused, or lost their routes.
                self._drop(part)
            else:
                self._hold(part["subject"], lane)
                offers.append((lane, part))
        return offers

    def withdrawn(self, entries: Entries) -> None:
        """Leave entries on disk, in due time, that were held; they come back as their lane does."""
        self.settled(entries)
        for lane, part in _by_lane(entries, self._lane_of[entries["subject"]]):
            subjects = each_once(part["subject"]).astype(np.intp)
            self.parked.park(subjects[~self.parked.contains(subjects)], lane)
            self._drop(part)

    def settled(self, entries: Entries) -> None:
        """Count entries that the sender has done with."""
        subjects = entries["subject"]
        np.subtract.at(self._held, subjects, 1)
        lanes = self._lane_of[subjects]
        if lanes.any():
            np.subtract.at(self._held_in, lanes, 1)
            self._held_in[0] = 0
            if self.parked.anyone_waits:
                self.parked.ease(lanes.tolist())

    def ask(self, entries: Entries) -> Iterator[None]:
        """Have the routes asked for, in steps, of entries that will be due soon."""
        if self._routes is not None and self._routes.directs:
            for first in range(0, len(entries), _ASKED_AT_ONCE):
                part = entries["subject"][first : first + _ASKED_AT_ONCE]
                self._routes.look(np.ascontiguousarray(part))
                yield

    def keep(self, entries: Entries) -> Entries:
        """Return the entries for the wheel: without those of subjects that are parked."""
        if not len(self.parked) or not len(entries):
            return entries
        waits = self.parked.contains(entries["subject"].astype(np.intp))
        if not waits.any():
            return entries
        self._grow(entries["subject"])
        self._drop(entries[waits])
        return entries[~waits]

    def take_shared(self, entries: Entries) -> tuple[Entries, Entries]:
        """Return those that are copied, counted as held, and the others, for the wheel."""
        if not len(entries) or self._routes is None or not self._routes.directs:
            return entries[:0], entries
        subjects = np.ascontiguousarray(entries["subject"])
        is_shared = self._routes.look(subjects) == SHARED
        if not is_shared.any():
            return entries[:0], entries
        self._grow(subjects)
        self._place(subjects[is_shared])
        self._hold(subjects[is_shared], self.shared)
        return entries[is_shared], entries[~is_shared]

    def lanes_of(self, entries: Entries) -> npt.NDArray[np.int32]:
        """Return the lane in which each entry that is held belongs now."""
        lanes: npt.NDArray[np.int32] = self._lane_of[entries["subject"]]
        return lanes

    def _hold(self, subjects: Subjects, lane: int) -> None:
        np.add.at(self._held, subjects, 1)
        if lane:
            self._held_in[lane] += len(subjects)

    def _drop(self, entries: Entries) -> None:
        """Leave entries on disk, of parked subjects as a rule."""
        parked = self.parked.contains(entries["subject"].astype(np.intp))
        if not parked.all():
            self.backlog.forget(entries[~parked])
            self._on_disk.give_back(entries[~parked], is_forgotten=True)
            entries = entries[parked]
        self.backlog.leave(entries)
        self._on_disk.give_back(entries)

    # -- lanes of subjects -------------------------------------------------------------------

    def route_changed(self, subject: int, route: int) -> None:
        """Put a subject into the lane where it belongs, now that its route is another one."""
        if subject >= len(self._held):
            return
        number = self.number(subject)
        if number:
            # What waits there goes to other groups from now on.
            self._changed.add(number)
            if not self._may_be_alone(np.array([route], np.int32)).all():
                self._release_numbers(np.array([subject], np.uint32))
        lane = self.number(subject) or self.base + route
        if not lane and subject in self.parked:
            lane = self.catching_up
        self._count_in(lane)
        if self._lane_of[subject] != lane:
            self._move(subject, lane)
        self._tell_changed()

    def _place(self, subjects: Subjects, *, coming: int = 1) -> None:
        """Put the subjects of entries that are to be held into the lanes where they belong.

        `coming` is 0 if there are no such entries.

        One that becomes hot by them gets a lane of its own.
        """
        present, counts = np.unique(subjects, return_counts=True)
        if self._routes is not None and self._routes.directs:
            routes = self._routes.look(present)
        else:
            routes = np.full(len(present), self.anywhere, np.int32)
        held = self._held[present] + coming * counts
        hot = (held > self._lane_entries_min) & (self._own.of_subject[present] == 0)
        alone = self._may_be_alone(routes)
        for subject in present[hot & alone].tolist():
            self._new_number(subject)
        self._release_numbers(present[~alone & (self._own.of_subject[present] > 0)])
        numbers = self._own.of_subject[present]
        lanes = np.where(numbers > 0, numbers, self.base + routes).astype(np.int32)
        if len(self.parked):
            in_first = np.flatnonzero(lanes == 0)
            waits = self.parked.contains(present[in_first].astype(np.intp))
            lanes[in_first[waits]] = self.catching_up
        self._count_in(int(lanes.max()))
        moved = self._lane_of[present] != lanes
        if moved.any():
            for subject, lane in zip(present[moved].tolist(), lanes[moved].tolist(), strict=True):
                self._move(subject, lane)
        self._tell_changed()

    def _count_in(self, lane: int) -> None:
        """Have a place to count what is held in a lane."""
        self._held_in = grown(self._held_in, lane + 1)

    def _tell_changed(self) -> None:
        self.parked.tell()
        if self._changed:
            changed, self._changed = self._changed, set()
            self.on_changed(changed)

    def _may_be_alone(self, routes: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Say by which of these routes a subject may have a lane of its own."""
        alone: npt.NDArray[np.bool_] = (routes > SHARED) | (routes == self.anywhere)
        return alone

    def _move(self, subject: int, lane: int) -> None:
        """Count a subject in another lane from now on."""
        before = int(self._lane_of[subject])
        held = self.held(subject)
        self._lane_of[subject] = lane
        if held:
            self._held_in[before] -= held
            self._held_in[lane] += held
            self._held_in[0] = 0
            self.parked.ease([before])
            self._changed.add(before)
        if subject in self.parked:
            self.parked.move(subject, before, lane)

    def _new_number(self, subject: int) -> None:
        """Give a subject a number, if there is one left."""
        if not self._own.has_free:
            # Those of which nothing is held any more need theirs no longer.
            idle = [
                other
                for other in self._own.subjects()
                if not self._held[other] and other not in self.parked
            ]
            self._release_numbers(np.array(sorted(idle), np.uint32))
        if self._own.has_free:
            number = self._own.take(subject)
            self._held_in[number] = 0
            self._changed.add(number)

    def _release_numbers(self, subjects: Subjects) -> None:
        for subject in subjects.tolist():
            self._own.release(subject)
            if not self._held[subject] and subject not in self.parked:
                self._lane_of[subject] = 0

    def close(self, lane: int) -> list[int]:
        """Let the messages of a lane's subjects come by way of the wheel again; return these."""
        subjects = self.parked.close(lane)
        self.backlog.end(subjects)
        numbers: list[int] = subjects.tolist()
        return numbers

    def _grow(self, subjects: Subjects) -> None:
        """Have a place for each of these numbers."""
        size = int(subjects.max()) + 1
        if size > len(self._held):
            self._held = grown(self._held, size)
            self._lane_of = grown(self._lane_of, size)
            self._own.grow(size)
            self.backlog.grow(size)


def _by_lane(entries: Entries, lanes: npt.NDArray[np.int32]) -> list[tuple[int, Entries]]:
    """Return the entries of each lane, in their order; the lanes ascend."""
    first, last = int(lanes.min()), int(lanes.max())
    if first == last:
        return [(first, entries)]
    # Numbers of 16 bits are sorted in linear time.
    places = lanes - first
    order = np.argsort(
        places.astype(np.uint16) if last - first < 1 << 16 else places, kind="stable"
    )
    # As plain bytes: numpy copies structured rows field by field, some seven times slower.
    rows = entries.view(f"V{entries.dtype.itemsize}")
    ends = np.flatnonzero(np.diff(lanes[order])) + 1
    edges = [0, *ends.tolist(), len(order)]
    present = lanes[order[edges[:-1]]].tolist()
    # Each is an array of its own: a lane that does not leave must not keep what the others had.
    parts = [rows[order[a:b]].view(entries.dtype) for a, b in pairwise(edges)]
    return list(zip(present, parts, strict=True))


def _nobody_minds(_lanes: set[int]) -> None:
    """Take the news where every lane leads to any group."""
