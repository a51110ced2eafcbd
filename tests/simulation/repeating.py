"""A producer that sends messages again: as they were, made anew, or as others of the same id."""

import random
import zlib
from collections import Counter
from collections.abc import Callable

import trio

from delay_protocol.basics.codes import ItemCode, ResponseCode
from delay_protocol.messages.send_message import decode_send_reply, encode_send_request_body
from tests.delay_server.server_rig import Producer
from tests.simulation.changing import Sent
from tests.simulation.independent_reader import DELAY_FLAG, essence
from tests.simulation.witness import Witness

_KINDS = ("the same", "the same", "made anew", "another body", "another time")
_ANSWER_S = 10.0


class Repeater:
    """Sends again, and judges what is recognised; the rows are judged at the end (checkers.py)."""

    def __init__(
        self,
        chance: random.Random,
        witness: Witness,
        faults: Counter[str],
        may_lack_space: Callable[[], bool],
    ) -> None:
        """Tell the witness of what is sent."""
        self._chance = chance
        self._witness = witness
        self._faults = faults
        self._may_lack_space = may_lack_space

    async def send(self, producer: Producer, sent: Sent) -> None:
        """Send a message again once, in one way or another."""
        chance, witness = self._chance, self._witness
        key, kind = sent.message_id.encode(), chance.choice(_KINDS)
        due_ms = witness.due_ms[key]
        item = witness.items[key]
        if kind == "another time" and not item[8] & DELAY_FLAG:
            kind = "the same"
        if kind == "another time":
            due_ms = max(witness.clock.now_ms(), due_ms) + chance.randint(1, 600_000)
        if kind != "the same":
            item = _changed(item, chance, kind, due_ms)
            witness.later[item] = due_ms
        if kind in {"another body", "another time"}:
            witness.varied.add(key)
        self._faults[f"sent again: {kind}"] += 1
        was_cancelled = witness.fates.is_cancelled(sent.message_id)
        began_s = trio.current_time()
        witness.attempt([key])
        with trio.fail_after(_ANSWER_S):
            answer = await producer.answer(await producer.post(encode_send_request_body([item])))
        if answer.code == ResponseCode.BROKER_ERROR:
            witness.turned_away[key] += 1
            return
        codes = {code for code, _ in decode_send_reply(answer.body).values()}
        if codes == {ItemCode.BROKER_READ_ONLY} and self._may_lack_space():
            witness.turned_away[key] += 1
        elif codes == {ItemCode.MESSAGE_DUPLICATE}:
            self._faults["sent again: recognised"] += 1
            if key in witness.varied or was_cancelled:
                witness.complain(f"swallowed: {key!r}, {kind}, {was_cancelled=}")
        elif codes:
            witness.complain(f"serves: what was sent again was refused with {codes}")
        else:
            witness.rows_least[essence(item)] += 1
            witness.fates.acknowledged(sent.message_id, began_s)
            self._faults["sent again: after a cancel"] += was_cancelled


def _changed(item: bytes, chance: random.Random, kind: str, due_ms: int) -> bytes:
    """Return an item with another time of creation, time or body, and its CRC."""
    create, due, rest = item[9:17], item[17:25], item[25:]
    if kind == "made anew":
        create = (int.from_bytes(create, "big") + chance.randint(1, 5000)).to_bytes(8, "big")
    elif kind == "another body":
        rest = rest[:-1] + bytes([rest[-1] ^ 1])
    else:
        due = due_ms.to_bytes(8, "big")
    covered = item[8:9] + create + due + rest
    return zlib.crc32(covered).to_bytes(8, "big") + covered
