"""Promise: nothing is sent that the audit does not name first; what was acknowledged goes once."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from delay_client import Client, ClientConfig
from delay_protocol.messages.items import FLAG_DELAY, Item, encode_item
from spark_tools.repair.repair import LeftOut, Message, Sent, Wanted, Why
from spark_tools.repair.resender import Outcome, Resender, Run, Stop, read_sent
from spark_tools.repaired.repair_audit import Answer, Audit, Begin, End, Intent, Line, read_audit
from spark_tools.repaired.repairs import LogName
from tests.delay_client.conftest import DROP, SILENCE, Request, Script, ScriptedServer, StartServer

LOG = LogName("c", "g", "u")
FAST = ClientConfig(backoff_min_s=0.001, backoff_max_s=0.004, try_timeout_s=0.2, timeout_s=0.5)


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    servers: list[ScriptedServer] = []

    def start(script: Script) -> ScriptedServer:
        servers.append(ScriptedServer(script))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def message(number: int) -> Message:
    item = encode_item(Item(FLAG_DELAY, 1, 100 + number, "s", f"m{number}"))
    wanted = Wanted(
        kind="lost", cluster="c", group="g", node="n", sequence=number, message_id=f"m{number}",
        subject="s", due_ms=100 + number, filed_minute=0, file="schedule_log/x", position=64,
    )  # fmt: skip
    return Message(wanted, "u", "s", f"m{number}", item)


def send(
    server: ScriptedServer,
    audit: Path,
    messages: list[Message | LeftOut],
    *,
    rate: int = 1000,
    stop_after: int | None = None,
) -> tuple[Outcome, float, list[LeftOut]]:
    """Run; return the outcome, the seconds it took, and what was left out."""
    left: list[LeftOut] = []
    sent, _ = read_sent(read_audit(audit) if audit.exists() else iter(()))

    async def main() -> tuple[Outcome, float]:
        run = Run(run="r", who="w", to=[server.address], kinds=["lost"], details="d", rate=rate)
        stop = Stop()

        def progress(outcome: Outcome) -> None:
            if stop_after is not None and outcome.counts.total() >= stop_after:
                stop.ask("SIGTERM")

        async with Client([server.address], config=FAST) as client:
            began = anyio.current_time()
            with anyio.fail_after(20):
                resender = Resender(run, client, held, sent, lambda: 5)
                outcome = await resender.send(
                    (one for one in messages if not sent.has(LOG, "lost", one.wanted.sequence)),
                    on_left_out=left.append,
                    on_progress=progress,
                    stop=stop,
                )
            return outcome, anyio.current_time() - began

    with Audit(audit) as held:
        outcome, seconds = anyio.run(main)
    return outcome, seconds, left


def of_kind(lines: list[Line | None], kind: type[Any]) -> list[Any]:
    return [one for one in lines if isinstance(one, kind)]


def test_each_message_is_in_the_audit_before_it_is_sent_and_after(
    start_server: StartServer, tmp_path: Path
) -> None:
    audit = tmp_path / "a"
    seen: list[set[int]] = []

    def script(request: Request) -> bytes:
        lines = list(read_audit(audit))
        named = {one.sequence for one in of_kind(lines, Intent)}
        assert {int(name[1:]) for name in request.ids} <= named
        seen.append(named)
        return request.accept()

    server = start_server(script)
    everything = [message(number) for number in range(25)]
    outcome, _, _ = send(server, audit, list(everything), rate=100)
    assert outcome.counts == {"accepted": 25}
    assert outcome.stopped == ""
    assert [item for one in server.requests for item in one.items] == [
        one.item for one in everything
    ]
    lines = list(read_audit(audit))
    assert [one.sequence for one in of_kind(lines, Answer)] == list(range(25))
    assert isinstance(lines[0], Begin)
    assert isinstance(lines[-1], End)
    assert lines[-1].counts == {"accepted": 25}
    assert len(seen[0]) == 10, "no more than a few are on their way"


def test_what_was_acknowledged_is_not_sent_again_and_all_else_is(
    start_server: StartServer, tmp_path: Path
) -> None:
    def some(request: Request) -> bytes:
        return request.fail_items(("m1", 3, "subject"), ("m2", 2, "known"), ("m3", 1, "busy"))

    server = start_server(some)
    audit = tmp_path / "a"
    everything: list[Message | LeftOut] = [message(number) for number in range(5)]
    outcome, _, _ = send(server, audit, everything)
    assert outcome.counts == {"accepted": 2, "refused": 1, "known": 1, "unanswered": 1}
    assert len(outcome.reasons) == 3
    again = start_server(lambda request: request.accept())
    outcome, _, _ = send(again, audit, everything)
    assert [name for one in again.requests for name in one.ids] == ["m1", "m2", "m3"]
    assert outcome.counts == {"accepted": 3}
    last = start_server(lambda request: request.accept())
    assert send(last, audit, everything)[0].counts == {}
    assert last.requests == []


@pytest.mark.parametrize("answer", [SILENCE, DROP])
def test_it_stops_where_nobody_takes_anything(
    answer: bytes, start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(lambda _: answer)
    audit = tmp_path / "a"
    outcome, _, _ = send(server, audit, [message(number) for number in range(30)], rate=10)
    assert 10 <= outcome.counts["unanswered"] < 20
    assert set(outcome.counts) == {"unanswered"}
    assert outcome.stopped == "nobody takes messages"
    lines = list(read_audit(audit))
    assert {one.result for one in of_kind(lines, Answer)} == {"unanswered"}
    assert lines[-1].why == "nobody takes messages"  # type: ignore[union-attr]


def test_it_stops_when_it_is_asked_to_with_everything_answered(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(lambda request: request.accept())
    audit = tmp_path / "a"
    everything: list[Message | LeftOut] = [message(number) for number in range(3)]
    outcome, seconds, _ = send(server, audit, everything, rate=1, stop_after=1)
    assert outcome.counts == {"accepted": 1}
    assert outcome.stopped == "SIGTERM"
    assert seconds < 0.9, "it does not sleep through it"
    lines = list(read_audit(audit))
    assert len(of_kind(lines, Intent)) == len(of_kind(lines, Answer)) == 1


def test_it_sends_no_faster_than_it_may(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(lambda request: request.accept())
    everything: list[Message | LeftOut] = [message(number) for number in range(50)]
    outcome, seconds, _ = send(server, tmp_path / "a", everything, rate=20)
    assert outcome.counts == {"accepted": 50}
    assert 2.0 <= seconds < 4.0
    assert len(server.requests[0].items) == 2, "a tenth of a second, and no burst"


def test_slow_answers_do_not_make_it_slower_than_it_may_be(
    start_server: StartServer, tmp_path: Path
) -> None:
    def slow(request: Request) -> bytes:
        time.sleep(0.15)
        return request.accept()

    server = start_server(slow)
    outcome, seconds, _ = send(server, tmp_path / "a", [message(n) for n in range(50)], rate=50)
    assert outcome.counts == {"accepted": 50}
    assert 0.8 <= seconds < 1.45, "1.6 s by five at once"
    assert max(len(one.items) for one in server.requests) > 5


def test_few_bytes_are_on_their_way(
    start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(message(0).item)
    monkeypatch.setattr("spark_tools.repair.resender._BYTES_AT_ONCE", 3 * size)
    server = start_server(lambda request: request.accept())
    send(server, tmp_path / "a", [message(number) for number in range(9)], rate=10_000)
    assert [len(one.items) for one in server.requests] == [3, 3, 3]


def test_what_is_left_out_is_handed_on(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(lambda request: request.accept())
    out = LeftOut(message(1).wanted, Why.SETTLED)
    outcome, _, left = send(server, tmp_path / "a", [message(0), out, message(2)])
    assert outcome.counts == {"accepted": 2}
    assert left == [out]


def test_sent_is_asked_by_log_and_class() -> None:
    sent = Sent()
    assert sent.add(LOG, "lost", 7)
    assert not sent.add(LOG, "lost", 7)
    assert sent.has(LOG, "lost", 7)
    assert not sent.has(LOG, "missing", 7)
    assert not sent.has(LogName("c", "g", "v"), "lost", 7)
    assert not sent.has(LOG, "lost", 8)
