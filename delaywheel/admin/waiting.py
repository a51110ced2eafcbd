"""Waits for the next master of a delay group, which go on while the meta server is restarted."""

import time
from collections.abc import Callable
from typing import Final

import click

from delaywheel.shared.admin_client import Away, Json, Session
from delaywheel.shared.failures import ExitCode, Failure

_HANDOVER_S: Final = 12.0
"""The longest time for which a master is asked to hand over."""
_ELECTED_S_MAX: Final = 30.0
"""Seconds for which `elect --wait` waits; an election that can end has ended in seven."""
_SILENT_S_MAX: Final = 4.0
"""Seconds after which a master that died a moment ago counts as silent at the meta server."""
_LOOK_S: Final = 0.2
"""The interval of looks at a group."""


def elect_and_wait(session: Session, name: str, body: Json) -> Json:
    """Wait out a restart of the meta server, with --wait.

    The exit code is 7 if there is no master in time, and 6 if no meta server answered.
    """
    wait = _Wait(session, name, _ELECTED_S_MAX, refused_s=_SILENT_S_MAX)
    _, shown = wait.until("elect", body, lambda _, now: bool(now["phase"] == "active"))
    if shown is None:
        raise Failure(
            f"no master after {_ELECTED_S_MAX:g} s: {wait.told}. The election goes on",
            ExitCode.REFUSED,
        )
    return shown


def hand_over(session: Session, name: str, body: Json) -> Json:
    """Wait for the next master, also while the meta server is restarted.

    If the next master does not answer, or cannot take over, the master goes on; the exit code is 7
    then.
    """
    wait = _Wait(session, name, _HANDOVER_S)
    before, shown = wait.until(
        "handover", body, lambda before, now: bool(now["epoch"] > before["epoch"])
    )
    if shown is not None and shown["master"] != before["master"]:
        return shown
    why = (
        f"has not handed {name} over within {_HANDOVER_S:g} s, and is not asked any more: its log "
        "and its status say why"
        if shown is None
        else "could not hand over, and goes on: its log says why"
    )
    raise Failure(f"{before['master']} {why}", ExitCode.REFUSED)


class _Wait:
    """An action on a group, and looks at the group until it has ended or the time is over."""

    def __init__(
        self, session: Session, name: str, seconds: float, *, refused_s: float = 0
    ) -> None:
        """Begin now; refused_s: for how long the action is asked again when it is refused."""
        self._session = session
        self._place = ("delay-group", name)
        self._seconds = seconds
        self._refused_s = refused_s
        """Until when, since it began, a refusal may be one that ends by itself."""
        self._began = time.monotonic()
        self.told = ""
        """The last sentence on standard error."""

    def _is_after(self, seconds: float) -> bool:
        return time.monotonic() - self._began > seconds

    def _tell(self, sentence: str) -> None:
        """Print what is waited for, if it is something else than before."""
        if sentence not in {"", self.told}:
            self.told = sentence
            click.echo(sentence, err=True)

    def until(
        self, action: str, body: Json, is_over: Callable[[Json, Json], bool]
    ) -> tuple[Json, Json | None]:
        """Return the group before the action, and after it; None: it has not ended in time.

        Raises Failure if the action is refused, or the meta server stays away.
        """
        before: Json | None = None
        is_begun = False
        while True:
            away: Failure | None = None
            try:
                now = self._session.ask("GET", *self._place)
                before = before or now
                # It may have begun by itself, or the answer to the action was lost.
                is_begun = is_begun or now["epoch"] > before["epoch"]
                if not is_begun:
                    now = self._session.ask("POST", *self._place, action, body=body)
                    is_begun = True
                self._tell(now["election"])
                if is_over(before, now):
                    return before, now
            except Failure as error:
                if isinstance(error, Away) or error.exit_code == ExitCode.NETWORK:
                    away = error
                    # Once it is back it knows nodes again as they send their heartbeats.
                    self._refused_s = time.monotonic() - self._began + _SILENT_S_MAX
                    self._tell(f"asking again: {error.message}")
                elif error.exit_code != ExitCode.REFUSED or self._is_after(self._refused_s):
                    raise
            if not self._is_after(self._seconds):
                time.sleep(_LOOK_S)
            elif away is None and before is not None:
                return before, None
            else:
                raise Failure(
                    f"no answer of the meta server within {self._seconds:g} s: {away}; see "
                    f"`delaywheel admin get {' '.join(self._place)}` once it is back",
                    ExitCode.NETWORK,
                ) from away
