"""The store of a simulated meta server: a model of its own, and everything that a database may do.

`Medium` is the database: tables that outlive every process, changed by whole commits, with the
history of every row, which is what checkers go by. It is written from what
`meta_server/known/model.py` says of a store and shares no code with the meta server's registry, so
a fault there cannot hide by being made twice; a property test of the real store compares both.
`SimStore` is one process's way to it, and fails as it is told to (`StoreFaults`).

SQLite itself would do too (a commit takes effect in one instant of virtual time), but it fsyncs,
which takes more time than the rest of a seed, and keeps no history.
"""

import bisect
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

import trio
from msgspec.structs import replace

from delay_protocol.nodes.controls import Controls, SubjectControl
from meta_server.known import model
from meta_server.known.errors import (
    ConflictError,
    StoreRefusedError,
    StoreUnavailableError,
    StoreUnusableError,
)

Kind = type[model.Row]
Rows = dict[model.Key, Any]

_LAG_S = 0.01
"""A call's result comes at most so long after its effect, unless the store is slow."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Something that was kept."""

    number: int
    at_s: float
    changes: tuple[model.Change, ...]
    foreign: bool
    """Whether somebody else made it."""


class Moment(NamedTuple):
    """The store after so many commits, as it is known without some that were kept late."""

    number: int
    unseen: frozenset[int] = frozenset()


