"""Changing: cancels and moves on their way to the masters, without I/O.

    begin() --> ready --> in flight --> answered --> over, once all groups are
                 ^ |          |
                 | +----------+-- no answer, or 51 without the master: waits, or is given up
                 +------------+-- 51 that names the master: that one is asked in its place

A part of a call goes to each master that is known, since any may have the message: of retired
groups as well, and of groups that join meanwhile. A request is asked again as it was, which changes
nothing twice. A group without an answer leaves its messages in doubt, but for those that another
group knows: then it is tried once.
"""

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator

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

_MOVES_AT_ONCE = 3
"""Servers that may name another one as the master before there is a pause."""
_TEXT_LENGTH_MAX = 300


class Changing:
    """All calls that change messages, and the requests that they are.

    Invariant: each request that is not over is ready, in flight on one link, or waiting.
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
        self._ready: defaultdict[str, deque[Asking]] = defaultdict(deque)
        """Requests that go out as soon as their server takes them, by server."""
        self._waiting: list[Asking] = []
        """Requests that pause until their `retry_at`."""

    def begin(self, call: ChangeCall, now: float) -> None:
        """Take a call."""
        self._calls[call] = None
        self._routing.want_masters(now)
        self._wake(call.deadline)
        self.masters_changed(now)

    def close(self) -> None:
        """Settle what is still on its way: the client ends."""
        for part in [part for call in self._calls for part in call.parts]:
            part.fail(ClientClosed, "the client was closed before an answer came: ask again")

    def masters_changed(self, now: float) -> None:
        """Ask the masters that are known now, as far as they are not asked."""
        for part in self._parts():
            for group, server in self._routing.masters.items():
                asking = part.asks.get(group)
                is_other = asking is not None and asking.server != server
                if group not in part.over and (asking is None or is_other):
                    self._ask(Asking(part, group, server))
            self._end_if_over(part)
        self.assign(now)

    # What the exchange asks.

    def has_work(self, link: BatchLink) -> bool:
        """Return True if anything is to be asked at this link."""
        return bool(self._ready.get(link.server))

    def events(self) -> Iterator[float]:
        """Yield the times at which poll() has something to do."""
        for call in self._calls:
            yield call.deadline
        for asking in self._waiting:
            yield asking.retry_at

    # What happened.

    def answered(self, asking: Asking, code: int, body: bytes, now: float) -> None:
        """Take an answer."""
        asking.is_in_flight = False
        if asking.is_over:
            return
        call, part = asking.part.call, asking.part
        call.deadline = now + call.timeout_s
        text = printable(body.decode(errors="replace"))[:_TEXT_LENGTH_MAX]
        if code == ResponseCode.SUCCESS:
            try:
                part.take(asking.server, decode_change_reply(body))
            except MalformedMetaError as error:
                self._give_up(asking, f"{asking.server} gave no good answer ({error})")
            else:
                self._end(asking)
        elif code in {ResponseCode.BROKER_ERROR, ResponseCode.BROKER_REJECT}:
            self._follow(asking, master_named(text), f"cannot answer (code {code}) {text}", now)
        elif code == ResponseCode.PARAM_ERROR:
            part.refuse(f"{asking.server} refused it: {text}")
            part.asks.clear()
            self.masters_changed(now)
        else:
            self._give_up(asking, f"{asking.server} answered code {code} {text}".rstrip())

    def _follow(self, asking: Asking, master: str, why: str, now: float) -> None:
        """Ask the master that a server names, unless it is asked already."""
        part = asking.part
        if master in part.answered or any(one.server == master for one in part.asks.values()):
            self._end(asking)
        elif master and asking.moves < _MOVES_AT_ONCE:
            self._ask(Asking(part, asking.group, master, moves=asking.moves + 1))
        else:
            self.set_back(asking, why.rstrip(), now)

    def set_back(self, asking: Asking, why: str, now: float) -> None:
        """Let a request whose try failed wait before the next one."""
        asking.is_in_flight = False
        if asking.is_over:
            return
        asking.trouble = f"{asking.server} {why}"
        asking.moves = 0
        asking.retry_at = now + pause_s(asking.attempts - 1, self._config, self._chance)
        self._waiting.append(asking)
        self._wake(asking.retry_at)
        self._end_needless(asking.part)

    def unreachable(self, link: BatchLink, why: str) -> None:
        """Note that there is no connection to a server."""
        for asking in list(self._ready.get(link.server, ())):
            asking.trouble = f"{asking.server} {why}"
            self._end_needless(asking.part)

    def assign(self, now: float) -> None:
        """Put what is ready on the wire, as far as links have room."""
        for server, ready in list(self._ready.items()):
            while ready:
                asking = ready[0]
                if asking.is_over:
                    ready.popleft()
                    continue
                link = self._routing.link_to(asking.group, server)
                if link is None:
                    self._give_up(asking, f"{server} is no address, or one server too many")
                elif asking.part.cluster not in {0, link.cluster} and link.cluster:
                    self._end(asking)
                elif link.has_room():
                    ready.popleft()
                    asking.is_in_flight = True
                    link.send(asking, now)
                    self._wake(link.next_event())
                else:
                    break
            if not ready:
                del self._ready[server]

    def poll(self, now: float) -> None:
        """Do what has become due: tries after a pause, and calls that have run out of time."""
        due = [asking for asking in self._waiting if asking.retry_at <= now]
        self._waiting = [asking for asking in self._waiting if asking.retry_at > now]
        for asking in due:
            self._ready[asking.server].append(asking)
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

    def _ask(self, asking: Asking) -> None:
        """Send a request, in place of what was asked of its group."""
        asking.part.asks[asking.group] = asking
        self._ready[asking.server].append(asking)
        self._wake(asking.retry_at)

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
