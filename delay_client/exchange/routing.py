"""Routing: which servers a subject's messages may go to. Pure.

    FixedRouting   all servers that the user named, for every subject
    MetaRouting    the masters of the groups that the meta server routes the subject to

Subjects with the same route share a lane, and lanes share the links to their servers. A subject
without a route has a lane of its own, without servers, in which its messages wait.
"""

import contextlib
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence

from delay_client.exchange.batches import BatchLink, Lane
from delay_client.exchange.links import LinkState
from delay_client.exchange.meta_link import MetaLink
from delay_client.exchange.talks import MastersTalk, RouteTalk
from delay_client.messages.config import ClientConfig
from delay_protocol.basics.levels import parse_levels
from delay_protocol.meta.requests import ClientType
from delay_protocol.meta.session import MetaSessionConfig, Route, RouteState
from delay_protocol.receivers.masters import ReceiverRegister, ReceiverRegistered

_LOOK_UP_S = 60.0
"""The lanes of subjects in use are looked up anew so often; others are let go."""

_FORGET_S = 5.0
"""How often subjects are looked for that may be forgotten."""

Place = tuple[str, str]
"""A group's name and its master."""

Line = BatchLink | MetaLink
"""A connection that a shell makes; shells treat all kinds alike."""


class FixedRouting:
    """One lane for everything."""

    def __init__(self, servers: Sequence[str], config: ClientConfig) -> None:
        for server in servers:
            if servers.count(server) > 1:
                raise ValueError(f"{server!r} is named twice: give each server once")
        self.links = [BatchLink(server, config) for server in servers]
        """All there are."""
        self.lines: Sequence[Line] = self.links
        """The same, for the shell."""
        self.version = 0
        """Never changes."""
        self.levels_ms = parse_levels(config.levels)
        """The delays of levels in ms."""
        self._lane = Lane(self.links)
        self.masters: Mapping[str, str] = {server: server for server in servers}
        """The servers that may have any message, by group."""
        self.why_no_masters = ""
        """There may be no others."""

    def want_masters(self, now: float) -> None:
        """Keep `masters` right; they always are."""

    def link_to(self, group: str, server: str) -> BatchLink:  # noqa: ARG002 (as MetaRouting)
        """Return the link to a server."""
        return next(link for link in self.links if link.server == server)

    def lane_for(self, subject: str, own_id: str | None) -> Lane:
        """Return the lane of everything, or the one beside it of a message with this id."""
        return self._lane if own_id is None else self._lane.of_id(subject, own_id)

    def refuses(self, lane: Lane) -> bool:  # noqa: ARG002 (as MetaRouting)
        """Return False: servers refuse messages, nobody refuses subjects."""
        return False


class _FoundLanes(dict[str, Lane]):
    """Lanes by subject, each looked up when it is first asked for.

    A dict whose own `[]` does it, because a send_many() asks for each change of subject.
    """

    def __init__(self, find: Callable[[str], Lane]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, subject: str) -> Lane:
        lane = self[subject] = self._find(subject)
        return lane


