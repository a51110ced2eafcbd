"""What the demo sent and what its broker groups received: the books, and what they must say.

No process, socket or clock: moments are wall ms and come from whoever saw what happened.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Final

NODES: Final = 3
"""Delay servers of the group."""

SHARE_OFF_MAX: Final = 0.15
"""How far the share of a group may be from that of its weight: less than if there were no weights.
Shares are exact to 2 % on a quiet machine; one that is busy with something else makes a broker
slow, which then rightly gets less."""

RETURN_MS: Final = 5000
"""Within this long all is as before: a broker group that is back has its share again, a new master
has sent what had become due (docs/delivery.md)."""

SHARE_MESSAGES_MIN: Final = 40
"""Fewer messages than that say nothing about shares."""


class Phase(Enum):
    """What happened at a moment of the demo."""

    BEFORE = "before"
    """Everything was well."""
    DOWN = "down"
    """A broker group was down."""
    RETURN = "return"
    """The group was on its way back to its share."""
    CHANGE = "change"
    """The delay group had no master, or a new one: what had become due goes to whichever broker
    group is there first, so that shares say nothing."""
    AFTER = "after"
    """Everything was well again."""


@dataclass(frozen=True, slots=True)
class Reception:
    """A message that came to a broker group."""

    message_id: str
    group: str
    due_ms: int
    received_ms: int

    @property
    def lateness_ms(self) -> int:
        """How long after its time it came; negative if before."""
        return self.received_ms - self.due_ms


@dataclass(slots=True)
class Outage:
    """When a process was away, in wall ms; None of what has not happened."""

    killed_ms: int | None = None
    """It was dead."""
    started_ms: int | None = None
    """It was started again."""
    ready_ms: int | None = None
    """It did its work again."""

    @property
    def lasted_ms(self) -> int | None:
        """How long it did no work; None before it is back."""
        if self.killed_ms is None or self.ready_ms is None:
            return None
        return self.ready_ms - self.killed_ms

    def has_begun(self, moment_ms: int) -> bool:
        """Say whether the process had been killed by then."""
        return self.killed_ms is not None and moment_ms > self.killed_ms

    def is_started(self, moment_ms: int) -> bool:
        """Say whether it had been started again by then."""
        return self.started_ms is not None and moment_ms > self.started_ms

    def is_over(self, moment_ms: int) -> bool:
        """Say whether it was as before the outage."""
        return self.ready_ms is not None and moment_ms > self.ready_ms + RETURN_MS


@dataclass(slots=True)
class MasterChange:
    """When another node came to be the master, in wall ms; None of what has not happened."""

    begun_ms: int | None = None
    """The operator asked for it, or the master was killed."""
    ended_ms: int | None = None
    """The meta server named another master."""

    @property
    def lasted_ms(self) -> int | None:
        """How long the group had no master, or one that was on its way out; None until it ends."""
        if self.begun_ms is None or self.ended_ms is None:
            return None
        return self.ended_ms - self.begun_ms

    def is_felt(self, moment_ms: int) -> bool:
        """Say whether it went on, or had ended only just."""
        if self.begun_ms is None or moment_ms <= self.begun_ms:
            return False
        return self.ended_ms is None or moment_ms <= self.ended_ms + RETURN_MS

    def pause_ms(self, moments_ms: Sequence[int]) -> int | None:
        """Return the longest time between two moments one after another that fell into it."""
        if self.begun_ms is None or self.ended_ms is None:
            return None
        gaps = [
            after - before
            for before, after in pairwise(sorted(moments_ms))
            if after > self.begun_ms and before <= self.ended_ms
        ]
        return max(gaps, default=None)


@dataclass(slots=True)
class Account:
    """What the producer sent, what the broker groups got, and what happened to processes when."""

    weights: dict[str, int]
    """Of each broker group."""
    taken_down: str
    """The group that is taken down."""
    sent: int = 0
    acknowledged: dict[str, int] = field(default_factory=dict)
    """Due time by message id."""
    failed: list[str] = field(default_factory=list)
    receptions: list[Reception] = field(default_factory=list)
    received: set[str] = field(default_factory=set)
    """Ids of the messages that came, to any group."""
    answered_ms: list[int] = field(default_factory=list)
    """When each acknowledgement came."""
    time_line: list[tuple[int, str]] = field(default_factory=list)
    """What happened to processes, and when."""
    group_outage: Outage = field(default_factory=Outage)
    handover: MasterChange = field(default_factory=MasterChange)
    """An operator asks the master to hand over."""
    takeover: MasterChange = field(default_factory=MasterChange)
    """The master is killed, and another node takes over."""
    node_outage: Outage = field(default_factory=Outage)
    """Of the delay server that is killed; it does its work again when it is in sync."""
    disks: dict[str, set[str]] = field(default_factory=dict)
    """Ids of the messages in each delay server's directory, by node, once all of them are dead."""
    reconciliation: str = ""
    """The lines of `delaywheel spark reconcile` of the directories."""
    is_reconciled: bool = False
    """True if it found nothing wrong."""

    def phase_of(self, reception: Reception) -> Phase:
        """Return the phase in which a message came."""
        moment_ms, group = reception.received_ms, self.group_outage
        if not group.is_over(moment_ms):
            if group.is_started(moment_ms):
                return Phase.RETURN
            if group.has_begun(moment_ms):
                return Phase.DOWN
        if self.handover.is_felt(moment_ms) or self.takeover.is_felt(moment_ms):
            return Phase.CHANGE
        return Phase.AFTER if group.is_over(moment_ms) else Phase.BEFORE

    def receive(self, reception: Reception) -> None:
        """Enter a message that came to a group."""
        self.receptions.append(reception)
        self.received.add(reception.message_id)

    @property
    def lost(self) -> list[str]:
        """Acknowledged and never received."""
        return [name for name in self.acknowledged if name not in self.received]

    @property
    def early(self) -> int:
        """Receptions before the message's time."""
        return sum(reception.lateness_ms < 0 for reception in self.receptions)

    def lateness_ms(self, phase: Phase | None = None) -> list[int]:
        """Return the lateness of all receptions, or of those of a phase."""
        return [
            reception.lateness_ms
            for reception in self.receptions
            if phase is None or self.phase_of(reception) is phase
        ]

    def got(self, phase: Phase) -> dict[str, int]:
        """Return how many receptions each group had in a phase."""
        found = Counter(
            reception.group for reception in self.receptions if self.phase_of(reception) is phase
        )
        return {group: found[group] for group in self.weights}

    def distinct(self) -> dict[str, int]:
        """Return how many messages came to each group before they came to any other."""
        groups: dict[str, str] = {}
        for reception in sorted(self.receptions, key=lambda one: one.received_ms):
            groups.setdefault(reception.message_id, reception.group)
        found = Counter(groups.values())
        return {group: found[group] for group in self.weights}

    def twice(self) -> dict[str, int]:
        """Return how many receptions of each group were of a message that had come already."""
        found, distinct = Counter(one.group for one in self.receptions), self.distinct()
        return {group: found[group] - distinct[group] for group in self.weights}

    def deserved(self, group: str) -> float:
        """Return the share of a group by its weight, 0 to 1."""
        return self.weights[group] / sum(self.weights.values())

    def broken(self) -> list[str]:
        """Return a sentence for each promise that was not kept."""
        faults = [f"failed: {line}" for line in self.failed[:10]]
        faults += [f"lost: {name}" for name in self.lost[:10]]
        unanswered = self.sent - len(self.acknowledged) - len(self.failed)
        if unanswered:
            faults.append(f"{unanswered} messages were sent and never answered")
        if self.early:
            faults.append(f"{self.early} messages came early")
        faults += self._group_faults()
        if self.group_outage.lasted_ms is None:
            faults.append(f"broker group {self.taken_down} was not taken down and brought back")
            return faults
        faults += self._share_faults(Phase.BEFORE)
        if not any(self.got(Phase.DOWN).values()):
            faults.append(f"nothing was delivered while broker group {self.taken_down} was down")
        return faults + self._share_faults(Phase.AFTER)

    def missing(self, node: str) -> list[str]:
        """Return what was acknowledged and is not in a node's directory."""
        return [name for name in self.acknowledged if name not in self.disks[node]]

    def _group_faults(self) -> list[str]:
        """Return what is wrong with the group of delay servers."""
        faults = []
        if self.handover.lasted_ms is None:
            faults.append("no master handed the delay group over")
        if self.takeover.lasted_ms is None:
            faults.append("the master was not killed and another one elected")
        if self.node_outage.lasted_ms is None:
            faults.append("the delay server that was killed did not come back in sync")
        if len(self.disks) != NODES:
            faults.append(f"{len(self.disks)} directories of {NODES} were verified")
        if not self.is_reconciled:
            faults.append("the three directories do not reconcile, or were not")
        return faults + [
            f"the directory of {node} lacks {len(missing)} acknowledged messages: "
            + ", ".join(missing[:10])
            for node in self.disks
            if (missing := self.missing(node))
        ]

    def _share_faults(self, phase: Phase) -> list[str]:
        """Return what is wrong with the shares of a phase in which all groups were up."""
        got = self.got(phase)
        total = sum(got.values())
        when = f"{phase.value} {self.taken_down} was down"
        if total < SHARE_MESSAGES_MIN:
            return [
                f"only {total} messages came {when}, too few to tell: is the machine very busy?"
            ]
        return [
            f"broker group {group} got {count} of {total} messages {when}, "
            f"{count / total:.0%} in place of {self.deserved(group):.0%}"
            for group, count in got.items()
            if not count or abs(count / total - self.deserved(group)) > SHARE_OFF_MAX
        ]


def quantile(values: Sequence[int], share: float) -> int:
    """Return the smallest value that at least this share of the values does not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]
