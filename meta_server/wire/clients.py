"""CLIENT_REGISTER: a client asks for the broker groups of a subject, and is kept up to date."""

import contextlib
from collections.abc import Sequence
from functools import partial

from delay_protocol.meta import requests
from delay_transport.seams.newcomers import Newcomers
from meta_server.groups import routing
from meta_server.known.errors import MetaServerError, RefusedError, StoreError
from meta_server.known.model import Change
from meta_server.settings.config import RegistrationConfig
from meta_server.wire.admission import admit
from meta_server.wire.dispatch import Context, Decision, Family, Request
from meta_server.wire.pushes import Pusher, encoded
from meta_server.wire.sessions import Subscription, Use
from meta_server.wire.timestamps import Timestamps

_TEXT_BYTES_MAX = 512
"""The most bytes of a client id, a consumer group, an application or a room."""

IGNORE_STATE = -2
"""The timestamp of a refusal: QMQ's clients then keep the online state that they have."""


class ClientRoutes:
    """The answers to clients for subjects; a route that is missing is set going.

    CLIENT_REGISTER is answered from it, and what is pushed is made from it.
    """

    def __init__(self, context: Context, timestamps: Timestamps) -> None:
        self._context = context
        self._timestamps = timestamps
        self.answers = routing.RouteAnswers(context.registry, context.config.routing)

    def answer(self, subject: str, client_type: int) -> routing.Answer | None:
        """Return what a client of this type gets for a real subject now; None: no route yet.

        Where a route is missing, or wants more groups, that is set going. So this is only to be
        asked for subjects that were admitted.
        """
        found = self.answers.find(subject, client_type)
        if found is not None:
            return found
        registry, changes = self._context.registry, self.plan(subject)
        if changes:
            with contextlib.suppress(RefusedError):
                if subject not in registry.subjects:
                    # Of one that was admitted, and that the store could not be told of then.
                    self.check_place()
                self._context.store_later(("subject", subject), plan=partial(self.plan, subject))
        names = routing.route_of(registry, subject)
        if names is None:
            return None if changes else routing.NO_GROUPS
        return self.answers.of_groups(names, client_type)

    def plan(self, subject: str) -> Sequence[Change]:
        """Return changes that give a subject a route, or a wider one; none if it has enough."""
        context = self._context
        return routing.plan_route(
            context.registry, subject, context.config.routing, now_ms=context.clock.now_ms()
        )

    def check_place(self) -> None:
        """Raise RefusedError if there are too many subjects."""
        subjects_max = self._context.config.registration.subjects_max
        # Those that wait or are being stored are counted as if all of them were subjects.
        unapplied = self._context.committer.unapplied
        if len(self._context.registry.subjects) + unapplied >= subjects_max:
            raise RefusedError(f"there are {subjects_max} subjects, which is the limit")

    def timestamp(self) -> int:
        """Return the timestamp of an answer that is given now."""
        return self._timestamps.read(self._context.clock.now_ms())


class Clients(Family[requests.ClientRegister]):
    """Answers clients, and subscribes them to changes of their routes."""

    decode = staticmethod(requests.decode_client_register)

    def __init__(self, context: Context, routes: ClientRoutes, pusher: Pusher) -> None:
        super().__init__(context)
        self._routes = routes
        self._pusher = pusher
        self._newcomers = _new_subjects(context.config.registration)

    def decide(self, request: Request[requests.ClientRegister], _: object) -> Decision:
        """Return how a subject gets a route, if it has none and one can be chosen."""
        routed = self._admitted(request.body)
        reply = partial(self._reply, request, routed)
        if request.body.client_type == requests.ClientType.DELAY_PRODUCER or routing.is_routed(
            self.context.registry, routed
        ):
            return Decision(reply)
        return Decision(reply, self._routes.plan(routed), (("subject", routed),))

    def admit(self, request: Request[requests.ClientRegister], decision: Decision) -> Decision:
        """Refuse too many subjects, and too many new ones at a time."""
        is_new = decision.changes and _routed(request.body) not in self.context.registry.subjects
        if is_new and not self.context.committer.is_pending(*decision.keys):
            self._routes.check_place()
            admit(self._newcomers, request.session.connection)
        return decision

    def refused(
        self, request: Request[requests.ClientRegister], error: MetaServerError
    ) -> bytes | None:
        """Answer by -2 what is never right; keep who waited for a failed store subscribed."""
        try:
            routed = self._admitted(request.body)
        except RefusedError:
            return encoded(request.body, IGNORE_STATE, requests.OnlineState.OFFLINE, ())
        if isinstance(error, StoreError):
            # It learns its route by a push, when there is one.
            self._subscribe(request, routed)
        return None

    def _admitted(self, body: requests.ClientRegister) -> str:
        """Return the real subject; raise RefusedError for one that is illegal, or not entered."""
        routed, registry = _routed(body), self.context.registry
        known = routed in registry.subjects or routing.is_routed(registry, routed)
        if self.context.config.registration.subjects == "entered" and not known:
            raise RefusedError(f"nobody entered the subject {routed}")
        return routed

    def _reply(self, request: Request[requests.ClientRegister], routed: str) -> bytes:
        """Return the route, and have the client told of further ones."""
        answer = self._routes.answer(routed, request.body.client_type) or routing.NO_GROUPS
        self._subscribe(request, routed).sent = answer.signature
        timestamp_ms = self._routes.timestamp()
        return encoded(request.body, timestamp_ms, requests.OnlineState.ONLINE, answer.groups)

    def _subscribe(self, request: Request[requests.ClientRegister], routed: str) -> Subscription:
        """Subscribe the client to all that it was not sent yet."""
        subscription = Subscription(routed=routed, version=request.frame.version, sent=None)
        body = request.body
        use = Use(body.client_type, body.subject, body.consumer_group)
        self._pusher.note(request.session, use, subscription)
        return subscription


def _routed(request: requests.ClientRegister) -> str:
    """Return the real subject; raise RefusedError for one, or for names, that are never right."""
    for text in (request.client_id, request.consumer_group, request.app_code, request.ldc):
        if len(text.encode()) > _TEXT_BYTES_MAX:
            raise RefusedError(f"a name of {len(text.encode())} bytes, at most {_TEXT_BYTES_MAX}")
    return routing.routed_subject(request.subject)


def _new_subjects(limits: RegistrationConfig) -> Newcomers:
    return Newcomers(
        "subjects are used for the first time",
        rate=limits.new_subjects_per_second_max,
        burst=limits.new_subjects_per_second_max * limits.new_subjects_burst_seconds,
        address=limits.new_subjects_address_share,
    )
