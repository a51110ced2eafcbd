"""Promise: one question waits at a time, and a meta server that answers none is left."""

import math
import random

import pytest

from delay_client import ClientConfig
from delay_client.exchange.talks import MastersTalk
from delay_protocol.receivers.masters import (
    HOLD_S,
    MasterInfo,
    ReceiverRefused,
    ReceiverRegister,
    ReceiverRegistered,
    ReceiverReply,
    decode_receiver_register,
    encode_receiver_reply,
)
from delay_protocol.wire.frames import Frame

CONFIG = ClientConfig(meta_answer_timeout_s=5, backoff_min_s=1, meta_backoff_max_s=8)
TOLD = ReceiverRegistered(version=7, masters=(MasterInfo(group="g", address="h:1"),))


class World:
    def __init__(self) -> None:
        self.told: list[ReceiverRegistered] = []
        self.talk = MastersTalk(
            ReceiverRegister(name="r", patterns=("a.*",), token="t"),  # noqa: S106 (none)
            config=CONFIG,
            chance=random.Random(1),
            registered=self.told.append,
        )

    def question(self, now: float) -> Frame:
        [(code, body, self.about)] = self.talk.outgoing(now)
        return Frame(code, 9, 1, 0, 0, body)

    def answer(
        self, frame: Frame, now: float, reply: ReceiverReply | None = None, code: int = 0
    ) -> None:
        body = b"later" if reply is None else encode_receiver_reply(reply)
        self.talk.take(Frame(code, 9, frame.opaque, 1, frame.code, body), self.about, now)


def test_the_first_question_is_answered_at_once_and_the_next_is_held() -> None:
    world = World()
    assert world.talk.next_at() == math.inf
    world.talk.connected(1)
    assert world.talk.next_at() == 1
    frame = world.question(1)
    asked = decode_receiver_register(frame.body)
    assert (asked.name, asked.patterns, asked.token, asked.told) == ("r", ("a.*",), "t", 0)
    assert (world.talk.stalls_at(), world.talk.next_at()) == (6, math.inf)
    assert world.talk.outgoing(2) == ()
    world.answer(frame, 2, TOLD)
    assert world.told == [TOLD]
    frame = world.question(2)
    assert decode_receiver_register(frame.body).told == 7
    assert world.talk.stalls_at() == 2 + HOLD_S + 5
    # On a new connection nothing was told.
    world.talk.disconnected(3)
    assert world.talk.stalls_at() == math.inf
    world.talk.connected(4)
    assert decode_receiver_register(world.question(4).body).told == 0


@pytest.mark.parametrize(
    ("reply", "code", "said"),
    [
        (ReceiverRefused(reason="a broker's"), 0, "a broker's"),
        (ReceiverRefused(reason=""), 0, "no reason"),
        (None, 51, "code 51 later"),
        (None, 0, "an answer that cannot be read"),
    ],
)
def test_after_a_refusal_it_asks_again_after_a_pause_that_grows(
    reply: ReceiverReply | None, code: int, said: str
) -> None:
    world = World()
    world.talk.connected(0)
    pauses = []
    now = 0.0
    for _ in range(6):
        world.answer(world.question(now), now, reply, code)
        assert said in world.talk.refusal
        pauses.append(world.talk.next_at() - now)
        now = world.talk.next_at()
    assert pauses[0] < pauses[-1] <= 8
    assert world.talk.is_refused is (reply is not None)
    world.answer(world.question(now), now, TOLD)
    assert (world.talk.refusal, world.talk.next_at()) == ("", now)
    world.answer(world.question(now), now, ReceiverRefused(reason="a wrong token"))
    assert world.talk.refusal == "a wrong token"


def test_what_answers_no_question_is_passed_over() -> None:
    world = World()
    world.talk.connected(0)
    frame = world.question(0)
    world.talk.take(Frame(0, 9, frame.opaque + 1, 1, 1044, b""), None, 0)
    assert (world.talk.answers, world.talk.stalls_at()) == (0, 5)
    world.answer(frame, 0, TOLD)
    assert (world.talk.answers, len(world.told)) == (1, 1)
