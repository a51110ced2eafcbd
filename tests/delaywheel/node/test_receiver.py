"""`delaywheel receiver`: what a name has at each delay group, and its end."""

import json
from contextlib import ExitStack
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from click.testing import CliRunner

from delaywheel.main import main
from tests.delaywheel.endings import refused
from tests.delaywheel.json_servers import answering
from tests.delaywheel.node.test_dead import group

Answer = tuple[int, bytes]

ROW = {
    "name": "billing",
    "patterns": ["orders.*", "paid"],
    "tries": 16,
    "waits": "10s 1m",
    "first_level": None,
    "unsettled_tries": 5,
    "entered": True,
    "since_ms": 1,
    "connected": 3,
    "version": 4,
}
AT_MASTER = {
    "address": "2 attached",
    "waiting": 5,
    "in_flight": 7,
    "delivered": 100,
    "later": 3,
    "refused": 1,
    "why_none": "",
}


def node(brokers: dict[str, Any], dead: int) -> Any:  # noqa: ANN401 (a server's answers)
    """Return what a delay server answers."""

    def answer(_method: str, target: str, _headers: dict[str, str], _body: bytes) -> Answer:
        if urlsplit(target).path == "/status":
            return 200, json.dumps({"brokers": brokers}).encode()
        assert "group=billing" in target
        return 200, json.dumps({"items": [], "next": None, "matched": dead}).encode()

    return answer


def meta(*addresses: str) -> Any:  # noqa: ANN401 (as above)
    """Return what a meta server answers, with masters at these addresses."""
    groups = [group(f"d{number}", address) for number, address in enumerate(addresses, 1)]

    def answer(_method: str, target: str, _headers: dict[str, str], _body: bytes) -> Answer:
        path = urlsplit(target).path
        if path == "/api/v1/receiver/billing":
            return 200, json.dumps(ROW).encode()
        assert path == "/api/v1/topology", path
        return 200, json.dumps({"delay_groups": groups}).encode()

    return answer


def test_a_name_is_shown_with_what_it_has_at_each_delay_group() -> None:
    with ExitStack() as stack:
        nodes = (node({"billing": AT_MASTER, "g1": {}}, 2), node({}, 0))
        addresses = [stack.enter_context(answering(one)) for one in nodes]
        where = stack.enter_context(answering(meta(*addresses, "127.0.0.1:1")))
        words = ["receiver", "show", "billing", "--meta", where, "--cluster", "c"]
        result = CliRunner().invoke(main, [*words, "--json"])
        shown = json.loads(result.stdout)
        assert result.exit_code == 6
        assert shown["patterns"] == ["orders.*", "paid"]
        assert shown["delay_groups"] == [
            {
                "delay_group": "d1",
                "attached": 2,
                "waiting": 5,
                "with_receivers": 7,
                "done": 100,
                "later": 3,
                "refused": 1,
                "dead": 2,
                "trouble": "",
            },
            dict.fromkeys(("waiting", "with_receivers", "done", "later", "refused", "dead"), 0)
            | {"delay_group": "d2", "attached": 0, "trouble": "nothing leads to it here"},
        ]
        assert list(shown["unanswered"]) == ["d3"]
        text = CliRunner().invoke(main, words).stdout
    assert "orders.*, paid" in text
    assert "10s 1m" in text
    assert "nothing leads" in text


class RemovingMeta:
    """A meta server with names of receivers; it notes what is removed."""

    def __init__(self, addresses: list[str], *others: tuple[str, list[str]]) -> None:
        self.groups = [group(f"d{number}", one) for number, one in enumerate(addresses, 1)]
        self.rows = [ROW, *({"name": name, "patterns": patterns} for name, patterns in others)]
        self.removed: list[str] = []
        self.connected = 0

    def answer(self, method: str, target: str, _headers: dict[str, str], _body: bytes) -> Answer:
        path = urlsplit(target).path.removeprefix("/api/v1/")
        if method == "DELETE":
            self.removed.append(path)
            return 200, b"{}"
        found: dict[str, object] = {
            "receiver/billing": ROW | {"connected": self.connected},
            "receiver": {"items": self.rows, "next": None},
            "topology": {"delay_groups": self.groups},
        }
        return 200, json.dumps(found[path]).encode()


