"""An operator who pauses and resumes at random, and what has to be true meanwhile.

`GateJudge` knows of each moment which rules may hold; who has them hold tells it. `Gating` is an
operator who asks the server itself, in its life; what he was answered is what counts: the rules of
the last answer, or, while one is awaited (a crash may come first), those before or after it. Where
a meta server has the say it is cluster_gating.py. Judged by what brokers got:

    paused      nothing of a paused subject arrives that was not under way when the pause was
                answered, crashes and starts or not
    group       the same of a paused broker group
"""

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import trio

from delay_protocol.messages.items import decode_item
from delay_protocol.nodes.controls import Controls, GroupControl, SubjectControl, SubjectRules
from delay_server.server import DelayServer
from storage.disk.errors import StorageFullError
from tests.simulation.witness import Witness

_PATTERNS = ("orders", "orders*", "*", "flights", "%*", "g*", "orders.paid", "hot*")
_AT_BACKLOG = 0.25
"""Chance that he pauses everything when he sees that something waits for a broker."""
_PAUSES_MAX = 8
"""In a life: each makes the server read anew what waits, however long it does."""


@dataclass(slots=True)
class Epoch:
    """A time in which it was known which rules held."""

    documents: tuple[Controls, ...]
    """One of these."""
    from_s: float
    until_s: float = float("inf")


@dataclass(frozen=True)
class Standing:
    """The rules that hold."""

    controls: Controls = field(default_factory=Controls)

    @cached_property
    def _rules(self) -> SubjectRules:
        return SubjectRules(self.controls.subjects)

    @property
    def pauses_subjects(self) -> bool:
        """Whether any rule pauses subjects."""
        return any(rule.paused for rule in self.controls.subjects.values())

    @property
    def pauses_groups(self) -> bool:
        """Whether a broker group is paused."""
        return any(rule.paused for rule in self.controls.groups.values())

    @property
    def limits_groups(self) -> bool:
        """Whether a broker group is limited."""
        return any(rule.rate_per_s is not None for rule in self.controls.groups.values())

    def is_paused(self, subject: str) -> bool:
        """Say whether a subject is paused."""
        pattern = self._rules.pattern_of(subject)
        return pattern is not None and self._rules.rule(pattern).paused

    def is_group_paused(self, name: str) -> bool:
        """Say whether a broker group is paused."""
        rule = self.controls.groups.get(name)
        return rule is not None and rule.paused


@dataclass(slots=True)
class GateJudge(ABC):
    """Which rules may have held when, and whether what brokers got keeps to them."""

    chance: random.Random
    witness: Witness
    faults: Counter[str]
    length_s: float
    groups: tuple[str, ...] = ()
    """Names of the broker groups that the operator knows."""
    patterns: tuple[str, ...] = _PATTERNS
    epochs: list[Epoch] = field(default_factory=list)
    is_over: bool = False
    """All is to be open from now on."""
    all_open: trio.Event = field(default_factory=trio.Event)
    """Set when it is."""
    _closed: set[str] = field(default_factory=set)
    """Groups that may be closed or narrowed."""

    @abstractmethod
    async def run(self, server: DelayServer) -> None:
        """Work in one life of the server, until cancelled."""

    @abstractmethod
    def end_life(self) -> None:
        """Note that the server is gone; what it was told stays."""

    @abstractmethod
    def standing(self, server: DelayServer) -> "Standing | None":
        """Return what holds now in this life of the server; None while that is not known."""

    def stop(self) -> None:
        """Have everything opened."""
        self.is_over = True

    def _begin_epoch(self, *documents: Controls, from_s: float | None = None) -> None:
        from_s = trio.current_time() if from_s is None else from_s
        self._note_groups(*documents, from_s=from_s)
        self.epochs.append(Epoch(documents, from_s))

    def _end_epoch(self, until_s: float | None = None) -> None:
        if self.epochs and self.epochs[-1].until_s == float("inf"):
            self.epochs[-1].until_s = trio.current_time() if until_s is None else until_s

    def _note_groups(self, *documents: Controls, from_s: float) -> None:
        """Tell the witness which groups cannot be counted on while one of these holds."""
        self.witness.rules_changed_s = from_s
        closed = {
            name
            for controls in documents
            for name, rule in controls.groups.items()
            if name in self.groups and (rule.paused or rule.rate_per_s is not None)
        }
        for name in sorted(closed - self._closed):
            self.witness.group_closed(name)
        for name in sorted(self._closed - closed):
            self.witness.group_opened(name)
        self._closed = closed

    # -- what must be true -------------------------------------------------------------------

    def is_gated(self, subject: str, from_s: float, until_s: float) -> bool:
        """Say whether a rule may have held a subject up in this time."""
        before: tuple[Controls, ...] = ()
        for epoch in self.epochs:
            if epoch.from_s <= until_s and epoch.until_s >= from_s:
                for controls in (*before, *epoch.documents):
                    rules = SubjectRules(controls.subjects)
                    pattern = rules.pattern_of(subject)
                    if pattern is not None and rules.rule(pattern).paused:
                        return True
            before = epoch.documents
        return False

    def check(self) -> list[str]:
        """Return what brokers got that they should not have, as violations."""
        found: list[str] = []
        subjects = subjects_of(self.witness.items)
        margin_s = self.witness.under_way_s + 1
        standing = [tuple(map(Standing, epoch.documents)) for epoch in self.epochs]
        for receipt in self.witness.receipts:
            subject = subjects.get(receipt.message_id)
            if subject is None:
                continue
            for number, epoch in enumerate(self.epochs):
                if not epoch.from_s + margin_s < receipt.at_s < epoch.until_s:
                    continue
                possible = standing[number]
                if all(one.is_group_paused(receipt.broker) for one in possible):
                    found.append(
                        f"paused: {receipt.message_id!r} arrived at {receipt.broker} at "
                        f"{receipt.at_s:.3f}, paused at {epoch.from_s:.3f}"
                    )
                if all(one.is_paused(subject) for one in possible):
                    found.append(
                        f"paused: {receipt.message_id!r} of {subject} arrived at "
                        f"{receipt.at_s:.3f}, paused at {epoch.from_s:.3f}"
                    )
        return found[:5]


