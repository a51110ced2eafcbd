"""What is agreed of a group, as the core of replication sees it, and who takes part in it."""

from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID


class Member(NamedTuple):
    """One disk of one node. A node with another disk is another member."""

    node: str
    storage: UUID


class Start(NamedTuple):
    """One start of a node: what it says of itself, and what its acknowledgements count for."""

    member: Member
    incarnation: int
    boot: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The record of the group, changed by compare-and-set on (epoch, version) only."""

    epoch: int
    version: int
    master: tuple[str, int] | None
    """Node and incarnation; None while the group elects one."""
    in_sync: frozenset[Member]
    """The disks that hold every acknowledged message; one for each node at the most."""
    min_isr: int
    """The in-sync set never gets smaller than this."""

    @property
    def pair(self) -> tuple[int, int]:
        """Epoch and version: a record with a higher pair is newer."""
        return self.epoch, self.version

    def with_member(self, member: Member) -> frozenset[Member]:
        """Return the in-sync set with this disk, in place of another one of its node."""
        return frozenset({*(one for one in self.in_sync if one.node != member.node), member})