class Medium:
    """What is durable, whoever comes and goes; every commit and every row as it ever was."""

    def __init__(self, *, now: Callable[[], float] = trio.current_time) -> None:
        self._now = now
        self.uuid = UUID(int=1, version=4)
        self._uuids: list[tuple[int, UUID]] = [(0, self.uuid)]
        self.rows: dict[Kind, Rows] = {kind: {} for kind in model.KINDS}
        self.timestamp_ms = 0
        self.audit: list[model.AuditRow] = []
        self._audit_numbers = 0
        self.commits: list[Commit] = []
        self.generation = 0
        """How often it was set back; who holds a connection of before has none any more."""
        self._times: list[float] = []
        self._besides: list[tuple[int, int]] = []
        # Of each row: numbers of the commits that changed it, and what it was afterwards.
        self._history: dict[tuple[Kind, model.Key], tuple[list[int], list[Any]]] = {}
        self._unseen: list[tuple[float, float, int]] = []
        self._unseen_from: tuple[float, int] | None = None
        self._late: list[int] = []

    # What stores do

    def contents(self) -> model.Contents:
        """Return everything."""
        rows = tuple(row for rows in self.rows.values() for row in rows.values())
        return model.Contents(rows=rows, timestamp_ms=self.timestamp_ms)

    def commit(self, changes: Sequence[model.Change], *, foreign: bool = False) -> None:
        """Keep all of these, or none of them and raise ConflictError."""
        before: dict[Kind, Rows] = {}
        changed: dict[tuple[Kind, model.Key], None] = {}
        timestamp_ms = self.timestamp_ms
        audit, audit_numbers = self.audit, self._audit_numbers
        try:
            for change in changes:
                if isinstance(change, model.RaiseTimestamp):
                    self.timestamp_ms = max(self.timestamp_ms, change.timestamp_ms)
                elif isinstance(change, model.Audit):
                    self._audit_numbers += 1
                    row_of_audit = model.AuditRow(number=self._audit_numbers, entry=change.entry)
                    self.audit = [*self.audit, row_of_audit]
                elif isinstance(change, model.ForgetAudit):
                    before_ms = change.before_ms
                    self.audit = [one for one in self.audit if one.entry.at_ms >= before_ms]
                else:
                    kind = type(change.row)
                    before.setdefault(kind, dict(self.rows[kind]))
                    self._make(change)
                    changed[kind, change.row.key] = None
        except ConflictError:
            self.rows |= before
            self.timestamp_ms = timestamp_ms
            self.audit, self._audit_numbers = audit, audit_numbers
            raise
        self._note(changes, changed, foreign=foreign)

    def set_back(self, number: int, *, uuid: UUID | None = None) -> None:
        """Be again what it was after so many commits: a backup that is restored, a replica that
        lagged and takes over. That is a commit of its own. `uuid`: it is another store from now on,
        into which rows were taken over."""
        changed: dict[tuple[Kind, model.Key], None] = {}
        for table, key in self._history:
            if self.changed_in(table, key, number, len(self.commits)):
                row = self.row_at(table, key, number)
                if row is None:
                    self.rows[table].pop(key, None)
                else:
                    self.rows[table][key] = row
                changed[table, key] = None
        self.timestamp_ms, entries = self._besides[number - 1] if number else (0, 0)
        del self.audit[entries:]
        self.generation += 1
        self._note((), changed, foreign=True)
        if uuid is not None:
            self.uuid = uuid
            self._uuids.append((len(self.commits), uuid))

    def _note(
        self,
        changes: Sequence[model.Change],
        changed: Iterable[tuple[Kind, model.Key]],
        *,
        foreign: bool,
    ) -> None:
        """Write a commit into the history; what is in the tables counts."""
        number = len(self.commits) + 1
        self.commits.append(Commit(number, self._now(), tuple(changes), foreign))
        self._times.append(self.commits[-1].at_s)
        self._besides.append((self.timestamp_ms, len(self.audit)))
        for table, key in changed:
            numbers, rows = self._history.setdefault((table, key), ([], []))
            numbers.append(number)
            rows.append(self.rows[table].get(key))

    def _make(self, change: model.Save | model.Remove) -> None:
        row = change.row
        rows = self.rows[type(row)]
        found = rows.get(row.key)
        has = None if found is None else found.etag
        expected = change.expected if isinstance(change, model.Save) else row.etag
        if has != expected:
            raise ConflictError(f"{row.key}: expected {expected}, found {has}")
        if isinstance(change, model.Remove):
            del rows[row.key]
            return
        for key, other in rows.items():
            if key != row.key and row.claim is not None and other.claim == row.claim:
                raise ConflictError(f"{row.key} claims what {key} has")
        rows[row.key] = row

    # What the meta server cannot know yet

    def hide(self, for_s: float | None = None) -> None:
        """Note that the server does not know what is kept from now on, until it loads anew.

        for_s: or for so long, since an answer is slow.
        """
        now = self._now()
        if for_s is not None:
            self._unseen.append((now, now + for_s + _LAG_S, len(self.commits)))
        elif self._unseen_from is None:
            self._unseen_from = (now, len(self.commits))

    def kept_late(self) -> None:
        """Note that the last commit is one whose server had loaded everything before it was kept.

        What the server stores next may be about other rows: then it knows that, and not this.
        """
        self._late.append(len(self.commits))

    def loaded(self) -> None:
        """Note that the server has loaded everything."""
        if self._unseen_from is not None:
            since_s, number = self._unseen_from
            self._unseen.append((since_s, self._now() + _LAG_S, number))
            self._unseen_from = None

    # What checkers ask

    def number_at(self, at_s: float) -> int:
        """Return how many commits there were at a time."""
        return bisect.bisect_right(self._times, at_s)

    def known_at(self, at_s: float) -> int:
        """Return how many commits the server must have known at a time; none it need not have."""
        number = self.number_at(at_s - _LAG_S)
        for since_s, until_s, before in self._unseen:
            if since_s <= at_s <= until_s:
                number = min(number, before)
        if self._unseen_from is not None and self._unseen_from[0] <= at_s:
            number = min(number, self._unseen_from[1])
        return number

    def row_at(self, table: Kind, key: model.Key, moment: int | Moment) -> Any:  # noqa: ANN401 (a row)
        """Return a row as it was after so many commits; None if it was not there."""
        number, unseen = moment if isinstance(moment, Moment) else Moment(moment)
        numbers, rows = self._history.get((table, key), ((), ()))
        at = bisect.bisect_right(numbers, number)
        while at and numbers[at - 1] in unseen:
            at -= 1
        return rows[at - 1] if at else None

    def late_after(self, number: int) -> frozenset[int]:
        """Return those commits, beyond so many, that were kept late."""
        return frozenset(one for one in self._late if one > number)

    def changed_in(self, table: Kind, key: model.Key, after: int, up_to: int) -> list[int]:
        """Return the numbers of the commits that changed a row, after one and up to another."""
        numbers, _ = self._history.get((table, key), ((), ()))
        return list(
            numbers[bisect.bisect_right(numbers, after) : bisect.bisect_right(numbers, up_to)]
        )

    def controls_at(self, cluster: str, number: int) -> Controls:
        """Return the controls of a cluster after so many commits, as nodes are to be told them."""
        row = self.row_at(model.ClusterControls, cluster, number)
        controls = Controls() if row is None else row.controls
        place = bisect.bisect_right(self._uuids, number, key=lambda one: one[0])
        return replace(controls, store=self._uuids[place - 1][1])

    def controls_in(self, cluster: str, after: int, up_to: int) -> list[int]:
        """Return the numbers of the commits that changed what `controls_at` returns."""
        anew = {number for number, _ in self._uuids if after < number <= up_to}
        return sorted(anew.union(self.changed_in(model.ClusterControls, cluster, after, up_to)))

    def keys(self, table: Kind) -> list[Any]:
        """Return the keys of all rows that there ever were."""
        return [key for name, key in self._history if name == table]