def counting(counts: dict[tuple[str, str], dict[str, int]]) -> Any:  # noqa: ANN401 (as above)
    """Return what a delay server answers to counts, by name and subject."""

    def answer(_method: str, target: str, _headers: dict[str, str], _body: bytes) -> Answer:
        parts = urlsplit(target)
        if parts.path == "/status":
            return 200, b"{}"
        assert parts.path == "/count"
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        rows = counts.get((query.get("name", "-"), query.get("subject", "*")), {})
        found = {name: {"before": 1, "counts": [n], "later": 1} for name, n in rows.items()}
        return 200, json.dumps({"rows": found}).encode()

    return answer


@pytest.mark.parametrize(
    ("counts", "waiting"),
    [
        ({}, 0),
        ({("billing", "*"): {"": 3}}, 3),
        # Of subjects that it alone receives; those that mail has too get there all the same.
        ({("", "orders.*"): {"": 9, "orders.eu": 4, "orders.mail": 5}}, 4),
        # A subject that is named and has none.
        ({("", "orders.*"): {"": 9, "orders.eu": 0}}, 0),
        ({("", "orders.*"): {"": 9, "%": 9}, ("", "paid"): {"": 1, "paid": 1}}, 10),
    ],
)
def test_a_name_for_which_messages_wait_stays(
    counts: dict[tuple[str, str], dict[str, int]], waiting: int
) -> None:
    with ExitStack() as stack:
        addresses = [stack.enter_context(answering(counting(one))) for one in (counts, {})]
        meta_server = RemovingMeta(addresses, ("mail", ["orders.mail"]), ("none", []))
        where = stack.enter_context(answering(meta_server.answer))
        words = ["receiver", "remove", "billing", "--meta", where, "--cluster", "c"]
        result = CliRunner().invoke(main, words)
    if waiting:
        refused(result, 7, f"billing stays: {waiting} messages wait for it")
    assert meta_server.removed == ([] if waiting else ["receiver/billing"])
    assert result.exit_code == (7 if waiting else 0)


def test_a_name_stays_while_a_group_does_not_say_if_messages_wait_for_it() -> None:
    with ExitStack() as stack:
        addresses = [stack.enter_context(answering(counting({}))), "127.0.0.1:1"]
        meta_server = RemovingMeta(addresses)
        where = stack.enter_context(answering(meta_server.answer))
        words = ["receiver", "remove", "billing", "--meta", where, "--cluster", "c"]
        result = CliRunner().invoke(main, words)
    assert result.exit_code == 7
    assert "1 delay groups did not say if messages wait" in result.stderr
    assert meta_server.removed == []


def test_what_waits_is_dropped_before_a_name_ends() -> None:
    counts = {
        ("billing", "*"): {"": 3},
        ("", "orders.*"): {"": 9, "orders.eu": 4, "orders.mail": 5},
    }
    dropped: list[Any] = []

    def node(method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        if method == "GET":
            counted: Answer = counting(counts)(method, target, headers, body)
            return counted
        asked = json.loads(body)
        dropped.append(asked)
        is_last = asked.get("after") is not None
        if is_last:
            counts.pop(("billing", "*") if asked["name"] else ("", "orders.*"))
        states = {"states": {"cancelled": 2}, "rows_looked_at": 9}
        return 200, json.dumps(states | {"next": None if is_last else "0.0.7.9"}).encode()

    with ExitStack() as stack:
        meta_server = RemovingMeta([stack.enter_context(answering(node))], ("m", ["orders.mail"]))
        where = stack.enter_context(answering(meta_server.answer))
        words = ["receiver", "remove", "billing", "--drop", "--meta", where, "--cluster", "c"]
        result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert result.stdout == "8 messages were dropped\nbilling is removed\n"
    assert [(one["name"], one.get("subject"), one["drop"]) for one in dropped] == [
        *[("billing", None, True)] * 2,
        *[("", "orders.eu", True)] * 2,
    ]
    assert meta_server.removed == ["receiver/billing"]


def test_nothing_is_dropped_while_a_receiver_is_connected_or_a_group_is_away() -> None:
    def node(method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        assert method == "GET", "something is dropped"
        counted: Answer = counting({("billing", "*"): {"": 3}})(method, target, headers, body)
        return counted

    with ExitStack() as stack:
        meta_server = RemovingMeta([stack.enter_context(answering(node)), "127.0.0.1:1"])
        where = stack.enter_context(answering(meta_server.answer))
        words = ["receiver", "remove", "billing", "--drop", "--meta", where, "--cluster", "c"]
        refused(CliRunner().invoke(main, words), 7, "1 delay groups did not say")
        meta_server.connected = 1
        refused(CliRunner().invoke(main, words), 7, "a receiver of billing is connected")
    assert meta_server.removed == []
