"""`delaywheel spark repair` says what it would do, does it only when told to, and keeps books."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from delaywheel.main import main
from spark_tools.repaired.repair_audit import Answer, read_audit
from spark_tools.run.plan import Source
from storage.readers.manifest import encode_manifest
from tests.delay_client.conftest import DROP, SILENCE, Request, ScriptedServer
from tests.delay_client.fake_meta import FakeMeta, group
from tests.delaywheel.endings import done, refused
from tests.processes.real_processes import ROOT
from tests.spark_tools.repair_worlds import sealed_builder
from tests.spark_tools.worlds import Builder


def invoke(*options: str, command: str = "repair") -> Result:
    return CliRunner().invoke(main, ["spark", command, "--engine", "local", *options])


@pytest.fixture
def node() -> Iterator[ScriptedServer]:
    server = ScriptedServer(lambda request: request.accept())
    yield server
    server.close()


def lost(root: Path, builder: Builder | None = None) -> tuple[Source, tuple[str, ...]]:
    """Write a world in which messages are lost; return it, and the options that name it."""
    source = (builder or sealed_builder(lost=3, missing=2)).build().written(root / "data")
    file = root / "manifest.json"
    file.write_bytes(encode_manifest(source.manifest))
    return source, ("--manifest", f"{file}={source.root}")


def test_without_send_it_only_says_what_it_would_do(tmp_path: Path) -> None:
    _, options = lost(tmp_path)
    found = done(invoke(*options))
    assert "3 messages to send" in found.output
    assert "3 lost" in found.output
    assert "nothing was sent" in found.output
    assert "schedule_log/" in found.output
    found = invoke(*options, "--missing")
    assert "5 messages to send" in found.output
    assert "2 missing" in found.output


def test_it_sends_each_message_once_and_reconciles_to_nothing(
    node: ScriptedServer, tmp_path: Path
) -> None:
    builder = sealed_builder(lost=3, missing=2)
    _, options = lost(tmp_path, builder)
    audit = tmp_path / "audit.jsonl"
    to = ("--server", node.address, "--audit", str(audit), "--send", "--missing")
    found = done(invoke(*options, *to))
    assert "5 accepted" in found.output
    items = [item for request in node.requests for item in request.items]
    assert sorted(items) == sorted(one.item for one in builder.messages[:5])
    found = done(invoke(*options, *to))
    assert "0 messages to send" in found.output
    assert "left out: 5 were acknowledged before" in found.output
    assert len([item for request in node.requests for item in request.items]) == 5
    found = done(invoke(*options, "--repairs", str(audit), command="reconcile"))
    assert "repaired 3" in found.output


def test_a_meta_server_tells_where_to_send(node: ScriptedServer, tmp_path: Path) -> None:
    _, options = lost(tmp_path)
    audit = tmp_path / "audit.jsonl"
    with FakeMeta(default=[group("a", node.address)]) as meta:
        found = invoke(*options, "--meta", meta.address, "--audit", str(audit), "--send")
    assert found.exit_code == 0, found.output
    answers = [one for one in read_audit(audit) if isinstance(one, Answer)]
    assert {(one.result, one.by) for one in answers} == {("accepted", node.address)}


def test_what_is_not_accepted_ends_with_1_and_why(tmp_path: Path) -> None:
    builder = sealed_builder(lost=3)
    _, options = lost(tmp_path, builder)
    name = f"id-{builder.messages[1].sequence}"
    node = ScriptedServer(lambda request: request.fail_items((name, 3, "not here")))
    try:
        audit = tmp_path / "audit.jsonl"
        found = invoke(*options, "--server", node.address, "--audit", str(audit), "--send")
    finally:
        node.close()
    assert found.exit_code == 1, found.output
    assert "2 accepted, 1 refused" in found.output
    assert "not here" in found.output
    answers = [one for one in read_audit(audit) if isinstance(one, Answer)]
    assert {one.message_id for one in answers if one.result == "refused"} == {name}


def test_what_cannot_be_read_is_named_and_ends_with_2(node: ScriptedServer, tmp_path: Path) -> None:
    builder = sealed_builder(lost=3)
    builder.messages[0].subject = b"caf\xe9"
    source, options = lost(tmp_path, builder)
    [seal] = source.manifest.sealed
    to = ("--server", node.address, "--audit", str(tmp_path / "a"), "--send")
    for more in ((), to):
        refused(invoke(*options, *more), 2, f"cannot be read: lost c.g n1 sequence 2, {seal.file}")
    assert len(node.requests) == 1, "the others are sent"


def test_what_is_owed_and_what_is_outside_the_range_is_not_sent(tmp_path: Path) -> None:
    builder = sealed_builder(lost=3)
    builder.sealed.clear()
    _, options = lost(tmp_path, builder)
    found = invoke(*options)
    assert found.exit_code == 1
    assert "left out: 3 are still owed by their node" in found.output
    assert "3 messages to send" in done(invoke(*options, "--final")).output
    found = done(invoke(*options, "--final", "--from", "2013-11-27T00:00Z"))
    assert "0 messages to send" in found.output


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--send",), "--audit"),
        (("--send", "--audit", "a"), "--server or --meta"),
        (("--send", "--audit", "a", "--server", "x:1", "--meta", "y:1"), "--server or --meta"),
        (("--send", "--audit", "a", "--server", "nowhere"), "--server"),
    ],
)
def test_options_that_do_not_go_together_are_errors(
    more: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, options = lost(tmp_path)
    refused(invoke(*options, *more), 3, said)
    refused(invoke(), 3, "--root or --manifest")


def test_what_is_no_audit_or_no_result_is_an_error(tmp_path: Path) -> None:
    _, options = lost(tmp_path)
    audit = tmp_path / "a"
    audit.write_bytes(b'{"at_ms":1,"who":"alice"}\n')
    refused(invoke(*options, "--audit", str(audit)), 3, "no audit of repairs")
    found = invoke(*options, "--repairs", str(audit), command="reconcile")
    assert found.exit_code == 3


def test_what_is_not_acknowledged_is_sent_again_and_nothing_else(
    node: ScriptedServer, tmp_path: Path
) -> None:
    builder = sealed_builder(lost=5)
    _, options = lost(tmp_path, builder)
    names = [f"id-{one.sequence}" for one in builder.messages[:5]]

    def some(request: Request) -> bytes:
        return request.fail_items(
            (names[1], 3, "no"), (names[2], 2, "known"), (names[3], 1, "busy")
        )

    to = ("--audit", str(tmp_path / "a"), "--send", "--timeout", "1s")
    first = ScriptedServer(some)
    try:
        found = invoke(*options, "--server", first.address, *to)
    finally:
        first.close()
    assert found.exit_code == 1
    assert "2 accepted, 1 refused, 1 known, 1 unanswered" in found.output
    done(invoke(*options, "--server", node.address, *to))
    sent = [item for request in node.requests for item in request.items]
    assert sent == [one.item for one in builder.messages[1:4]]


@pytest.mark.parametrize("answer", [SILENCE, DROP])
def test_it_stops_where_nobody_takes_anything(answer: bytes, tmp_path: Path) -> None:
    _, options = lost(tmp_path, sealed_builder(lost=30, count=30))
    node = ScriptedServer(lambda _: answer)
    to = ("--server", node.address, "--audit", str(tmp_path / "a"), "--send")
    try:
        found = invoke(*options, *to, "--rate", "10", "--timeout", "500ms")
    finally:
        node.close()
    assert found.exit_code == 1
    assert "10 unanswered" in found.output
    assert "stopped: nobody takes messages; run it again with the same --audit" in found.output
    assert all(one is not None and one.result == "unanswered" for one in read_audit(tmp_path / "a"))


@pytest.mark.process
@pytest.mark.long
def test_a_signal_ends_it_when_all_that_was_sent_is_answered(
    node: ScriptedServer, tmp_path: Path
) -> None:
    _, options = lost(tmp_path, sealed_builder(lost=40, count=40))
    audit = tmp_path / "audit.jsonl"
    to = ("--server", node.address, "--audit", str(audit), "--rate", "2", "--send")
    process = subprocess.Popen(
        [sys.executable, "-m", "delaywheel", "spark", "repair", "--engine", "local", *options, *to],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        deadline = time.monotonic() + 30
        while not node.requests:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 1, said
    assert "stopped: SIGTERM" in said
    sent = [item for request in node.requests for item in request.items]
    assert 0 < len(list(read_audit(audit))) == len(sent) < 40