@dataclass(slots=True)
class Gating(GateJudge):
    """The operator of a server that has the say itself."""

    _known: Controls = field(default_factory=Controls)
    _serving: DelayServer | None = None
    """The server that the rules are of."""
    _awaited: Controls | None = None
    """What a change makes of the rules that was not answered."""

    async def run(self, server: DelayServer) -> None:
        """Ask for this and that in one life of the server, until cancelled."""
        await server.ready.wait()
        self._begin_life(server)
        pauses_left = _PAUSES_MAX
        while not self.is_over:
            await self._disturb(server)
            until_s = trio.current_time() + self.chance.uniform(5, self.length_s / 12)
            # An event would be of this life or the next; it is seldom, and costs nothing.
            while trio.current_time() < until_s and not self.is_over:
                await trio.sleep(3.1)
                if not (pauses_left and server.master.sender.unsent().queued):
                    continue
                if self.chance.random() < _AT_BACKLOG:
                    pauses_left -= 1
                    await self._pause_all(server)
        await self._change(server, lambda _: Controls())
        if not (self._known.subjects or self._known.groups):
            self.all_open.set()

    def end_life(self) -> None:
        """Note that the server is gone; what it was told stays."""
        self._end_epoch()
        self._serving = None

    def _begin_life(self, server: DelayServer) -> None:
        """See to it that the rules are those that were answered."""
        found = server.master.outlet.applied
        allowed = [self._known] + ([self._awaited] if self._awaited is not None else [])
        if found not in allowed:
            self.witness.complain(f"paused: after a start {found} holds, not one of {allowed}")
        self._known, self._awaited, self._serving = found, None, server
        self._begin_epoch(self._known)

    async def _pause_all(self, server: DelayServer) -> None:
        """Pause everything for a while, now that something waits for a broker."""
        paused = SubjectControl(paused=True)
        await self._change(server, lambda controls: controls.with_subject("*", paused))
        await trio.sleep(self.chance.choice((0.0, 5.0, 60.0)))
        await self._change(server, lambda controls: controls.with_subject("*", None))

    async def _disturb(self, server: DelayServer) -> None:
        chance, paused = self.chance, SubjectControl(paused=True)
        if chance.random() < 0.7:
            pattern = chance.choice(self.patterns)
            rule = chance.choice((None, SubjectControl(), paused, paused))
            await self._change(server, lambda controls: controls.with_subject(pattern, rule))
            return
        group = chance.choice(self.groups)
        group_rule = chance.choice(
            (None, None, GroupControl(paused=True), GroupControl(rate_per_s=5.0))
        )
        await self._change(server, lambda controls: controls.with_group(group, group_rule))

    async def _change(self, server, plan) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        planned = plan(self._known)
        if (planned.subjects, planned.groups) == (self._known.subjects, self._known.groups):
            return
        after = Controls(
            version=self._known.version + 1, subjects=planned.subjects, groups=planned.groups
        )
        before = self._known
        self._end_epoch()
        self._awaited = after
        self._note_groups(before, after, from_s=trio.current_time())
        try:
            await server.node.have_controls(after)
            answered = after
        except StorageFullError:
            # Nothing has changed, or nobody knows; the next start tells.
            answered = server.master.outlet.applied
            if answered not in (before, after):
                self.witness.complain(f"paused: {answered} after a full disk")
        self.faults["operator"] += 1
        self._known, self._awaited = answered, None
        self._begin_epoch(self._known)

    def standing(self, server: DelayServer) -> Standing | None:
        """Return what holds now in this life of the server; None while that is not known."""
        is_known = self._awaited is None and server is self._serving
        return Standing(self._known) if is_known else None


def subjects_of(items: Mapping[bytes, bytes]) -> dict[bytes, str]:
    """Return the subject of each message."""
    return {message_id: decode_item(item).subject for message_id, item in items.items()}
