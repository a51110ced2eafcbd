"""A producer of the simulation: sends bursts of requests, and again what was not answered.

Items are due in the past, now, or up to days ahead; some have a subject that never comes again;
some are flawed and have to be refused by their own code while their neighbours go on. A request
that gets no answer in time, or whose connection is lost, is sent again byte for byte, as QMQ's
clients do; a few requests are never repeated. Now and then it misbehaves: it sends requests twice,
pauses or vanishes in the middle of a frame, or sends garbage. It may be told to send a burst of
messages of one subject that are due all at once.
"""

import contextlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from delay_protocol.basics.codes import CommandCode, ItemCode, ResponseCode
from delay_protocol.messages.items import FLAG_DELAY, FLAG_TAGS, Item, encode_item
from delay_protocol.messages.send_message import decode_send_reply, encode_send_request_body
from delay_protocol.wire.frames import Frame, FrameDecoder, encode_request
from delay_transport.seams.runtime import Address
from tests.simulation.independent_reader import essence
from tests.simulation.network import SimNetwork, SimStream
from tests.simulation.witness import Witness

_SUBJECTS = ("orders", "orders.paid", "flights", "%RETRY%orders%billing", "grüße")
_NEW_SUBJECTS = (0, 0, 2)
"""One in so many of a producer's messages has a subject that never comes again; with 0 none has."""
_TIMEOUT_S = 5.0
_PAUSE_S = 2.0
"""Longest pause before requests are tried again; twice as long after each try without an answer."""
_PAUSE_MAX_S = 16.0
_REFUSED_PAUSE_MAX_S = 120.0
"""A disk that is full stays so for a while."""
_ITEMS = (68, 72)
"""Messages that are acknowledged to one producer, between these, beside those of a burst."""
_MISCHIEF = 0.04
"""Chance, per burst of requests, of each misbehaviour."""
_ENDS = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


@dataclass(slots=True)
class _Request:
    """One request, and what has to come back."""

    body: bytes
    good: list[bytes] = field(default_factory=list)
    flawed: dict[bytes, int] = field(default_factory=dict)
    """Items that have to be refused, by their code."""
    indivisible: bool = False
    repeated: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HotBurst:
    """Many messages of one subject that are due at one time."""

    count: int
    at_s: float
    """When they are sent, virtual seconds."""
    due_ms: int
    spread_ms: int
    """They are due from `due_ms` on, over so long, most of them early; 0: all in the same
    millisecond."""


