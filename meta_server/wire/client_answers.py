"""Answers to clients as things are now: broker groups and timestamp.

CLIENT_REGISTER is answered from it, and what is pushed is made from it.
"""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial

from delay_protocol.meta.requests import BrokerGroupInfo
from delay_transport.seams.runtime import Clock
from meta_server.groups.routing import Answers, RoutingLimits, answer_of, plan_route, route_of
from meta_server.known.commits import Committer, Intent
from meta_server.known.errors import RefusedError
from meta_server.known.model import Change
from meta_server.known.registry import Registry
from meta_server.settings.config import RegistrationConfig
from meta_server.wire.timestamps import Timestamps


class ClientAnswers:
    """Answers from memory; a route that is missing is set going."""

    def __init__(
        self,
        *,
        registry: Registry,
        committer: Committer,
        timestamps: Timestamps,
        clock: Clock,
        routing: RoutingLimits,
        limits: RegistrationConfig,
    ) -> None:
        self._registry = registry
        self._committer = committer
        self._timestamps = timestamps
        self._clock = clock
        self._routing = routing
        self._limits = limits

    def groups_of(self, subject: str, client_type: int) -> tuple[BrokerGroupInfo, ...] | None:
        """Return what a client of this type gets for a real subject now; None: no route yet.

        Where a route is missing, or wants more groups, that is set going. So this is only to be
        asked for subjects that were admitted.
        """
        return self._groups_of(self._answers_now(), subject, client_type)

    def answers(self) -> Callable[[str, int], tuple[BrokerGroupInfo, ...] | None]:
        """Return `groups_of` for many subjects: quicker, and good until something changes."""
        return partial(self._groups_of, self._answers_now())

    def _answers_now(self) -> Answers:
        return Answers(self._registry, self._routing, now_ms=self._clock.now_ms())

    def _groups_of(
        self, answers: Answers, subject: str, client_type: int
    ) -> tuple[BrokerGroupInfo, ...] | None:
        found = answers.groups_for(subject, client_type)
        if found is not None:
            return found
        changes = self.plan_route(subject)
        key = ("subject", subject)
        if changes and not self._committer.is_stale and not self._committer.is_pending(key):
            # Where this is refused the next one who asks tries again.
            with contextlib.suppress(RefusedError):
                if subject not in self._registry.subjects:
                    # Of one that was admitted, and that the store could not be told of then.
                    self.check_place()
                self._committer.submit(
                    Intent(keys=(key,), plan=partial(self.plan_route, subject), done=lambda _: None)
                )
        names = route_of(self._registry, subject)
        if names is None:
            return None if changes else ()
        return answer_of(self._registry, client_type, names)

    def timestamp(self) -> int:
        """Return the timestamp of an answer that is given now."""
        return self._timestamps.read(self._clock.now_ms())

    def check_place(self) -> None:
        """Raise if there are too many subjects."""
        subjects_max = self._limits.subjects_max
        # Those that wait or are being stored are counted as if all of them were subjects.
        if len(self._registry.subjects) + self._committer.unapplied >= subjects_max:
            raise RefusedError(f"there are {subjects_max} subjects, which is the limit")

    def plan_route(self, subject: str) -> Sequence[Change]:
        """Return changes that give a subject a route, or a wider one; none if it has enough."""
        return plan_route(self._registry, subject, self._routing, now_ms=self._clock.now_ms())