class Outcome(Enum):
    """How a call of the store ends."""

    LOST = "lost"
    """It says that it failed, and nothing is kept."""
    KEPT = "kept unknown"
    """It says that it failed, and everything is kept."""
    LATE = "kept late"
    """It says that it failed, and everything is kept a while later, if it still can be."""
    CONFLICT = "conflict"
    """Somebody else has changed a row."""
    REFUSED = "refused"
    """It says that it cannot hold this."""
    SLOW = "slow"
    """It does as it should, and says so late."""


@dataclass(slots=True, kw_only=True)
class StoreFaults:
    """What befalls the store; may be changed at any time."""

    chances: dict[Outcome, float] = field(default_factory=dict)
    """Per commit."""
    slow_s: tuple[float, float] = (0.2, 5.0)
    """Least and most of a slow one."""
    down_until_s: float = 0.0
    """Until then every call fails."""
    crash: Callable[[str], None] | None = None
    """Called in the next commit, with "before" and "after" it is kept; may end the process."""


class SimStore:
    """The MetaStore of model.py on a Medium, for one life of the meta server."""

    def __init__(
        self,
        medium: Medium,
        faults: StoreFaults,
        chance: random.Random,
        *,
        take_time: Callable[[float], None],
        tally: Counter[str],
        later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        """Take `take_time(seconds)` for what is slow; `later(seconds, call)` calls that later."""
        self._medium = medium
        self._faults = faults
        self._chance = chance
        self._take_time = take_time
        self._tally = tally
        self._later = later
        self._is_closed = False
        self._must_load = True
        self._generation = medium.generation
        self._uuid = medium.uuid

    @property
    def uuid(self) -> UUID:
        """Which store it is."""
        return self._uuid

    def load(self) -> model.Contents:
        """Return everything."""
        self._check_up()
        if self._medium.uuid != self._uuid:
            raise StoreUnusableError("it is not the store that was opened")
        contents = self._medium.contents()
        self._medium.loaded()
        self._generation = self._medium.generation
        self._must_load = False
        return contents

    def commit(self, changes: Sequence[model.Change], /) -> None:
        """Keep all or nothing, or fail as drawn."""
        if self._must_load:
            raise AssertionError("serves: a commit after a failure, and nothing loaded in between")
        crash, self._faults.crash = self._faults.crash, None
        if crash is not None:
            crash("before")
        try:
            self._check_up()
            self._check_connected()
            outcome = self._draw()
            if outcome is not None:
                self._tally[f"store: {outcome.value}"] += 1
            self._go_wrong(outcome, changes)
            self._medium.commit(changes)
            self._check_told(outcome)
        except (ConflictError, StoreUnavailableError):
            self._must_load = True
            raise
        if crash is not None:
            crash("after")

    def read_audit(self, *, before: int | None = None, limit: int) -> tuple[model.AuditRow, ...]:
        """Return entries, newest first."""
        self._check_up()
        rows = [row for row in self._medium.audit if before is None or row.number < before]
        return tuple(reversed(rows[-limit:] if limit else []))

    def close(self) -> None:
        """Let go."""
        self._is_closed = True

    def _check_up(self) -> None:
        if self._is_closed:
            raise AssertionError("serves: a store is used that was closed")
        if trio.current_time() < self._faults.down_until_s:
            self._tally["store: call while down"] += 1
            raise StoreUnavailableError("drawn: it is down")

    def _check_connected(self) -> None:
        if self._generation != self._medium.generation:
            self._tally["store: commit to one that was set back"] += 1
            raise StoreUnavailableError("drawn: the database was replaced by an older one")

    def _check_told(self, outcome: Outcome | None) -> None:
        if outcome is Outcome.KEPT:
            raise StoreUnavailableError("drawn: all is kept")

    def _draw(self) -> Outcome | None:
        for outcome, chance in self._faults.chances.items():
            if self._chance.random() < chance:
                return outcome
        return None

    def _go_wrong(self, outcome: Outcome | None, changes: Sequence[model.Change]) -> None:
        medium = self._medium
        if outcome is Outcome.SLOW:
            seconds = self._chance.uniform(*self._faults.slow_s)
            medium.hide(seconds)
            self._take_time(seconds)
        elif outcome is Outcome.LOST:
            raise StoreUnavailableError("drawn: nothing is kept")
        elif outcome is Outcome.REFUSED:
            raise StoreRefusedError("drawn: it cannot hold this")
        elif outcome is Outcome.KEPT:
            medium.hide()
        elif outcome is Outcome.LATE:
            kept = tuple(changes)
            self._later(self._chance.uniform(0.001, 3.0), lambda: self._keep_late(kept))
            raise StoreUnavailableError("drawn: all may be kept later")
        elif outcome is Outcome.CONFLICT and (theirs := _foreign(changes)):
            medium.hide()
            medium.commit([theirs], foreign=True)

    def _keep_late(self, changes: Sequence[model.Change]) -> None:
        """Keep what was under way when its connection broke, as a database server may."""
        try:
            self._medium.hide()
            self._medium.commit(changes)
            self._medium.kept_late()
        except ConflictError:
            self._tally["store: late and void"] += 1


def _foreign(changes: Sequence[model.Change]) -> model.Change | None:
    """Return what somebody else may do to one of the rows that are about to be changed."""
    for change in changes:
        match change:
            case model.Save(model.BrokerGroup() as group):
                # Its state and address are what was there, or the same that was about to be saved,
                # and one without weight gets none: it may be at what is no address.
                return model.Save(replace(group, weight=min(group.weight, 50)))
            case model.Save(model.Subject()) | model.Save(model.Route(version=1)):
                return change
            case model.Save(model.ClusterControls(controls=controls) as row):
                # Another meta server, whose operator pauses something.
                rule = SubjectControl(paused=bool(row.version % 2))
                controls = replace(controls, subjects=controls.subjects | {"theirs": rule})
                return model.Save(replace(row, controls=controls))
    return None


def record_of(group: model.DelayGroup) -> tuple[int, int]:
    """Return epoch and version of a group's record."""
    return (group.record.epoch, group.record.version)


def _conforms(store: SimStore) -> model.MetaStore:
    """Let the type checker compare."""
    return store
