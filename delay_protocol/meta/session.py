"""A client's side of its talk with a meta server: what to ask when, and what is known. Pure.

It knows no clock, task, socket or chance of its own: times are seconds of any clock that never goes
back, passed in. A shell moves what it says and hears:

    want() --> asked at once --> answered --> asked again every heartbeat, for as long as wanted
                  ^                 |
                  +--- a pause <----+  refused or unanswered

Subjects without a route that were not asked yet go first, then whatever has been due for longest.
Those without a route that were asked in vain come again at about `_PUT_OFF_PER_S` together: a meta
server takes only so many new subjects of one address, and a flood that has to wait must not use up
what others need.

What is known outlives every connection: while there is no meta server, routes stay as they were. On
a new connection every subject is asked anew, because the meta server pushes only what it was asked
for there. At most `questions_max` of them are unanswered at a time, and those without a route come
first.

A push is an answer that nobody asked for. What is told last is believed, with two exceptions. An
answer that names no groups at all removes no route unless it is a push: QMQ's meta server answers
so when its database fails, and never pushes. A timestamp of -2 (the subject is refused for good)
changes no route: one without is *barred* until the meta server says otherwise.

A shell sends each request in a frame with a number, and says for which subject the answer with that
number is: a refusal names none.
"""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

import msgspec

from delay_protocol.basics.codes import ResponseCode
from delay_protocol.basics.errors import MalformedMetaError
from delay_protocol.meta.requests import (
    BrokerGroupInfo,
    BrokerState,
    ClientRegister,
    ClientRegisterReply,
    ClientType,
    RegisterType,
    decode_client_register_reply,
)
from delay_protocol.wire.frames import Frame

REFUSED_TIMESTAMP: Final = -2
"""The timestamp of an answer that says nothing of groups: the subject is refused."""

REASON_LENGTH_MAX: Final = 200
"""Characters kept of the reason of a refusal."""

_REFUSED: Final = (
    "the meta server refuses the subject: an operator has to enter it, by "
    "`delaywheel admin set subject NAME`"
)
"""The reason of a refusal that comes without one."""

_TICKS_PER_S: Final = 10
"""Times to ask again are rounded up to these, so that a shell wakes for many subjects at once."""

_STALE_ENTRIES_MIN: Final = 1024
"""Entries of the heap that may be out of date before any are thrown out."""

_PUT_OFF_PER_S: Final = 75.0
"""Questions a second for all subjects without a route that were asked in vain before, if each
pauses for as long as it may: pauses grow with their number. A meta server takes 250 new subjects a
second of one address by default: the rest is for those that come."""

_GROUPS_MAX: Final = 64
"""Groups of one route; those beyond it are left out."""

_FIRST_S: Final = 1e9
"""By so much a subject that was not asked yet is due before all others."""

_ROUTES_SHARED_MAX: Final = 10_000
"""Different routes of which subjects share one object; beyond it they are gathered anew."""

_DOUBLINGS_MAX: Final = 32
"""More would reach any ceiling anyway, and overflow one day."""

_USABLE_STATES: Final = frozenset({BrokerState.RW, BrokerState.W})

Route = tuple[BrokerGroupInfo, ...]
"""Groups that take messages, in the meta server's order."""


class RouteState(Enum):
    """What is known of a subject's route."""

    UNKNOWN = "unknown"
    """No answer yet."""
    REFUSED = "refused"
    """The meta server refuses to route it, and never said otherwise; `reason()` may say why."""
    NONE = "none"
    """There is no group that it could use."""
    ROUTED = "routed"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaSessionConfig:
    """How often, how many and how patiently. All times are seconds."""

    heartbeat_s: float = 60.0
    """Longest time between two questions for a subject; each time drawn between 80 % and all of
    it, so that many clients do not ask in step. Changes come by push, long before. QMQ's meta
    server wants to hear of a client once a minute."""

    answer_timeout_s: float = 5.0
    """A question not answered for so long is asked again, after a pause."""

    retry_min_s: float = 0.5
    """Pause before a subject is asked again whose question was refused or not answered, drawn
    between half of it and all of it; it doubles with each failure."""

    retry_max_s: float = 30.0
    """The longest such pause."""

    unused_s: float = 600.0
    """A subject that nobody wanted for so long may be forgotten."""

    questions_max: int = 256
    """Unanswered questions at a time."""

    subjects_max: int = 200_000
    """Subjects at a time, about 400 bytes of memory each; further ones are not taken."""


