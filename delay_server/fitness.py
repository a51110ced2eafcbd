"""Decides how fit a node is to be the master of its group, by its own word. Pure.

    it is unfit while                            it ranks behind while
    it is being stopped                          free disk is below its floor
    its files are damaged                        much that is committed is not filed
    free disk has been below its floor for 5 s   its copy is younger than the window of duplicates
    its clock has been wrong for 5 s
    nothing becomes durable for 10 s

A master that is unfit hands over to a member in sync that is fit. What nothing becomes durable on
cannot: such a master says that it may not send, and is deposed. The meta server adds what it knows
itself (`meta_server/groups/elections.py`).
"""

from dataclasses import dataclass
from typing import Final

DISK_FULL: Final = "free disk is below its floor"
LASTS_S: Final = 5.0
"""A disk that is full for a moment has room again when old files are deleted. A clock counts as
wrong for a moment where the meta server's was set, and not all nodes know of it."""
UNFILED_MAX: Final = 200_000
"""Records that are committed and not filed, which a new master files first: some seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The state of a node, as far as it knows it itself."""

    is_stopping: bool = False
    damage: str = ""
    """The damage of its files; empty if there is none."""
    disk_full_s: float | None = None
    """For how long free disk has been below its floor; None: it is not."""
    clock_wrong_s: float = 0.0
    """For how long the meta server has taken its clock for wrong."""
    hangs: str = ""
    """Why its disk is taken to hang; empty if it is not."""
    unfiled: int = 0
    """Records that are committed and not filed."""
    copied_s: float | None = None
    """Seconds since the copy was taken that its directory began as; None: it is none."""
    duplicates_s: float = 0.0
    """The window of duplicates."""


def why_unfit(now: Condition) -> str:
    """Return why another node in sync should be the master; empty if this one is fit.

    Without figures that change: each other sentence is a new reason to hand over.
    """
    if now.is_stopping:
        return "it is being stopped"
    if now.damage:
        return now.damage
    if now.hangs:
        return now.hangs
    if now.disk_full_s is not None and now.disk_full_s >= LASTS_S:
        return f"free disk has been below its floor for {LASTS_S:.0f} s"
    if now.clock_wrong_s >= LASTS_S:
        return f"its clock has been wrong for {LASTS_S:.0f} s"
    return ""


def why_behind(now: Condition) -> str:
    """Return why another node that is fit is chosen before this one; empty: it is not."""
    if now.disk_full_s is not None:
        return DISK_FULL
    if now.unfiled > UNFILED_MAX:
        return f"more than {UNFILED_MAX} committed records are not filed"
    if now.copied_s is not None and now.copied_s < now.duplicates_s:
        return f"its copy is younger than {now.duplicates_s / 60:.0f} minutes"
    return ""