class MetaRouting:
    """Lanes by the routes that a meta server tells.

    Invariants: a lane is found by its places, or by its subject if it has none; links of lanes that
    are found are in `links`.
    """

    def __init__(
        self,
        meta: str | Sequence[str],
        *,
        client_id: str,
        app_code: str,
        config: ClientConfig,
        chance: random.Random,
    ) -> None:
        """Ask one of these meta servers."""
        self._session = RouteTalk(
            client_type=ClientType.DELAY_PRODUCER,
            client_id=client_id,
            app_code=app_code,
            config=MetaSessionConfig(
                heartbeat_s=config.meta_heartbeat_s,
                answer_timeout_s=config.meta_answer_timeout_s,
                retry_min_s=min(config.meta_backoff_min_s / 2, config.meta_backoff_max_s),
                retry_max_s=config.meta_backoff_max_s,
                subjects_max=config.subjects_max,
            ),
            chance=chance,
        )
        self._meta = MetaLink(meta, self._session, config=config, chance=chance)
        self._masters_talk = MastersTalk(
            ReceiverRegister(name=""), config=config, chance=chance, registered=self._registered
        )
        self._masters_link = MetaLink(meta, self._masters_talk, config=config, chance=chance)
        self._masters_until = -math.inf
        """Loop time until which it is asked where the masters are."""
        self.masters: Mapping[str, str] = {}
        """The masters of all delay groups, as far as they are known, by group."""
        self.links: Sequence[BatchLink] = ()
        """Servers of the lanes there are."""
        self.lines: Sequence[Line] = (self._meta,)
        """These, and the line to the meta server; another object when there are others."""
        self.version = 0
        """Counts the changes of routes."""
        self._config = config
        self._lanes: dict[tuple[Place, ...], Lane] = {}
        self._routeless: dict[str, Lane] = {}
        self._by_place: dict[Place, BatchLink] = {}
        self._found = _FoundLanes(self._find)
        """Lanes of subjects that were used since all were looked up anew."""
        self.lane_of: Callable[[str], Lane] = self._found.__getitem__
        """Return the lane of a subject's messages, and have its route kept from now on."""
        self._look_up_at = 0.0
        self._forget_at = 0.0
        self._now = 0.0
        self._looked_up: list[str] = []

    @property
    def levels_ms(self) -> Sequence[int] | None:
        """The delays of levels in ms; None before a meta server was asked."""
        return self._meta.levels_ms

    def want_masters(self, now: float) -> None:
        """Ask a meta server which masters there are, and go on with it for a while."""
        self._masters_until = now + self._config.idle_s
        self._masters_talk.is_needed = True
        if self._masters_link not in self.lines:
            self._set_links(self.links)

    @property
    def why_no_masters(self) -> str:
        """Why there may be other masters than those that are known; empty if there are none."""
        if self._masters_talk.is_told:
            return ""
        return self._masters_talk.refusal or self._masters_link.trouble or "no answer"

    def _registered(self, reply: ReceiverRegistered) -> None:
        self.masters = {master.group: master.address for master in reply.masters}

    def lane_for(self, subject: str, own_id: str | None) -> Lane:
        """Return the lane of a subject, or the one beside it of a message with this id."""
        lane = self.lane_of(subject)
        return lane if own_id is None else lane.of_id(subject, own_id)

    def changed(self, subjects: Iterable[str]) -> list[Lane]:
        """Take changed routes; return the lanes whose subject has got a route by it."""
        served: list[Lane] = []
        for subject in subjects:
            is_used = self._found.pop(subject, None) is not None
            lane = self._routeless.pop(subject, None)
            if lane is None:
                self.version += 1
            else:
                served.append(lane)
            if is_used:
                # At once, or its servers would seem to be of no use to anybody.
                self.lane_of(subject)
        return served

    def poll(self, now: float, in_use: Iterable[Lane]) -> None:
        """Ask what is due, and forget what is not used; lanes `in_use` have messages."""
        self._meta.poll(now)
        self._masters_talk.is_needed = now < self._masters_until
        self._masters_link.poll(now)
        self._now = now
        # Whoever asked for a lane did not say when; it was after the last time here.
        for subject in self._looked_up:
            self._session.want(subject, now)
        self._looked_up.clear()
        if now >= self._forget_at:
            self._forget_at = now + _FORGET_S
            for subject in self._session.forget_unused(now):
                self._found.pop(subject, None)
            # Behind it: there may be room now for one that waits.
            for lane in in_use:
                if lane.subject is not None:
                    self._session.want(lane.subject, now)
        if now >= self._look_up_at:
            self._look_up_at = now + _LOOK_UP_S
            self.prune(in_use)
            self._found.clear()

    def next_event(self) -> float:
        """Return when poll(), or the shell, has something to do unless more happens before."""
        return min(self._meta.next_event(), self._masters_link.next_event())

    def prune(self, in_use: Iterable[Lane]) -> None:
        """Let go of lanes and links that no subject uses any more."""
        used = {id(lane.main) for lane in (*self._found.values(), *in_use)}
        self._lanes = {key: lane for key, lane in self._lanes.items() if id(lane) in used}
        self._routeless = {name: lane for name, lane in self._routeless.items() if id(lane) in used}
        places = {place for key in self._lanes for place in key}
        for place, link in list(self._by_place.items()):
            if place not in places:
                link.is_retired = True
                del self._by_place[place]
        left = [
            link for link in self.links if not link.is_retired or link.state is not LinkState.IDLE
        ]
        if len(left) < len(self.links):
            self._set_links(left)

    def refuses(self, lane: Lane) -> bool:
        """Return True if the meta server refuses the subject of a lane for good."""
        return lane.subject is not None and self._session.is_barred(lane.subject)

    def why_no_route(self, subject: str) -> tuple[str, str]:
        """Return why a subject has no route, and what to do."""
        standing = self._session.standing(subject)
        if len(self._session) >= self._config.subjects_max and not self._session.is_wanted(subject):
            return (
                f"this client uses {self._config.subjects_max} subjects, which is its limit",
                "use fewer subjects, or raise subjects_max",
            )
        if standing is RouteState.REFUSED:
            return (
                f"the meta server gives it no route ({self._session.reason(subject)!r})",
                "if the reason does not pass, choose another subject or ask who runs it",
            )
        if standing in {RouteState.NONE, RouteState.ROUTED}:
            return (
                "the meta server knows no delay group that takes it",
                "check that a delay server is registered there and takes messages",
            )
        if self._meta.trouble is not None:
            return (
                f"no meta server could be asked ({self._meta.trouble})",
                "check the address and that a meta server runs there, then send it again",
            )
        return (
            f"the meta server {self._meta.server} did not answer in time",
            "check that it runs and is not overloaded, then send it again",
        )

    def _find(self, subject: str) -> Lane:
        # Anew every now and then: that is how the session knows what is used. One that it has no
        # room for is asked for again as long as messages of it wait.
        self._session.want(subject, self._now)
        self._looked_up.append(subject)
        if len(self._found) >= self._config.subjects_max:
            # More than are kept.
            self._look_up_at = self._now
        route = self._session.route(subject)
        links = self._links(route) if route else []
        if not links:
            lane = self._routeless.get(subject)
            if lane is None:
                lane = self._routeless[subject] = Lane(subject=subject)
            return lane
        key = tuple((link.group, link.server) for link in links)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(links)
        return lane

    def _set_links(self, links: Sequence[BatchLink]) -> None:
        self.links = links
        metas = (self._meta, self._masters_link)[: 1 + (self._masters_until > -math.inf)]
        self.lines = (*metas, *links)

    def _links(self, route: Route) -> list[BatchLink]:
        """Return the links to the groups of a route; those with an impossible address are none."""
        links: list[BatchLink] = []
        for group in route:
            link = self.link_to(group.name, group.master)
            if link is not None and link not in links:
                links.append(link)
        return links

    def link_to(self, group: str, server: str) -> BatchLink | None:
        """Return the link to a server of a group; None if it can have none."""
        place = (group, server)
        link = self._by_place.get(place)
        if link is None and len(self.links) < self._config.servers_max:
            with contextlib.suppress(ValueError):
                link = self._by_place[place] = BatchLink(server, self._config, group=group)
                self._set_links([*self.links, link])
        return link
