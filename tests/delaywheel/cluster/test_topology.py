"""`delaywheel topology`: everything at a glance, whatever the nodes do."""

import io
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

import delaywheel.cluster.topology
from delaywheel.cluster.topology import render
from delaywheel.main import main
from delaywheel.shared.admin_client import TOKEN_VARIABLE
from tests.delaywheel.endings import done
from tests.delaywheel.json_servers import answering

STATUS = {
    "pending": 1234,
    "late": 5,
    "replay_lag": 7,
    "lateness_ms": {"p50": 1.0, "p99": 217_795_932_000.0, "max": 9000.0},
    "subjects": {"x": 1},
}


PROBLEM = b'{"code": "token", "detail": "it wants a token"}'


def node(node_id: str, http_address: str, **more: object) -> dict[str, object]:
    return {
        "node_id": node_id,
        "role": "master" if node_id == "n1" else "slave",
        "in_sync": node_id == "n1",
        "address": "10.0.0.1:20801",
        "http_address": http_address,
        "heard_seconds_ago": 1.25 if node_id == "n1" else None,
        "controls_version": 4 if node_id == "n1" else None,
        "controls_note": "it has controls version 4, not 5 yet" if node_id == "n1" else "",
        "clock_note": "",
        "fitness": "fit" if node_id == "n1" else "excluded",
        "fitness_note": "" if node_id == "n1" else "it has no copy",
        **more,
    }


def cluster(*nodes: dict[str, object]) -> dict[str, Any]:
    return {
        "version": "1",
        "now_ms": 1_700_000_090_000,
        "ready": True,
        "failing": [],
        "next_steps": [],
        "broker_groups": [
            {
                "name": "g1",
                "kind": "normal",
                "address": "10.0.0.9:20881",
                "state": "RW",
                "since_ms": 1_700_000_000_000,
                "heard_seconds_ago": 3.0,
                "weight": 100,
                "static": False,
                "read_only": True,
                "retired": False,
            }
        ],
        "delay_groups": [
            {
                "name": "d1",
                "epoch": 12,
                "phase": "active",
                "master": "n1",
                "controls_version": 5,
                "nodes": list(nodes),
            }
        ],
        "routes_by_group": {"g1": 7},
        "unserved": [
            {"why": "g9 is retired", "patterns": 1000, "examples": ["a.b", "c\x1b[2J"]},
            {"why": "it has no route", "patterns": 2, "examples": ["x", "y"]},
        ],
    }


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def meta(stack: ExitStack, *nodes: dict[str, object]) -> str:
    """Serve a meta server that knows these nodes; return its address."""
    body = json.dumps(cluster(*nodes)).encode()

    def answer(_: str, target: str, __: dict[str, str], ___: bytes) -> tuple[int, bytes]:
        return (200, body) if target == "/api/v1/topology" else (404, b"{}")

    return stack.enter_context(answering(answer))


def silent(stack: ExitStack) -> str:
    """Return an address that takes connections and says nothing."""
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    return f"127.0.0.1:{listener.getsockname()[1]}"


def shown(*arguments: str) -> str:
    return done(CliRunner().invoke(main, ["topology", *arguments])).output


def printed(found: dict[str, Any], *, width: int = 220, shows_all: bool = False) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(render(found, shows_all=shows_all))
    return out.getvalue()


def test_each_node_is_asked_for_its_lag_and_one_that_is_silent_holds_nobody_up(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delaywheel.cluster.topology, "NODE_TIMEOUT_S", 0.3)
    good = stack.enter_context(answering(lambda *_: (200, json.dumps(STATUS).encode())))
    no_server = stack.enter_context(answering(lambda *_: (200, b"<html>")))
    refuses = stack.enter_context(answering(lambda *_: (503, b"{}")))
    address = meta(
        stack,
        node("n1", good),
        *(node(f"s{number}", silent(stack)) for number in range(5)),
        node("closed", "127.0.0.1:1"),
        node("html", no_server),
        node("refuses", refuses),
        node("nowhere", "no address"),
        node("none", ""),
    )
    began = time.monotonic()
    found = json.loads(shown("--meta", address, "--json"))
    assert time.monotonic() - began < 3
    lags = {row["node_id"]: row["lag"] for row in found["delay_groups"][0]["nodes"]}
    assert lags["n1"] == {name: STATUS[name] for name in STATUS if name != "subjects"}
    assert "timed out" in lags["s3"]["error"]
    assert "no delay server answers" in lags["closed"]["error"]
    assert "is no delay server" in lags["html"]["error"]
    assert "failed (HTTP 503)" in lags["refuses"]["error"]
    assert "not an address" in lags["nowhere"]["error"]
    assert lags["none"] == {"error": "it has no HTTP address"}


@pytest.mark.parametrize(
    ("unrouted", "is_said"),
    [
        ({"examples": ["b.1: no receiver that is attached to r takes it"]}, True),
        ({}, False),
        ([1], False),
    ],
)
def test_what_no_receiver_takes_is_said_of_the_server_where_it_waits(
    stack: ExitStack, unrouted: object, *, is_said: bool
) -> None:
    status = json.dumps({**STATUS, "unrouted": unrouted}).encode()
    address = stack.enter_context(answering(lambda *_: (200, status)))
    text = shown("--meta", meta(stack, node("n1", address, controls_version=5)))
    assert ("b.1: no receiver" in text) is is_said


