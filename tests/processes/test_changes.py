"""Half of many messages are cancelled at random moments, while masters of the group are killed."""

import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from delay_client import BlockingClient, Changed, OutgoingMessage, Receipt
from delay_protocol.messages.changes import ChangeState as S
from tests.processes.real_processes import until, wall_ms
from tests.processes.test_reconcile import reconcile
from tests.processes.test_replicas import new_group

pytestmark = [pytest.mark.process, pytest.mark.long]

MESSAGES = 20_000
DUE_FROM_S, DUE_TO_S = 8.0, 68.0
KILLED_S = (20.0, 40.0)
"""Seconds from the first cancel to the end of a master."""
AT_ONCE = 50
"""Cancels of one call; they are due at any time."""
UNDER_WAY_MS = 20_000
"""Time before a death in which deliveries may be unknown to the next master."""


def test_what_was_cancelled_never_comes_and_all_else_does(tmp_path: Path) -> None:
    chance = random.Random(46)
    cancelled: dict[str, int] = {}
    """When the answer was here, by id."""
    states, deaths = Counter[S](), list[int]()
    with new_group(tmp_path) as group:
        nodes = group.start_three()
        broker = group.cluster.broker
        with BlockingClient(meta=f"127.0.0.1:{group.cluster.meta_http}") as client:
            receipts = [
                one
                for one in client.send_many(
                    OutgoingMessage("a.b", "x" * 100, chance.uniform(DUE_FROM_S, DUE_TO_S))
                    for _ in range(MESSAGES)
                )
                if isinstance(one, Receipt)
            ]
            assert len(receipts) == MESSAGES

            def kill_masters() -> None:
                began = time.monotonic()
                for at_s in KILLED_S:
                    time.sleep(max(began + at_s - time.monotonic(), 0))
                    name = group.until_master(*nodes)
                    nodes[name].process.kill()
                    deaths.append(wall_ms())
                    nodes[name] = group.start(name)

            killing = threading.Thread(target=kill_masters)
            killing.start()
            left = chance.sample(receipts, MESSAGES // 2)
            pause_s = (DUE_TO_S - DUE_FROM_S) * AT_ONCE / len(left) / 2
            deadline = time.monotonic() + 3 * DUE_TO_S
            while left:
                assert time.monotonic() < deadline, states
                asked, left = left[:AT_ONCE], left[AT_ONCE:]
                for receipt, outcome in zip(asked, client.cancel_many(asked), strict=True):
                    assert isinstance(outcome, Changed), outcome
                    states[outcome.state] += 1
                    if outcome.state is S.CANCELLED:
                        cancelled[receipt.message_id] = wall_ms()
                    elif outcome.state in {S.SENDING, S.IN_DOUBT}:
                        left.append(receipt)
                time.sleep(pause_s)
            killing.join()
        ids = {one.message_id for one in receipts}
        # A cancel whose answer a death took away is told as made before: then it need not come.
        gone = states[S.CHANGED_BEFORE]
        assert until(lambda: len(ids - cancelled.keys() - set(broker.ids)) <= gone, seconds=60)
        group.until_in_sync(*nodes)
        is_settled = until(
            lambda: not any(node.process.status()["pending"] for node in nodes.values()), seconds=30
        )
        for node in nodes.values():
            node.process.terminate()
        deliveries = list(broker.deliveries)
    assert len(deaths) == len(KILLED_S)
    assert min(states[S.CANCELLED], states[S.DELIVERED]) > MESSAGES // 20, states
    assert not [one for one in deliveries if one.at_ms < one.due_ms]
    for one in deliveries:
        answered_ms = cancelled.get(one.message_id)
        if answered_ms is not None:
            assert one.at_ms < answered_ms, one
            assert any(0 <= death - one.at_ms < UNDER_WAY_MS for death in deaths), one
    assert is_settled
    roots = [part for node in nodes.values() for part in ("--root", str(node.data))]
    done = reconcile(tmp_path / "result.json", *roots, "--final", "--grace-ms", "0")
    (books,) = done["groups"]
    assert books["accepted"] == MESSAGES
    assert len(cancelled) <= books["states"]["cancelled"] <= len(cancelled) + gone
    assert books["states"]["delivered"] == MESSAGES - books["states"]["cancelled"]
