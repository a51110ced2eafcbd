"""The example service: reminders are ordered over HTTP, and delivered when they are due."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from delay_client.testing import FakeCluster
from examples.reminders.app import SUBJECT, Reminders
from tests.asgi import Caller
from tests.ports import closed_port
from tests.processes.real_processes import ROOT, meta_server, server, until


@asynccontextmanager
async def running(cluster: FakeCluster) -> AsyncIterator[Caller]:
    """Run the service in a fake cluster; give somebody who asks it."""
    app = Reminders(cluster.client, lambda: cluster.receiver("reminders", subjects=[SUBJECT])).app
    async with app.router.lifespan_context(app):
        yield Caller(app)


async def test_a_reminder_is_delivered_when_it_is_due() -> None:
    cluster = FakeCluster()
    async with running(cluster) as caller:
        tea = {"who": "ada", "text": "the tea is ready", "in_seconds": 180}
        at = cluster.now + timedelta(days=300)
        passport = {"who": "ada", "text": "renew the passport", "at": at.isoformat()}
        first = await caller.ask("POST", "/reminders", tea)
        second = await caller.ask("POST", "/reminders", passport)
        assert (first.code, second.code, second.json["due"]) == (202, 202, at.isoformat())

        await cluster.advance(minutes=2, seconds=59)
        assert (await caller.ask("GET", "/reminders/delivered")).json == []
        await cluster.advance(seconds=1)
        [delivered] = (await caller.ask("GET", "/reminders/delivered")).json
        assert (delivered["text"], delivered["id"]) == ("the tea is ready", first.json["id"])
        await cluster.advance(days=300)
        assert len((await caller.ask("GET", "/reminders/delivered")).json) == 2
    assert not cluster.pending()


@pytest.mark.parametrize(
    ("order", "why"),
    [
        ({"text": "x", "in_seconds": 1}, "who"),
        ({"who": "", "text": "x", "in_seconds": 1}, "who"),
        ({"who": "ada", "text": "x"}, "give one of delay=, at= and level="),
        ({"who": "ada", "text": "x", "in_seconds": -1}, "negative"),
        ({"who": "ada", "text": "x", "in_seconds": 1e9}, "limit 730.0"),
        ({"who": "ada", "text": "x", "at": "2030-01-01T00:00:00"}, "no time zone"),
        ({"who": "ada", "text": "x" * 2_000_000, "in_seconds": 1}, "send less"),
    ],
)
async def test_what_cannot_be_a_reminder_is_refused_with_a_sentence(
    order: dict[str, object], why: str
) -> None:
    cluster = FakeCluster()
    async with running(cluster) as caller:
        answer = await caller.ask("POST", "/reminders", order)
        assert answer.code == 400
        assert why in answer.json["error"]
    assert not cluster.sent


async def test_in_an_outage_it_gives_an_id_to_ask_again_with(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = FakeCluster()
    tea = {"who": "ada", "text": "tea", "in_seconds": 0}
    async with running(cluster) as caller:
        with cluster.outage():
            answer = await caller.ask("POST", "/reminders", tea)
        assert answer.code == 503
        key = {"idempotency-key": answer.json["id"]}
        for _ in range(2):
            again = await caller.ask("POST", "/reminders", tea, headers=key)
            assert (again.code, again.json["id"]) == (202, answer.json["id"])
        await cluster.advance()
        # The second one was known.
        assert len(cluster.done) == 1
        assert capsys.readouterr().out == "ada: tea\n"
        assert len((await caller.ask("GET", "/reminders/delivered")).json) == 1


async def test_what_comes_due_while_it_is_away_is_delivered_when_it_is_back() -> None:
    cluster = FakeCluster()
    async with running(cluster) as caller:
        await caller.ask("POST", "/reminders", {"who": "ada", "text": "tea", "in_seconds": 60})
    await cluster.advance(hours=1)
    assert [one.attempts for one in cluster.pending(SUBJECT)] == [0]
    async with running(cluster) as caller:
        await cluster.advance()
        assert len((await caller.ask("GET", "/reminders/delivered")).json) == 1


async def test_a_message_that_is_no_reminder_is_a_dead_letter() -> None:
    cluster = FakeCluster()
    async with running(cluster), cluster.client() as client:
        await client.send(SUBJECT, "tea?", delay=0)
        await cluster.advance()
    [refused] = cluster.refused
    assert refused.reason.startswith("no reminder: ")


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("worker", ["asyncio", "trio"])
def test_it_runs_on_real_servers(tmp_path: Path, worker: str) -> None:
    address = f"127.0.0.1:{closed_port()}"
    (tmp_path / "m").mkdir()
    (tmp_path / "d").mkdir()
    with meta_server(tmp_path / "m" / "data") as meta:
        meta.wait_ready()
        with server(tmp_path / "d" / "data", options=("--meta", meta.http)) as delay:
            delay.wait_ready()
            service = subprocess.Popen(
                [
                    *(sys.executable, "-m", "hypercorn", "--bind", address, "-k", worker),
                    "examples.reminders.app:app",
                ],
                cwd=ROOT,
                env=os.environ | {"DELAYWHEEL_META": meta.http},
                stdout=subprocess.PIPE,
                text=True,
            )
            try:
                assert until(lambda: ask(address, "/reminders/delivered") == [], seconds=20)
                tea = {"who": "ada", "text": "tea", "in_seconds": 0.5}
                due = ask(address, "/reminders", tea)
                assert until(lambda: ask(address, "/reminders/delivered"), seconds=20)
                [delivered] = ask(address, "/reminders/delivered")
                assert (delivered["id"], delivered["due"]) == (due["id"], due["due"])
                service.terminate()
                began = time.monotonic()
                said, _ = service.communicate(timeout=20)
                assert "ada: tea" in said
                assert service.returncode == 0
                assert time.monotonic() - began < 10
            finally:
                service.kill()
                service.communicate()


def ask(address: str, path: str, body: object = None) -> Any:  # noqa: ANN401 (whatever it is)
    """Return what the service answers, None where it does not listen yet."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(f"http://{address}{path}", data, timeout=5) as answer:
            return json.load(answer)
    except urllib.error.URLError:
        return None