@pytest.mark.parametrize("line", ["{node} for-nodes", "* for-nodes"])
def test_nodes_are_shown_their_tokens_of_the_file_and_not_that_of_the_meta_server(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "for-the-meta-server")
    shown_to_node = []

    def answer(_: str, __: str, headers: dict[str, str], ___: bytes) -> tuple[int, bytes]:
        shown_to_node.append(headers.get("authorization"))
        return (200, json.dumps(STATUS).encode()) if shown_to_node[-1] else (401, PROBLEM)

    server = stack.enter_context(answering(answer))
    address, file = meta(stack, node("n1", server)), tmp_path / "mine"
    assert f"a line `{server} TOKEN` of --token-file" in shown("--meta", address)
    file.write_text("for-the-meta-server\n")
    assert "TOKEN" in shown("--meta", address, "--token-file", str(file))
    file.write_text(f"{address} for-the-meta-server\n{line.format(node=server)}\n")
    assert "1,234" in shown("--meta", address, "--token-file", str(file))
    assert shown_to_node == [None, None, "Bearer for-nodes"]


def test_far_too_many_dead_nodes_are_not_waited_for(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delaywheel.cluster.topology, "NODES_AT_ONCE", 1)
    monkeypatch.setattr(delaywheel.cluster.topology, "NODES_TIMEOUT_S", 0.3)
    address = meta(stack, *(node(f"s{number}", silent(stack)) for number in range(3)))
    began = time.monotonic()
    assert "no answer within 0.3 s" in shown("--meta", address)
    assert time.monotonic() - began < 2


def test_it_is_shown_for_people() -> None:
    found = cluster(
        node("n1", "x", lag=STATUS), node("n2", "y", lag={"error": "does not answer: \x1b[2J"})
    )
    found["failing"] = ["the store cannot be reached"]
    found["next_steps"] = [{"group": "d2", "step": "n9 is silent: start it"}]
    text = printed(found)
    assert text.startswith("the store cannot be reached")
    for words in (
        "what to do next",
        "n9 is silent: start it",
        "g1",
        "RW",
        "90 s",
        "3 s ago",
        "read-only",
        "12 active",
        "1,234",
        "2520 d 18 h 52 min",
        "silent",
        "it has controls version 4, not 5 yet",
        "it cannot become the master: it has no copy",
        "does not answer",
        "routes, or subjects without one, whose messages no broker group takes:",
        "g9 is retired",
        "a.b, ",
        "x, y",
    ):
        assert words in text
    assert "\x1b[2J" not in text


def large() -> dict[str, Any]:
    """Return a cluster with more, and longer, of everything than there is room for."""
    found = cluster(
        *(
            node(
                f"node-{number}",
                "x",
                address=f"[2001:db8:1234:5678::{number:x}]:20801",
                lag=STATUS | {"pending": 123_456_789, "late": 1_234_567},
            )
            for number in range(30)
        ),
        node("gone", "x", lag={"error": f"no answer{' and none' * 20}"}),
    )
    [group] = found["broker_groups"]
    found["broker_groups"] = [
        group | {"name": f"broker-group-{number}", "address": f"broker-{number}.example.org:20881"}
        for number in range(40)
    ]
    found["broker_groups"][39] |= {"state": "NRW", "address": FAR}
    step = (
        "it asks from 2001:db8:1234:5678::1; if it is yours, let it in: `delaywheel admin approve`"
    )
    found["next_steps"] = [{"group": f"waiting-{number}", "step": step} for number in range(25)]
    return found


FAR = f"broker-39.{'quite-' * 12}far-away.example.org:20881"


def test_it_fits_a_terminal_of_100_columns_and_no_address_is_cut() -> None:
    found = large()
    for shows_all in (False, True):
        text = printed(found, width=100, shows_all=shows_all)
        lines = text.splitlines()
        assert max(map(len, lines)) <= 100
        assert "…" not in text
        [first] = [place for place, line in enumerate(lines) if "broker-group-39" in line]
        # The first group, as it is away; its address goes on below in the same column.
        column = lines[first].index("broker-39.")
        end = lines[first].index("NRW")
        pieces = [line[column:end].strip() for line in lines[first : first + 6]]
        assert "".join(pieces).startswith(FAR)
        short = printed(cluster(node("n1", "x", lag=STATUS)), width=100, shows_all=shows_all)
        assert "10.0.0.1:20801" in short
        assert "10.0.0.9:20881" in short


def test_of_long_lists_what_is_away_is_shown_first_and_the_rest_is_counted() -> None:
    found = large()
    text, everything = printed(found, width=160), printed(found, width=160, shows_all=True)
    assert text.count("broker-group-") == 20
    assert everything.count("broker-group-") == 40
    assert everything.count(" more") == 0
    for words in ("and 20 more", "and 5 more", "and 11 more"):
        assert words in text
    for shown_text in (text, everything):
        assert shown_text.index("broker-group-39") < shown_text.index("broker-group-0")
        assert shown_text.index("gone") < shown_text.index("node-0")
    for number in range(30):
        assert f"[2001:db8:1234:5678::{number:x}]:20801" in everything


def test_nothing_there_yet_is_said() -> None:
    found = cluster()
    found["unserved"] = []
    found["broker_groups"] = found["delay_groups"] = []
    text = printed(found)
    assert "no broker groups" in text
    assert "no delay servers" in text
    assert "no broker group takes" not in text
