"""Changing: cancels and moves on their way to the masters, without I/O.

    begin() --> to be sent --> in flight --> answered --> over, once all groups are
                    ^              |
                    +--- a pause --+  no answer, or 51; or it is given up

A part of a call goes to each master that is known, since any may have the message: of retired
groups as well, and of groups that join meanwhile. A request is asked again as it was, which changes
nothing twice. A group without an answer leaves its messages in doubt, but for those that another
group knows: then it is tried once.
"""

import random
from collections.abc import Callable, Iterable, Iterator

from delay_client.exchange.asking import Asking, ChangeCall, Part
from delay_client.exchange.batches import BatchLink
from delay_client.exchange.circuits import pause_s
from delay_client.exchange.routing import FixedRouting, MetaRouting
from delay_client.messages.config import ClientConfig
from delay_client.messages.errors import ClientClosed, NoRoute, OtherCluster
from delay_client.messages.verdicts import master_named
from delay_protocol.basics.codes import ResponseCode
from delay_protocol.basics.errors import MalformedMetaError
from delay_protocol.basics.printable import printable
from delay_protocol.messages.changes import decode_change_reply

_TEXT_LENGTH_MAX = 300

_NOT_NOW = frozenset({ResponseCode.BROKER_ERROR, ResponseCode.BROKER_REJECT})
"""Answers of a server that can change nothing now."""


