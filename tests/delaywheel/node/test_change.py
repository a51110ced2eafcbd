"""Promise: a command cancels or moves one message, or all of a filter, and says what it did."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, Self
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner, Result

import delay_client
from delay_client import Changed, ChangeState, InvalidToken, MessageName, NoRoute, Receipt
from delay_client.messages.changed import Named, When
from delaywheel.main import main
from tests.delaywheel.endings import done, refused
from tests.delaywheel.json_servers import answering
from tests.delaywheel.node.test_dead import group

DUE = datetime(2026, 12, 24, 18, tzinfo=UTC)
DUE_MS = int(DUE.timestamp() * 1000)
TOKEN = Receipt("m1", DUE_MS, "a:1", 1, subject="s").cancel_token
ONE = ("--subject", "s", "--id", "m1")
AT = ("--at", "2026-12-24T18:00:00Z")


class RecordingClient:
    """Stands in for the client: keeps what it was asked, and answers `changed`."""

    def __init__(self) -> None:
        self.asked: list[tuple[Named, When | None, float | None]] = []
        self.addresses: list[object] = []
        self.fields: dict[str, Any] = {"state": ChangeState.CANCELLED}
        self.error: Exception | None = None

    def __call__(
        self, servers: Sequence[str] | None = None, *, meta: Sequence[str] | None = None
    ) -> Self:
        self.addresses = [servers, meta]
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def cancel(self, named: Named, *, timeout: float | None) -> Changed:  # noqa: ASYNC109
        return await self.move(named, to=None, timeout=timeout)

    async def move(
        self,
        named: Named,
        *,
        to: When | None,
        timeout: float | None,  # noqa: ASYNC109 (the client's own signature)
    ) -> Changed:
        self.asked.append((named, to, timeout))
        if self.error is not None:
            raise self.error
        return Changed(subject="s", message_id="m1", **self.fields)


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch) -> RecordingClient:
    recording = RecordingClient()
    monkeypatch.setattr(delay_client, "Client", recording)
    return recording


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_a_message_is_cancelled_by_its_names_or_its_token(client: RecordingClient) -> None:
    client.fields["due_ms"] = DUE_MS
    result = done(run("cancel", *ONE, *AT, "--meta", "m:8080", "--timeout", "3s"))
    assert result.stdout == "m1: cancelled, due 2026-12-24 18:00:00.000Z\n"
    assert client.addresses == [None, ("m:8080",)]
    done(run("cancel", *ONE, "--server", "a:1", "--server", "b:1"))
    assert client.addresses == [("a:1", "b:1"), None]
    done(run("cancel", "--token", TOKEN))
    at = DUE.astimezone()
    names = [MessageName("s", "m1", at), MessageName("s", "m1"), TOKEN]
    assert client.asked == [(names[0], None, 3.0), (names[1], None, None), (names[2], None, None)]


def test_a_message_is_moved_to_a_time(client: RecordingClient) -> None:
    client.fields["state"] = ChangeState.MOVED
    done(run("move", *ONE, "--to", "2026-12-25T00:00:00Z"))
    assert [to for _, to, _ in client.asked] == [DUE + timedelta(hours=6)]
    refused(run("move", *ONE, *AT, "--by", "1h"), 2, "--by is for many messages: give --to")
    refused(run("move", *ONE), 2, "give one of --to and --by")


@pytest.mark.parametrize(
    ("fields", "code", "told"),
    [
        (
            {"state": ChangeState.DELIVERED, "to": "mail", "at_ms": DUE_MS},
            7,
            "m1: already delivered to mail at 2026-12-24 18:00:00.000Z",
        ),
        (
            {"state": ChangeState.SENDING, "to": "mail", "at_ms": DUE_MS, "retry_after_s": 1.5},
            7,
            "m1: being sent, by mail since 2026-12-24 18:00:00.000Z; ask again in 1.5 s",
        ),
        (
            {"state": ChangeState.UNKNOWN, "facts_since_ms": DUE_MS},
            7,
            "m1: unknown; what became of messages is known since 2026-12-24 18:00:00.000Z",
        ),
        ({"state": ChangeState.MOVED}, 7, "m1: moved"),
        ({"state": ChangeState.IN_DOUBT, "reason": "g1: \x1b"}, 6, "m1: in doubt (g1: \\x1b)"),
    ],
)
def test_the_answer_is_a_sentence_and_an_exit_code(
    client: RecordingClient, fields: dict[str, Any], code: int, told: str
) -> None:
    client.fields = fields
    result = run("cancel", *ONE)
    assert (result.exit_code, result.stdout) == (code, f"{told}\n")


def test_of_several_names_each_is_told(client: RecordingClient) -> None:
    names = {
        name: Changed(subject="s", message_id="m1", state=state)
        for name, state in (("mail", ChangeState.DELIVERED), ("sms", ChangeState.CANCELLED))
    }
    client.fields = {"state": ChangeState.DELIVERED, "by_name": names}
    result = run("cancel", *ONE)
    assert result.stdout == "m1 for mail: already delivered\nm1 for sms: cancelled\n"
    result = run("cancel", *ONE, "--json")
    assert (result.exit_code, '"sms":{' in result.stdout) == (7, True)


def test_what_cannot_be_asked_ends_in_a_sentence(client: RecordingClient) -> None:
    client.error = NoRoute("no meta server")
    refused(run("cancel", *ONE), 6, "no meta server")
    client.error = InvalidToken("another version")
    refused(run("cancel", *ONE), 7, "another version")
    refused(run("cancel", "--id", "m1"), 2, "--subject and --id, or by --token alone")
    refused(run("cancel", "--token", TOKEN, *AT), 2, "by --token alone")
    refused(run("cancel", *ONE, "--dry-run"), 2, "for many messages")
    refused(run("cancel", *ONE, "--meta", "m:1", "--server", "a:1"), 2, "either --meta or --server")
    refused(run("cancel", "--subject", "s"), 2, "needs one --meta")
    refused(run("cancel", "--meta", "m:1"), 2, "give a filter")


class Masters:
    """A meta server and the masters of d1 and d2, each with two slices of messages."""

    def __init__(self, stack: ExitStack, done: str) -> None:
        self._done = done
        self.bodies: list[dict[str, Any]] = []
        masters = [stack.enter_context(answering(self._change)) for _ in range(2)]
        self._groups = [group(f"d{n}", address) for n, address in enumerate(masters, 1)]
        self.meta = stack.enter_context(answering(self._answer))

    def _answer(self, _method: str, _target: str, *_: object) -> tuple[int, bytes]:
        return 200, json.dumps({"delay_groups": self._groups}).encode()

    def _change(self, method: str, target: str, _headers: object, body: bytes) -> tuple[int, bytes]:
        path = urlsplit(target).path
        if method == "GET":
            return 200, b"{}"
        assert (method, path) == ("POST", "/messages/change-all")
        asked = json.loads(body)
        self.bodies.append(asked)
        after = "1.2.3.4" if "after" not in asked else None
        told = {"states": {self._done: 1000}, "rows_looked_at": 9, "next": after}
        return 200, json.dumps(told).encode()


def test_many_are_changed_at_each_master_slice_by_slice() -> None:
    with ExitStack() as stack:
        masters = Masters(stack, "moved")
        words = ("--subject", "order.*", "--due-from", "2026-12-24T18:00:00Z")
        where = ("--meta", masters.meta, "--cluster", "c")
        result = done(run("move", *words, *where, "--by", "1h"))
        assert result.stdout == "4,000 moved\n"
        expected = {
            "subject": "order.*",
            "due_from": DUE_MS,
            "by_ms": 3_600_000,
            "dry_run": False,
        }
        one = [expected, {**expected, "after": "1.2.3.4"}]
        assert masters.bodies == [*one, *one]
        # A filter that cancels what was moved meanwhile has not done all.
        refused(run("cancel", *words, *where), 7, "")
        result = done(run("cancel", *words, *where, "--dry-run", "--json"))
        assert json.loads(result.stdout) == {"states": {"moved": 4000}, "unanswered": {}}


def test_a_group_without_an_answer_ends_the_command_in_its_failure() -> None:
    with ExitStack() as stack:
        masters = Masters(stack, "cancelled")
        masters._groups.append(group("d3", "127.0.0.1:1"))
        result = run("cancel", "--subject", "s", "--meta", masters.meta, "--cluster", "c")
        assert (result.exit_code, result.stdout) == (6, "4,000 cancelled\n")
        assert "delay group d3" in result.stderr