class SimProducer:
    """One client process with one connection at a time."""

    def __init__(
        self,
        name: str,
        server: Address,
        *,
        network: SimNetwork,
        chance: random.Random,
        witness: Witness,
        length_s: float,
        minutes_ms: list[int],
        horizon_ms: int,
        faults: Counter[str],
        disk_may_be_full: Callable[[], bool],
        disk_is_small: Callable[[], bool],
        burst: HotBurst | None = None,
    ) -> None:
        self.name = name
        self._server = server
        self._network = network.node(name)
        self._chance = chance
        self._witness = witness
        self._length_s = length_s
        self._horizon_ms = horizon_ms
        self._minutes_ms = minutes_ms
        self._faults = faults
        self._disk_may_be_full = disk_may_be_full
        self._disk_is_small = disk_is_small
        self._burst = burst
        self._left = chance.randint(*_ITEMS)
        self._nudge = trio.Event()
        self._numbers = 0
        self._new_subjects = chance.choice(_NEW_SUBJECTS)
        self._opaque = 0
        self._stream: SimStream | None = None
        self._decoder = FrameDecoder(frame_bytes_max=1 << 24)

    async def run(self) -> None:
        """Send everything, and return when all of it is answered."""
        chance = self._chance
        while self._left > 0:
            requests = [self._make_request() for _ in range(chance.choice((1, 1, 2, 5)))]
            await self._deliver([request for request in requests if request.body])
            if self._burst is not None and trio.current_time() >= self._burst.at_s:
                await self._deliver(self._hot_requests(self._burst))
                self._burst = None
            with trio.move_on_after(self._pause_s()):
                await self._nudge.wait()
            self._nudge = trio.Event()
        if self._burst is not None:
            await trio.sleep_until(self._burst.at_s)
            await self._deliver(self._hot_requests(self._burst))
        self._close()

    def nudge(self) -> None:
        """Send the next burst now."""
        self._nudge.set()

    def _pause_s(self) -> float:
        kind = self._chance.random()
        if kind < 0.55:
            return self._chance.uniform(0, 0.05)
        if kind < 0.8:
            return self._chance.uniform(0, 30)
        return self._chance.uniform(0, self._length_s / 14)

    # -- what is sent ------------------------------------------------------------------------

    def _make_request(self) -> _Request:
        chance = self._chance
        request = _Request(b"", repeated=chance.random() < 0.97)
        parts = []
        for _ in range(min(chance.choice((1, 2, 4, 8)), self._left)):
            flaw = chance.random()
            if flaw < 0.015:
                parts.append(self._flawed_item(request))
            now_ms = self._witness.clock.now_ms()
            subject = chance.choice(_SUBJECTS)
            if self._new_subjects and not self._numbers % self._new_subjects:
                subject += f".{self._numbers}.{self.name}"
            parts.append(self._good_item(request, self._due_ms(now_ms), subject))
            self._left -= 1
        if not parts:
            return request
        request.body = encode_send_request_body(parts)
        if chance.random() < 0.01:
            request.body = request.body[:-3]
            request.indivisible = True
            self._left += len(request.good)
            for message_id in request.good:
                del self._witness.items[message_id], self._witness.due_ms[message_id]
        return request

    def _hot_requests(self, burst: HotBurst) -> list[_Request]:
        chance = self._chance
        self._faults["hot subject"] += 1
        requests = []
        left = burst.count
        while left:
            request = _Request(b"")
            size = min(left, chance.choice((20, 100)))
            left -= size
            dues = [
                burst.due_ms + round(burst.spread_ms * chance.random() ** 3) for _ in range(size)
            ]
            items = [self._good_item(request, due_ms, "hot", small=True) for due_ms in dues]
            request.body = encode_send_request_body(items)
            requests.append(request)
        return requests

    def _new_id(self) -> str:
        self._numbers += 1
        return f"{self.name}.{self._numbers}"

    def _good_item(
        self, request: _Request, due_ms: int, subject: str, *, small: bool = False
    ) -> bytes:
        chance, witness = self._chance, self._witness
        message_id = self._new_id()
        now_ms = witness.clock.now_ms()
        repeats = 1 if small else chance.choice((1, 2, 8, 80))
        flag = FLAG_DELAY if chance.random() < 0.97 else 0
        tags = ("a", "b") if chance.random() < 0.1 else ()
        item = encode_item(
            Item(
                flag=flag | (FLAG_TAGS if tags else 0),
                create_ms=now_ms,
                due_ms=due_ms,
                subject=subject,
                message_id=message_id,
                tags=tags,
                attributes={"data": f"{chance.getrandbits(64):x}" * repeats},
            )
        )
        key = message_id.encode()
        request.good.append(key)
        witness.items[key] = item
        witness.due_ms[key] = due_ms if flag else 0
        return item

    def _flawed_item(self, request: _Request) -> bytes:
        chance = self._chance
        flaw = chance.choice((ItemCode.STORE_ERROR, ItemCode.BLOCK, ItemCode.SUBJECT_NOT_ASSIGNED))
        message_id = self._new_id()
        now_ms = self._witness.clock.now_ms()
        # Beyond the horizon, however far the clock leaps while the request is held.
        late = 2 * self._horizon_ms if flaw is ItemCode.BLOCK else 1000
        item = encode_item(
            Item(
                flag=FLAG_DELAY,
                create_ms=now_ms,
                due_ms=now_ms + late,
                subject="a/b" if flaw is ItemCode.SUBJECT_NOT_ASSIGNED else "orders",
                message_id=message_id,
                attributes={"data": "x"},
            )
        )
        if flaw is ItemCode.STORE_ERROR:
            item = item[:-1] + b"y"
        request.flawed[message_id.encode()] = flaw
        self._witness.refused[message_id.encode()] = flaw
        return item

    def _due_ms(self, now_ms: int) -> int:
        chance = self._chance
        kind = chance.random()
        if kind < 0.08:
            return now_ms - chance.randint(0, 7_200_000)
        if kind < 0.14:
            return now_ms
        if kind < 0.34:
            return now_ms + chance.randint(0, 60_000)
        # Half of them all at once, as timers of people are: on the minute, and a quarter past it.
        after_ms = chance.choice((0, 0, 15_000)) if kind < 0.67 else chance.randint(0, 30_000)
        return chance.choice(self._minutes_ms) + after_ms

    # -- how it is sent ----------------------------------------------------------------------

    async def _deliver(self, burst: list[_Request]) -> None:
        """Send requests until each is answered; those never repeated are tried once."""
        waiting = burst
        if waiting and self._chance.random() < _MISCHIEF:
            await self._vanish(waiting)
        if self._chance.random() < _MISCHIEF:
            await self._send_garbage()
        pause_s = _PAUSE_S
        while waiting:
            answers = await self._attempt(waiting)
            left = []
            for number, request in enumerate(waiting):
                if number in answers and self._accept(request, answers[number]):
                    continue
                if request.repeated:
                    left.append(request)
                else:
                    self._left += len(request.good)
            waiting = left
            if waiting:
                await trio.sleep(self._chance.uniform(0, pause_s))
                if self._disk_is_small():
                    pause_s = min(2 * pause_s, _REFUSED_PAUSE_MAX_S)
                else:
                    pause_s = _PAUSE_S if answers else min(2 * pause_s, _PAUSE_MAX_S)
        if self._chance.random() < 0.1:
            self._close()

    async def _attempt(self, requests: list[_Request]) -> dict[int, Frame]:
        """Send requests in one go; return the answers that came in time, by place."""
        chance = self._chance
        answers: dict[int, Frame] = {}
        places: dict[int, int] = {}
        data = self._frames(requests, places)
        twice = chance.random() < _MISCHIEF
        if twice:
            data += self._frames(requests, places)
        try:
            with trio.fail_after(_TIMEOUT_S):
                stream = await self._connected()
                self._faults["producer sends twice"] += twice
                for number in places.values():
                    self._witness.attempt(requests[number].good)
                if chance.random() < _MISCHIEF:
                    self._faults["producer pauses in a frame"] += 1
                    cut = chance.randrange(len(data))
                    await stream.send_all(data[:cut])
                    await trio.sleep(chance.uniform(0.1, 4))
                    data = data[cut:]
                await stream.send_all(data)
                while len(answers) < len(requests):
                    data = await stream.receive_some()
                    if not data:
                        self._close()
                        break
                    self._decoder.feed(data)
                    for frame in self._decoder.frames():
                        if frame.opaque in places:
                            answers[places[frame.opaque]] = frame
        except (*_ENDS, trio.TooSlowError):
            if self._chance.random() < 0.5 or not answers:
                self._close()
        return answers

    def _frames(self, requests: list[_Request], places: dict[int, int]) -> bytes:
        """Return the requests as frames; note the place of each by its opaque."""
        parts = []
        for number, request in enumerate(requests):
            self._opaque += 1
            places[self._opaque] = number
            parts.append(
                encode_request(
                    code=CommandCode.SEND_MESSAGE, opaque=self._opaque, body=request.body
                )
            )
        return b"".join(parts)

    async def _vanish(self, requests: list[_Request]) -> None:
        """Send a part of the requests and then hang up, or never speak on that connection again."""
        chance = self._chance
        self._faults["producer vanishes in a frame"] += 1
        data = self._frames(requests, {})
        with contextlib.suppress(*_ENDS, trio.TooSlowError):
            with trio.fail_after(_TIMEOUT_S):
                stream = await self._network.connect(*self._server)
                for request in requests:
                    self._witness.attempt(request.good)
                await stream.send_all(data[: chance.randrange(len(data))])
            if chance.random() < 0.5:
                stream.close_now()

    async def _send_garbage(self) -> None:
        """Send what is no frame, on a connection of its own; it has to be closed soon."""
        chance = self._chance
        self._faults["producer sends garbage"] += 1
        with contextlib.suppress(*_ENDS, trio.TooSlowError):
            with trio.fail_after(_TIMEOUT_S):
                stream = await self._network.connect(*self._server)
                await stream.send_all(chance.randbytes(chance.randint(1, 300)))
                while await stream.receive_some():
                    pass
            stream.close_now()

    async def _connected(self) -> SimStream:
        if self._stream is None:
            self._stream = await self._network.connect(*self._server)
            self._decoder = FrameDecoder(frame_bytes_max=1 << 24)
        return self._stream

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close_now()
            self._stream = None

    def _accept(self, request: _Request, answer: Frame) -> bool:
        """Take note of an answer; return False if the request has to be sent again."""
        witness = self._witness
        if request.indivisible:
            if answer.code != ResponseCode.BROKER_ERROR:
                witness.complain(f"serves: an indivisible request was answered {answer.code}")
            return True
        if answer.code == ResponseCode.BROKER_ERROR:
            witness.turned_away.update(request.good)
            return False
        if answer.code != ResponseCode.SUCCESS:
            witness.complain(f"serves: a request was answered {answer.code}")
            return True
        failures = {key: code for key, (code, _) in decode_send_reply(answer.body).items()}
        recognised = set()
        for message_id in request.good:
            if failures.get(message_id) == ItemCode.MESSAGE_DUPLICATE:
                del failures[message_id]
                recognised.add(message_id)
                self._faults["message recognised"] += 1
                if witness.attempts[message_id] < 2:
                    witness.complain(f"kept: {message_id!r} was recognised, and was sent once")
        if set(failures.values()) == {ItemCode.BROKER_READ_ONLY} and self._disk_may_be_full():
            self._faults["message refused, disk full"] += len(failures)
            witness.turned_away.update(request.good)
            return False
        if failures != request.flawed:
            witness.complain(f"serves: items were refused with {failures}, not {request.flawed}")
        for message_id in request.good:
            if message_id not in failures:
                witness.acknowledge(message_id)
                if message_id not in recognised:
                    witness.rows_least[essence(witness.items[message_id])] += 1
        return True
