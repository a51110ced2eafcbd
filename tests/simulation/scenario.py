"""What a world may be asked to do more of than it would draw by itself.

A seed of the plain world meets a bit of everything. A scenario makes one story likely: certain ends
of the server in a certain order, certain disturbances, a disk of a certain kind. A rule that
matters only in a rare story is tried in a scenario, in which the server with all its rules has to
come out clean as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sender.settings.config import SenderConfig
from tests.simulation.faults import Trap


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A story; what it does not name is drawn as ever."""

    name: str = "plain"
    ends: tuple[Mapping[str, Any], ...] = ()
    """Fields of world.PlannedEnd for each end of the server before the last; all ends are drawn if
    there are none. A tuple stands for one of its values."""
    disturbances: Mapping[str, float] = field(default_factory=dict)
    """Kinds of disturbances.Disturbances, with their weights; the others do not happen, nor do
    broker groups fail on schedules of their own."""
    rounds: int = 0
    """How many of them; 0 to draw it."""
    failing: float = 0.0
    """Chance of each request to the first broker group to go wrong; the others do their work."""
    rot: str = ""
    """After the first end of a life a bit flips in this kind of file (rot.Rot.strike)."""
    traps: tuple[Trap, ...] = ()
    """Set in every life but the last."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Chances of faults.FaultPlan, in every life of the server."""
    gating: float = 0.35
    """Chance of an operator who pauses, limits and resumes (gating.py)."""
    groups: tuple[int, ...] = ()
    """How many broker groups there are, one of these; drawn as ever if there are none."""
    long_outages: int = 0
    """How many of minutes each broker group but the last of several has; 0 to draw them."""
    small_disk: float = 0.1
    """Chance of a disk that the messages fill, until the last life of the server."""
    disk_bytes: tuple[int, int] = (80_000, 250_000)
    """How large it is, at least and at most."""
    configuration: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the server's storage."""
    wheel: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the server's wheel."""
    sender: SenderConfig | None = None
    """Settings of the server's sender; None for those that are drawn."""
    hot_ahead_s: tuple[float, float] | None = None
    """If given, one producer certainly sends many messages of one subject for one time, so many
    seconds before it."""
    hot_spread_ms: tuple[int, ...] = (0, 60_000)
    """Over how much time these messages are due, one of these values."""
    receivers: float = 0.0
    """Chance of groups of receivers beside those of brokers."""
    deadly: float = 0.0
    """Chance, where there are receivers, that some messages end each receiver that handles them."""
    changing: float = 0.0
    """Chance of a client that cancels and moves messages, and sends them again (changing.py)."""
    poison: float = 0.0
    """Chance that brokers refuse some messages for good; drawn as ever if it is 0."""


PLAIN = Scenario(receivers=0.25, deadly=0.3, changing=0.25)
