"""The connection to the meta server, without a socket: discovery, then a talk.

    discover (HTTP) --> the listener's address --> talk --> lost
        ^                                                     |
        +------ a pause, then the next meta server <----------+

The shells treat it as one more link: they connect to host and port, move bytes, and report the end.
What was learned outlives the connection: without a meta server the last known routes are used. What
is talked about is the business of a talk (talks.py).
"""

import logging
import math
import random
from collections.abc import Sequence

from delay_client.exchange.discovery import AddressAnswer, DiscoveryError, address_request
from delay_client.exchange.links import LinkState, Plug
from delay_client.exchange.talks import MastersTalk, RouteTalk
from delay_client.messages.config import ClientConfig, parse_server
from delay_protocol.basics.errors import RemoteProtocolError
from delay_protocol.basics.levels import parse_levels

_ASKED_MAX = 10_000
"""Questions whose numbers are known: those that are given up gather."""


def meta_addresses(meta: str | Sequence[str]) -> list[str]:
    """Return the addresses of meta servers that a user gave; raise ValueError for none."""
    addresses = [meta] if isinstance(meta, str) else list(meta)
    if not addresses:
        raise ValueError("no meta server: give host:port of a meta server's HTTP port, or several")
    return addresses


class MetaLink(Plug):
    """One connection at a time, to one meta server of several."""

    def __init__(
        self,
        meta: str | Sequence[str],
        talk: RouteTalk | MastersTalk,
        *,
        config: ClientConfig,
        chance: random.Random,
    ) -> None:
        """Take the HTTP addresses of meta servers as `host:port`; begin with any of them."""
        addresses = self._addresses = meta_addresses(meta)
        for address in addresses:
            parse_server(address)
        self._at = chance.randrange(len(addresses))
        super().__init__(addresses[self._at], frame_bytes_max=talk.frame_bytes_max)
        self._talk = talk
        self._config = config
        self._chance = chance
        self._is_found = False
        """Whether host and port are those of the meta server's listener, by discovery."""
        self._answer = AddressAnswer()
        self.levels_ms: Sequence[int] | None = None
        """The delays of levels in ms, as a meta server told last; None before one was asked."""
        self._give_up_at = math.inf
        self._asked: dict[int, str] = {}
        """The subjects of questions, by their opaques."""

    def wants_connection(self, now: float) -> bool:
        """Whether the shell should connect now."""
        return self._talk.is_needed and super().wants_connection(now)

    def connected(self, now: float) -> None:
        """Note that the connection stands."""
        self._move(LinkState.CONNECTING, LinkState.UP)
        if not self._is_found:
            self._answer = AddressAnswer()
            self._give_up_at = now + self._config.meta_answer_timeout_s
            self._outgoing.append(address_request(self.host, self.port))
        else:
            self._asked.clear()
            self._talk.connected(now)
            self._ask(now)

    def lost(self, reason: str, now: float) -> None:
        """Note that there is no connection."""
        was_up = self.state is LinkState.UP
        self.state = LinkState.IDLE
        condemned, self.condemned = self.condemned, None
        self._outgoing.clear()
        self._give_up_at = math.inf
        self.retry_at = now
        if self._is_found:
            self._is_found = False
            self.host, self.port = parse_server(self.server)
            self._talk.disconnected(now)
        elif was_up and condemned is None:
            # The answer ends where the server closes it.
            try:
                self._found(self._answer.finish())
            except DiscoveryError as error:
                reason = str(error)
            else:
                return
        if condemned != _UNUSED:
            self._fail(reason, now)

    def received(self, data: bytes, now: float) -> list[str]:
        """Take bytes that came in; return the subjects whose route has changed by them."""
        if self.condemned is not None:
            return []
        if not self._is_found:
            try:
                self._answer.feed(data)
            except DiscoveryError as error:
                self.condemned = str(error)
            return []
        changed: list[str] = []
        answers = self._talk.answers
        try:
            for frame in self._frames(data):
                # 0 is what pushes carry.
                about = self._asked.pop(frame.opaque, None) if frame.is_response else None
                subject = self._talk.take(frame, about, now)
                if subject is not None:
                    changed.append(subject)
        except RemoteProtocolError as error:
            self.condemned = f"does not speak the protocol: {error}"
        if self._talk.answers > answers:
            self._failures = 0
            self.trouble = None
        self._ask(now)
        return changed

    def poll(self, now: float) -> None:
        """Do what has become due."""
        if self.state is not LinkState.UP or self.condemned is not None:
            return
        if now >= self._give_up_at:
            self.condemned = f"no answer within {self._config.meta_answer_timeout_s:g} s"
        elif self._is_found:
            if not self._talk.is_needed:
                self.condemned = _UNUSED
            elif now >= self._talk.stalls_at():
                self.condemned = f"silent for {self._config.meta_answer_timeout_s:g} s"
            else:
                self._ask(now)

    def next_event(self) -> float:
        """Return when poll(), or the shell, has something to do unless more happens before."""
        if self.state is LinkState.IDLE:
            return self.retry_at if self._talk.is_needed else math.inf
        if self.state is LinkState.CONNECTING or self.condemned is not None:
            return math.inf
        asks_at = math.inf if self._outgoing else self._talk.next_at()
        return min(self._give_up_at, self._talk.stalls_at(), asks_at)

    def _ask(self, now: float) -> None:
        # What the socket has not taken waits in the session, which knows how much there may be.
        if self._outgoing:
            return
        if len(self._asked) > _ASKED_MAX:
            self._asked.clear()
        for code, body, about in self._talk.outgoing(now):
            self._asked[self._request(code, body)] = about

    def _found(self, listener: tuple[str, int]) -> None:
        self._is_found = True
        self.host, self.port = listener
        self.levels_ms = self._answer.levels_ms or parse_levels(self._config.levels)

    def _fail(self, reason: str, now: float) -> None:
        """Let some time pass, then try the next meta server."""
        level = logging.DEBUG if self._failures else logging.WARNING
        self._talk.logger.log(level, "meta server %s: %s", self.server, reason)
        self.trouble = f"{self.server}: {reason}"
        rounds = self._failures // len(self._addresses)
        span_s = min(
            self._config.meta_backoff_max_s,
            self._config.meta_backoff_min_s * 2.0 ** min(rounds, 60),
        )
        # All clients of a meta server lose it at once: drawn from the whole of the span.
        self.retry_at = now + span_s * self._chance.random()
        self._failures += 1
        self._at = (self._at + 1) % len(self._addresses)
        self.server = self._addresses[self._at]
        self.host, self.port = parse_server(self.server)


_UNUSED = "unused"
