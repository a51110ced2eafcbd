"""Promise: a command cancels or moves one message, or all of a filter, and says what it did."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from click.testing import CliRunner, Result

from delay_client import ChangeState, Receipt
from delay_client.messages.cancel_tokens import cluster_hash
from delay_protocol.messages.changes import ChangeResult
from delaywheel.main import main
from tests.delaywheel.endings import done, refused
from tests.delaywheel.json_servers import answering
from tests.delaywheel.node.test_dead import group

DUE = datetime(2026, 12, 24, 18, tzinfo=UTC)
DUE_MS = int(DUE.timestamp() * 1000)
TOKEN = Receipt("m1", DUE_MS, "a:1", 1, subject="s", cluster=cluster_hash("c")).cancel_token
ONE = ("--subject", "s", "--id", "m1")
AT = ("--at", "2026-12-24T18:00:00Z")
UNKNOWN = ChangeResult(0, ChangeState.UNKNOWN)


class Node:
    """A delay server that says what a test says of one message, and has two slices of many."""

    def __init__(self, *results: ChangeResult, many: str = "moved") -> None:
        self.results = results or (ChangeResult(0, ChangeState.CANCELLED),)
        self.refusal = ""
        self.breaks_off = False
        """True if it has no answer to the second slice."""
        self.bodies: list[dict[str, Any]] = []
        self._many = many

    def answer(self, method: str, target: str, _headers: object, body: bytes) -> tuple[int, bytes]:
        path = urlsplit(target).path
        if method == "GET":
            return 200, b"{}"
        asked = json.loads(body)
        self.bodies.append(asked)
        if self.refusal:
            problem = {"code": "bad-value", "detail": self.refusal, "status": 400}
            return 400, json.dumps(problem).encode()
        if path == "/messages/change":
            results = [msgspec.structs.asdict(one) for one in self.results]
            return 200, msgspec.json.encode({"results": results, "facts_since_ms": DUE_MS})
        assert path == "/messages/change-all"
        if "after" in asked and self.breaks_off:
            return 503, json.dumps({"code": "away", "detail": "gone", "status": 503}).encode()
        after = "1.2.3.4" if "after" not in asked else None
        told = {
            "states": {self._many: 1000} if self._many else {},
            "rows_looked_at": 9,
            "next": after,
        }
        return 200, json.dumps(told).encode()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def at(node: Node, stack: ExitStack) -> tuple[str, str]:
    """Return the options that ask this delay server alone."""
    return "--server", stack.enter_context(answering(node.answer))


def of(stack: ExitStack, *nodes: Node, away: bool = False) -> tuple[str, ...]:
    """Return the options that ask the masters of d1, d2 and so on; `away`: and of d9, of none."""
    addresses = [stack.enter_context(answering(node.answer)) for node in nodes]
    groups = [group(f"d{n}", address) for n, address in enumerate(addresses, 1)]
    groups += [group("d9", "127.0.0.1:1")] if away else []

    def answer(_method: str, _target: str, *_: object) -> tuple[int, bytes]:
        return 200, json.dumps({"delay_groups": groups}).encode()

    return "--meta", stack.enter_context(answering(answer)), "--cluster", "c"


def test_a_message_is_cancelled_by_its_names_or_its_token(stack: ExitStack) -> None:
    node = Node(ChangeResult(0, ChangeState.CANCELLED, due_ms=DUE_MS))
    where = at(node, stack)
    result = done(run("cancel", *ONE, *AT, *where))
    assert result.stdout == "m1: cancelled, due 2026-12-24 18:00:00.000Z\n"
    done(run("cancel", *ONE, *where))
    done(run("cancel", "--token", TOKEN, *where))
    named: dict[str, object] = {"subject": "s", "id": "m1", "to_ms": None}
    dues = [one["items"] for one in node.bodies]
    assert dues == [[named | {"due_ms": due_ms}] for due_ms in (DUE_MS, None, DUE_MS)]


def test_a_message_is_moved_to_a_time(stack: ExitStack) -> None:
    node = Node(ChangeResult(0, ChangeState.MOVED))
    where = at(node, stack)
    done(run("move", *ONE, "--to", "2026-12-25T00:00:00Z", *where))
    assert [one["items"][0]["to_ms"] for one in node.bodies] == [DUE_MS + 21_600_000]
    refused(run("move", *ONE, "--by", "1h", *where), 2, "--dry-run and --after are for many")
    refused(run("move", *ONE, *where), 2, "give one of --to and --by")


@pytest.mark.parametrize(
    ("found", "code", "told"),
    [
        (
            ChangeResult(0, ChangeState.DELIVERED, to="mail", at_ms=DUE_MS),
            7,
            "m1: already delivered to mail at 2026-12-24 18:00:00.000Z",
        ),
        (
            ChangeResult(0, ChangeState.SENDING, to="mail", at_ms=DUE_MS, retry_after_ms=1500),
            7,
            "m1: being sent, by mail since 2026-12-24 18:00:00.000Z; ask again in 1.5 s",
        ),
        (
            UNKNOWN,
            7,
            "m1: unknown; what became of messages is known since 2026-12-24 18:00:00.000Z",
        ),
        (ChangeResult(0, ChangeState.MOVED), 7, "m1: moved"),
        (
            ChangeResult(0, ChangeState.UNKNOWN, reason="damaged \x1b"),
            6,
            "m1: in doubt (damaged \\x1b)",
        ),
    ],
)
def test_the_answer_is_a_sentence_and_an_exit_code(
    stack: ExitStack, found: ChangeResult, code: int, told: str
) -> None:
    result = run("cancel", *ONE, *at(Node(found), stack))
    assert (result.exit_code, result.stdout) == (code, f"{told}\n")


def test_of_several_names_each_is_told(stack: ExitStack) -> None:
    states = {"mail": ChangeState.DELIVERED, "sms": ChangeState.CANCELLED}
    where = at(Node(*(ChangeResult(0, state, name) for name, state in states.items())), stack)
    result = run("cancel", *ONE, *where)
    assert result.stdout == "m1 for mail: already delivered\nm1 for sms: cancelled\n"
    result = run("cancel", *ONE, "--json", *where)
    assert (result.exit_code, '"sms":{' in result.stdout) == (7, True)


def test_the_group_that_knows_a_message_says_what_became_of_it(stack: ExitStack) -> None:
    found = Node(ChangeResult(0, ChangeState.CANCELLED))
    assert done(run("cancel", *ONE, *of(stack, Node(UNKNOWN), found))).stdout == "m1: cancelled\n"
    result = run("cancel", *ONE, *of(stack, found, away=True))
    assert (result.exit_code, result.stdout) == (6, "m1: cancelled\n")


def test_a_group_without_an_answer_leaves_a_message_in_doubt(stack: ExitStack) -> None:
    result = run("cancel", *ONE, *of(stack, Node(UNKNOWN), away=True))
    assert result.exit_code == 6
    assert result.stdout.startswith("m1: in doubt (d9: no delay server answers at 127.0.0.1:1")
    assert "delay group d9" in result.stderr


def test_what_cannot_be_asked_ends_in_a_sentence(stack: ExitStack) -> None:
    refusing = Node()
    refusing.refusal = "'m1' is to be moved into the past: cancel it"
    for where in (at(refusing, stack), of(stack, refusing, Node())):
        result = refused(run("move", *ONE, "--to", "1970-01-02T00:00:00Z", *where), 2, "the past")
        assert result.stdout == ""
    node = Node()
    where = of(stack, node)
    other = Receipt("m1", DUE_MS, "a:1", 1, subject="s", cluster=7).cancel_token
    refused(run("cancel", "--token", other, *where), 7, "the message is of another cluster")
    refused(run("cancel", "--token", TOKEN[:-1], *where), 7, "no cancel token, or not all of one")
    refused(run("cancel", "--id", "m1", *where), 2, "--subject and --id, or by --token alone")
    refused(run("cancel", "--token", TOKEN, *AT, *where), 2, "by --token alone")
    refused(run("cancel", "--token", TOKEN, *ONE, *where), 2, "by --token alone")
    refused(run("cancel", *ONE, "--dry-run", *where), 2, "are for many")
    refused(run("cancel", *ONE, "--due-from", AT[1], *where), 2, "are for many")
    refused(run("cancel", "--subject", "s", *AT, *where), 2, "are for one message")
    refused(run("move", "--subject", "s", "--to", AT[1], *where), 2, "are for one message")
    assert node.bodies == []


def test_many_are_changed_at_each_master_slice_by_slice(stack: ExitStack) -> None:
    nodes = Node(), Node()
    where = of(stack, *nodes)
    words = ("--subject", "order.*", "--due-from", "2026-12-24T18:00:00Z")
    assert done(run("move", *words, *where, "--by", "1h")).stdout == "4,000 moved\n"
    expected = {
        "subject": "order.*",
        "due_from": DUE_MS,
        "by_ms": 3_600_000,
        "dry_run": False,
    }
    one = [expected, {**expected, "after": "1.2.3.4"}]
    assert [node.bodies for node in nodes] == [one, one]
    # A filter that cancels what was moved meanwhile has not done all.
    refused(run("cancel", *words, *where), 7, "")
    where = at(Node(many=""), stack)
    assert done(run("cancel", *words, *where)).stdout == "no such message\n"
    assert done(run("move", *words, *where, "--by", "-30d")).stdout == (
        "no such message, or it would come before now or beyond the horizon\n"
    )
    where = of(stack, *nodes)
    result = done(run("cancel", *words, *where, "--dry-run", "--json"))
    assert json.loads(result.stdout) == {"states": {"moved": 4000}, "unanswered": {}}


def test_one_delay_server_changes_many_alone(stack: ExitStack) -> None:
    node = Node(many="cancelled")
    assert done(run("cancel", "--name", "mail", *at(node, stack))).stdout == "2,000 cancelled\n"
    assert [one["name"] for one in node.bodies] == ["mail", "mail"]
    node.refusal = "give a subject, name, due_from or due_to"
    refused(run("cancel", *at(node, stack)), 2, "give a subject, name, due_from or due_to")


def test_what_broke_off_goes_on_behind_its_last_slice(stack: ExitStack) -> None:
    node = Node(many="moved")
    node.breaks_off = True
    words = ("move", "--subject", "s", "--by", "1h")
    refused(run(*words, *at(node, stack)), 7, "gone; go on at its master by --server and --after 1")
    node.breaks_off = False
    asked = len(node.bodies)
    assert done(run(*words, "--after", "1.2.3.4", *at(node, stack))).stdout == "1,000 moved\n"
    assert [one["after"] for one in node.bodies[asked:]] == ["1.2.3.4"]
    refused(run(*words, "--after", "1.2.3.4", *of(stack, node)), 2, "give --server, its master")
    refused(run("cancel", *ONE, "--after", "1", *at(node, stack)), 2, "are for many")


def test_a_group_without_an_answer_ends_the_command_in_its_failure(stack: ExitStack) -> None:
    result = run("cancel", "--subject", "s", *of(stack, Node(many="cancelled"), away=True))
    assert (result.exit_code, result.stdout) == (6, "2,000 cancelled\n")
    assert "delay group d9" in result.stderr