class Changing:
    """All calls that change messages, and the requests that they are.

    Invariant: each request that is not over is in flight on one link, or goes out from its
    `retry_at` on, as soon as its server takes it.
    """

    def __init__(
        self,
        routing: FixedRouting | MetaRouting,
        config: ClientConfig,
        chance: random.Random,
        wake: Callable[[float], None],
    ) -> None:
        self._routing = routing
        self._config = config
        self._chance = chance
        self._wake = wake
        self._calls: dict[ChangeCall, None] = {}

    def begin(self, call: ChangeCall, now: float) -> None:
        """Take a call."""
        self._calls[call] = None
        self._routing.want_masters(now)
        self._wake(call.deadline)
        self._ask_masters(call.parts)
        self._send_out(call.parts, now)

    def close(self) -> None:
        """Settle what is still on its way: the client ends."""
        for part in self._parts():
            part.fail(ClientClosed, "the client was closed before an answer came: ask again")

    def masters_changed(self, now: float) -> None:
        """Ask the masters that are known now, as far as they are not asked."""
        self._ask_masters(self._parts())
        self.assign(now)

    # What the exchange asks.

    def has_work(self, link: BatchLink) -> bool:
        """Return True if anything is to be asked at this link."""
        return any(one.server == link.server and not one.is_in_flight for one in self._asks())

    def events(self, now: float) -> Iterator[float]:
        """Yield the times at which poll() has something to do."""
        for call in self._calls:
            yield call.deadline
        for asking in self._asks():
            if asking.retry_at > now:
                yield asking.retry_at

    # What happened.

    def answered(self, asking: Asking, code: int, body: bytes, now: float) -> None:
        """Take an answer."""
        asking.is_in_flight = False
        if asking.is_over:
            return
        call, part = asking.part.call, asking.part
        if code not in _NOT_NOW:
            call.deadline = now + call.timeout_s
        text = printable(body.decode(errors="replace"))[:_TEXT_LENGTH_MAX]
        if code == ResponseCode.SUCCESS:
            try:
                part.take(asking.server, decode_change_reply(body))
            except MalformedMetaError as error:
                self._give_up(asking, f"{asking.server} gave no good answer ({error})")
            else:
                self._end(asking)
        elif code in _NOT_NOW:
            others = {*part.answered, *(one.server for one in part.asks.values())}
            if master_named(text) in others:
                self._end(asking)
            else:
                self.set_back(asking, f"cannot answer (code {code}) {text}".rstrip(), now)
        elif code == ResponseCode.PARAM_ERROR:
            part.refuse(f"{asking.server} refused it: {text}")
            part.asks.clear()
            self._ask_masters(call.parts)
        else:
            self._give_up(asking, f"{asking.server} answered code {code} {text}".rstrip())

    def set_back(self, asking: Asking, why: str, now: float) -> None:
        """Let a request whose try failed wait before the next one."""
        asking.is_in_flight = False
        asking.trouble = f"{asking.server} {why}"
        asking.retry_at = now + pause_s(asking.attempts - 1, self._config, self._chance)
        self._wake(asking.retry_at)
        self._end_needless(asking.part)

    def unreachable(self, link: BatchLink, why: str) -> None:
        """Note that there is no connection to a server."""
        for asking in self._asks():
            if asking.server == link.server and not asking.is_in_flight:
                asking.trouble = f"{asking.server} {why}"
                self._end_needless(asking.part)

    def assign(self, now: float) -> None:
        """Put what is to be asked on the wire, as far as links have room."""
        self._send_out(self._parts(), now)

    def poll(self, now: float) -> None:
        """Do what has become due: tries after a pause, and calls that have run out of time."""
        for call in list(self._calls):
            if call.abandoned or call.deadline <= now:
                for part in list(call.parts):
                    self._time_out(part)
            if not call.parts:
                del self._calls[call]
        if self._calls:
            self._routing.want_masters(now)
        self.assign(now)

    # What follows from it.

    def _parts(self) -> list[Part]:
        return [part for call in self._calls for part in call.parts]

    def _asks(self) -> list[Asking]:
        return [asking for part in self._parts() for asking in part.asks.values()]

    def _ask_masters(self, parts: Iterable[Part]) -> None:
        """Add requests to the masters of these parts that are known and were not asked."""
        for part in list(parts):
            for group, server in self._routing.masters.items():
                asking = part.asks.get(group)
                if group not in part.over and (asking is None or asking.server != server):
                    part.asks[group] = Asking(part, group, server)
            self._end_if_over(part)

    def _send_out(self, parts: Iterable[Part], now: float) -> None:
        for asking in [one for part in parts for one in part.asks.values()]:
            if not asking.is_in_flight and asking.retry_at <= now and not asking.is_over:
                self._send(asking, now)

    def _send(self, asking: Asking, now: float) -> None:
        """Put a request on the wire, if its link has room."""
        link = self._routing.link_to(asking.group, asking.server)
        if link is None:
            self._give_up(asking, f"{asking.server} is no address, or one server too many")
        elif asking.part.cluster not in {0, link.cluster} and link.cluster:
            self._end(asking)
        elif link.has_room():
            asking.is_in_flight = True
            link.send(asking, now)
            self._wake(link.next_event())

    def _end(self, asking: Asking) -> None:
        """Wait for a group no more."""
        part = asking.part
        del part.asks[asking.group]
        part.over.add(asking.group)
        self._end_needless(part)
        self._end_if_over(part)

    def _give_up(self, asking: Asking, why: str) -> None:
        asking.part.doubts[asking.group] = why
        self._end(asking)

    def _end_needless(self, part: Part) -> None:
        """Give up groups that failed once, if others know all messages."""
        failed = [one for one in part.asks.values() if one.trouble and not one.is_in_flight]
        if part.is_found and failed:
            self._give_up(failed[0], failed[0].trouble)

    def _end_if_over(self, part: Part) -> None:
        """Settle a part of which each group was asked, if all groups are known."""
        if part not in part.call.parts or part.asks or self._routing.why_no_masters:
            return
        if not part.over:
            part.fail(NoRoute, "the meta server knows no delay group: check that one is registered")
        elif part.answered or part.doubts:
            part.finish()
        else:
            part.fail(OtherCluster, "the message is of another cluster: ask that one")

    def _time_out(self, part: Part) -> None:
        """Settle a part by what is known; what gave no answer leaves doubts."""
        why = self._routing.why_no_masters
        if why and not (part.asks or part.over):
            part.fail(NoRoute, f"the delay groups are not known ({why}): ask again later")
            return
        if why:
            part.doubts["the meta server"] = why
        for asking in part.asks.values():
            part.doubts[asking.group] = asking.trouble or f"{asking.server} did not answer in time"
        part.asks.clear()
        part.finish()