class _Use(msgspec.Struct, gc=False, eq=False):
    """One subject. A Struct that the garbage collector does not look at: there are many."""

    subject: str
    wanted_at: float
    route: Route | None = None
    at: float = math.inf
    """When it is to be asked; math.inf while it waits for an answer, or is not wanted any more."""
    asked_at: float = -math.inf
    failures: int = 0
    """Refusals and time-outs since the last answer."""
    reason: str | None = None
    """Of the last refusal; None when it was answered since."""
    is_barred: bool = False
    """Whether it has no route because it is refused for good."""


class MetaSession:
    """What one client asks of a meta server for its subjects, and what it was told.

    Invariants: a wanted subject of a connected session is outstanding, or in the heap at its time;
    entries of it at other times are out of date, and passed over. At most `questions_max` subjects
    are outstanding, and none without a connection.
    """

    def __init__(
        self,
        *,
        client_type: ClientType,
        client_id: str,
        app_code: str = "",
        config: MetaSessionConfig | None = None,
        chance: random.Random,
    ) -> None:
        """Ask as a client of this type, one that sends; `client_id` is `host@@something`.

        Only `chance` draws pauses.
        """
        self.client_type = client_type
        self.answers = 0
        """Answers that came to questions, refusals included."""
        self._client_id = client_id
        self._app_code = app_code
        self.config = config or MetaSessionConfig()
        """How often, how many, how patiently."""
        self._chance = chance
        self._uses: dict[str, _Use] = {}
        self._timed: list[tuple[float, int, _Use]] = []
        """Heap of those to be asked, those of one time in the order in which they came."""
        self._order = count()
        self._in_vain: set[str] = set()
        """Subjects without a route that were asked in vain on this connection."""
        self._outstanding: dict[str, _Use] = {}
        """Oldest question first."""
        self._is_connected = False
        self._unheard_since: float | None = None
        self._shared: dict[Route, Route] = {}
        self._to_walk: list[str] = []
        """Subjects that forget_unused() has still to look at."""

    # What is wanted.

    def __len__(self) -> int:
        """How many subjects are wanted."""
        return len(self._uses)

    def want(self, subject: str, now: float) -> bool:
        """Keep the route of a subject; call it at each use of the subject, it is cheap.

        Returns False, and does nothing, if there are `subjects_max` others already.
        """
        use = self._uses.get(subject)
        if use is not None:
            use.wanted_at = now
            return True
        if len(self._uses) >= self.config.subjects_max:
            return False
        use = self._uses[subject] = _Use(subject, now)
        if self._is_connected:
            self._schedule(use, now - _FIRST_S)
        return True

    def drop(self, subject: str) -> None:
        """Forget a subject; nothing if it is not wanted."""
        use = self._uses.pop(subject, None)
        if use is not None:
            self._outstanding.pop(subject, None)
            self._in_vain.discard(subject)
            use.at = math.inf

    def forget_unused(self, now: float, *, at_most: int = 1000) -> list[str]:
        """Drop what nobody wanted for `unused_s`, and return it.

        Looks at `at_most` subjects, at others the next time: call it every now and then.
        """
        if not self._to_walk:
            self._to_walk = list(self._uses)
        since = now - self.config.unused_s
        unused: list[str] = []
        for _ in range(min(at_most, len(self._to_walk))):
            use = self._uses.get(self._to_walk.pop())
            if use is not None and use.wanted_at <= since:
                unused.append(use.subject)
        for subject in unused:
            self.drop(subject)
        return unused

    # What is known.

    def route(self, subject: str) -> Route | None:
        """Return the groups of a subject; () if there are none; None if that is not known.

        Also None for what is not wanted. Equal routes are one object as a rule.
        """
        use = self._uses.get(subject)
        return None if use is None else use.route

    def standing(self, subject: str) -> RouteState:
        """Return what is known of a subject's route, for those who want to say it."""
        use = self._uses.get(subject)
        if use is None:
            return RouteState.UNKNOWN
        if use.route is None:
            return RouteState.UNKNOWN if use.reason is None else RouteState.REFUSED
        return RouteState.ROUTED if use.route else RouteState.NONE

    def reason(self, subject: str) -> str:
        """Return why the meta server refused a subject the last time; "" if it did not."""
        use = self._uses.get(subject)
        return "" if use is None or use.reason is None else use.reason

    def is_barred(self, subject: str) -> bool:
        """Whether a subject has no route because the meta server refuses it for good."""
        use = self._uses.get(subject)
        return use is not None and use.is_barred

    def subjects(self) -> Iterable[str]:
        """Return what is wanted."""
        return self._uses.keys()

    def is_wanted(self, subject: str) -> bool:
        """Whether the route of a subject is kept."""
        return subject in self._uses

    # The connection.

    def connected(self, now: float) -> None:
        """Note that there is a new connection to a meta server."""
        if self._is_connected:
            self.disconnected(now)
        self._is_connected = True
        # In order, and so a heap: there may be 200,000, and nothing else runs meanwhile.
        known = []
        for use in self._uses.values():
            if use.route is None and not use.is_barred:
                use.at = now - _FIRST_S
                self._timed.append((use.at, next(self._order), use))
            else:
                use.at = now
                known.append((now, next(self._order), use))
        self._timed += known

    def disconnected(self, now: float) -> None:  # noqa: ARG002 (as connected())
        """Note that there is none any more: what was asked will not be answered."""
        self._is_connected = False
        self._outstanding.clear()
        self._timed.clear()
        self._in_vain.clear()
        self._unheard_since = None

    def stalls_at(self) -> float:
        """Return when to give up the connection unless anything is heard on it before.

        That is `answer_timeout_s` after the first question since the last word; math.inf if there
        was none. The shell closes the connection then, and tries another meta server.
        """
        if self._unheard_since is None:
            return math.inf
        return self._unheard_since + self.config.answer_timeout_s

    # Asking.

    def next_requests(self, now: float, at_most: int = 64) -> list[ClientRegister]:
        """Return what is to be sent now, which counts as asked; nothing without a connection."""
        self._time_out(now)
        found: list[ClientRegister] = []
        room = min(at_most, self.config.questions_max - len(self._outstanding))
        while len(found) < room and self._timed and self._timed[0][0] <= now:
            at, _, use = heappop(self._timed)
            if use.at == at:
                found.append(self._ask(use, now))
        return found

    def next_at(self) -> float:
        """Return when next_requests() may have something again, math.inf if only after news."""
        at = math.inf
        if self._outstanding:
            oldest = next(iter(self._outstanding.values()))
            at = oldest.asked_at + self.config.answer_timeout_s
        if self._timed and len(self._outstanding) < self.config.questions_max:
            at = min(at, self._timed[0][0])
        return at

    def _ask(self, use: _Use, now: float) -> ClientRegister:
        use.at = math.inf
        use.asked_at = now
        self._outstanding[use.subject] = use
        if self._unheard_since is None:
            self._unheard_since = now
        is_new = use.route is None
        return ClientRegister(
            subject=use.subject,
            client_type=self.client_type,
            client_id=self._client_id,
            app_code=self._app_code,
            register_type=RegisterType.ONLINE if is_new else RegisterType.HEARTBEAT,
        )

    def _time_out(self, now: float) -> None:
        """Give up questions that were not answered in time; they are asked again."""
        while self._outstanding:
            subject, use = next(iter(self._outstanding.items()))
            # Summed as in next_at(): by another rounding it would be due and never be given up.
            if use.asked_at + self.config.answer_timeout_s > now:
                break
            del self._outstanding[subject]
            self._pause(use, now)

    # Answers.

    def receive(self, reply: ClientRegisterReply, now: float) -> str | None:
        """Take an answer or a push; return the subject if its route has changed by it."""
        self._unheard_since = None
        use = self._uses.get(reply.subject)
        if use is None or reply.client_type != self.client_type or reply.consumer_group:
            return None
        was_asked = self._was_asked(use)
        if reply.timestamp_ms == REFUSED_TIMESTAMP:
            return self._bar(use, now, was_asked=was_asked)
        use.failures = 0
        self._in_vain.discard(use.subject)
        if was_asked:
            self._schedule_heartbeat(use, now)
            if use.route and not reply.groups:
                return None
        use.reason = None
        use.is_barred = False
        groups = self._usable_groups(reply.groups)
        before, use.route = use.route, self._share(groups)
        is_news = before is None or _places(before) != _places(groups)
        return use.subject if is_news else None

    def refused(self, subject: str, now: float, reason: str = "") -> None:
        """Note that a question was answered with an error (51): it is asked again after a pause.

        `reason` is the text that came with it.
        """
        self._unheard_since = None
        use = self._uses.get(subject)
        if use is None or not self._was_asked(use):
            return
        self._note_refusal(use, reason or "the meta server cannot answer at present")
        self._pause(use, now)

    def answered(self, subject: str | None, frame: Frame, now: float) -> str | None:
        """Take the answer to a question for `subject`, or a push (None); return as receive().

        What cannot be read is ignored; what it was to answer is asked again.
        """
        try:
            if frame.code == ResponseCode.SUCCESS:
                return self.receive(decode_client_register_reply(frame.body), now)
            reason = frame.body.decode(errors="replace")
        except MalformedMetaError as error:
            reason = f"an answer that cannot be read: {error}"
        self.refused(subject or "", now, reason)
        return None

    def _was_asked(self, use: _Use) -> bool:
        """Take a subject from the questions; return whether it was among them."""
        if self._outstanding.pop(use.subject, None) is None:
            return False
        self.answers += 1
        return True

    def _bar(self, use: _Use, now: float, *, was_asked: bool) -> str | None:
        """Take it that a subject is refused for good; return it if that is news."""
        self._note_refusal(use, _REFUSED)
        if use.route is not None:
            if was_asked:
                self._pause(use, now)
            return None
        if was_asked:
            self._schedule_heartbeat(use, now)
        if use.is_barred:
            return None
        use.is_barred = True
        return use.subject

    def _note_refusal(self, use: _Use, reason: str) -> None:
        use.reason = reason[:REASON_LENGTH_MAX]

    def _usable_groups(self, groups: Iterable[BrokerGroupInfo]) -> Route:
        # Groups of receivers have no master, and nobody else is told of them.
        needs_master = self.client_type != ClientType.DELAY_SERVER
        usable = [
            group
            for group in groups
            if group.name and group.state in _USABLE_STATES and (group.master or not needs_master)
        ]
        return tuple(usable[:_GROUPS_MAX])

    def _share(self, route: Route) -> Route:
        """Return an equal route that others have too."""
        if len(self._shared) >= _ROUTES_SHARED_MAX:
            self._shared.clear()
        return self._shared.setdefault(route, route)

    # Times.

    def _schedule_heartbeat(self, use: _Use, now: float) -> None:
        at = now + self.config.heartbeat_s * (0.8 + 0.2 * self._chance.random())
        self._schedule(use, _at_a_tick(at))

    def _pause(self, use: _Use, now: float) -> None:
        """Ask again after a pause that grows with each failure."""
        config = self.config
        doublings = min(use.failures, _DOUBLINGS_MAX)
        span_s = min(config.retry_max_s, config.retry_min_s * 2.0**doublings)
        use.failures += 1
        if use.route is None:
            self._in_vain.add(use.subject)
            span_s = max(span_s, len(self._in_vain) / _PUT_OFF_PER_S)
        at = now + span_s * (0.5 + 0.5 * self._chance.random())
        self._schedule(use, _at_a_tick(at))

    def _schedule(self, use: _Use, at: float) -> None:
        use.at = at
        heappush(self._timed, (at, next(self._order), use))
        if len(self._timed) > 2 * len(self._uses) + _STALE_ENTRIES_MIN:
            self._timed = [one for one in self._timed if one[2].at == one[0]]
            heapify(self._timed)


def _at_a_tick(at: float) -> float:
    return math.ceil(at * _TICKS_PER_S) / _TICKS_PER_S


def _places(route: Route) -> list[tuple[str, str, BrokerState]]:
    """Return what of a route matters to who uses it."""
    return [(group.name, group.master, group.state) for group in route]
