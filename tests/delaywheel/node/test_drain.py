"""`delaywheel drain --group` of a whole cluster: paused at the meta server, at rest everywhere."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from click.testing import CliRunner, Result

import delaywheel.cluster.rules
import delaywheel.cluster.topology
import delaywheel.node.drain
from delaywheel.main import main
from delaywheel.shared.failures import ExitCode
from tests.delaywheel.endings import done, refused
from tests.delaywheel.json_servers import answering
from tests.delaywheel.rules_server import RulesServer


class World:
    """A meta server with a cluster of nodes, and one of somebody else."""

    def __init__(self, stack: ExitStack) -> None:
        self.in_flight: dict[str, list[int]] = {}
        """What each node says, look by look; the last one again and again."""
        self.behind: dict[str, str] = {}
        """Nodes that do not go by the rules, and why."""
        self.waits: set[str] = set()
        """Nodes that deliver nothing."""
        self.silent: set[str] = set()
        self.rules = RulesServer("c1", self._nodes)
        self.rules.known = {"g1"}
        self.http: dict[str, str] = {}
        self.meta = stack.enter_context(answering(self._answer))
        self._stack = stack

    def node(self, name: str, *in_flight: int) -> None:
        """Add a node."""
        self.in_flight[name] = list(in_flight)

        def answer(method: str, target: str, *_: object) -> tuple[int, bytes]:
            assert (method, target) == ("GET", "/status")
            # Nothing is worth asking before the pause holds.
            assert self.rules.changes
            said = self.in_flight[name]
            count = said.pop(0) if len(said) > 1 else said[0]
            brokers = {"g1": {"in_flight": count}, "g2": {"in_flight": 99}}
            return 200, json.dumps({"failing": [], "brokers": brokers}).encode()

        self.http[name] = self._stack.enter_context(answering(answer))

    def _answer(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, bytes]:
        if target == "/api/v1/topology":
            groups = [
                {
                    "cluster": "c1",
                    "nodes": [
                        {
                            "node_id": name,
                            "http_address": address,
                            "in_sync": name not in self.waits,
                        }
                        for name, address in self.http.items()
                    ],
                },
                {"cluster": "c2", "nodes": [{"node_id": "other"}]},
            ]
            return 200, json.dumps({"delay_groups": groups}).encode()
        return self.rules.answer(method, target, headers, body)

    def _nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "group": "d1",
                "node_id": name,
                "controls_note": self.behind.get(name, ""),
                "in_sync": name not in self.waits,
                "heard_seconds_ago": None if name in self.silent else 0.5,
            }
            for name in self.http
        ]

    def drain(self, *words: str) -> Result:
        return self.run("drain", *words)

    def run(self, command: str, *words: str) -> Result:
        at = ("--meta", self.meta, "--cluster", "c1")
        return CliRunner().invoke(main, [command, *at, *words])


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr("delaywheel.node.drain._LOOK_S", 0.01)
    monkeypatch.setattr(delaywheel.cluster.rules, "_NODES_S", 0.1)
    with ExitStack() as stack:
        yield World(stack)


def test_a_group_is_at_rest_when_every_node_says_that_nothing_is_in_flight_to_it(
    world: World,
) -> None:
    world.node("n1", 5, 0)
    world.node("n2", 7, 3, 1, 0)
    result = world.drain("--group", "g1")
    assert result.output == "group g1 is paused and nothing is in flight to it from 2 nodes\n"
    assert result.exit_code == 0
    assert world.rules.changes == [("group g1", {"paused": True})]
    assert world.in_flight == {"n1": [0], "n2": [0]}


def test_what_is_still_in_flight_when_the_time_is_up_is_counted(world: World) -> None:
    world.node("n1", 2)
    world.node("n2", 0)
    world.node("n3", 40)
    result = world.drain("--group", "g1", "--seconds", "1")
    assert result.output == "Error: not at rest: 42 messages are in flight to g1\n"
    assert result.exit_code == ExitCode.REFUSED
    found = world.drain("--group", "g1", "--seconds", "0", "--json")
    told = json.loads(found.stdout)
    assert (told["done"], told["in_flight"], told["nodes"]) == (False, 42, 3)
    assert found.exit_code == ExitCode.REFUSED


def test_a_group_is_not_at_rest_while_a_node_does_not_say_what_is_in_flight(world: World) -> None:
    world.node("n1", 0)
    world.http["n2"] = ""
    world.http["n3"] = "127.0.0.1:1"
    result = world.drain("--group", "g1", "--seconds", "0")
    assert result.exit_code == ExitCode.REFUSED
    assert "not known of n2: it has no HTTP address; not known of n3: no" in result.output


@pytest.mark.parametrize("status", [{}, {"failing": [], "brokers": {"g1": {}}}, {"failing": 0}])
def test_what_is_no_status_of_a_node_is_not_taken_for_rest(
    world: World, status: dict[str, object]
) -> None:
    with answering(lambda *_: (200, json.dumps(status).encode())) as address:
        world.http["n1"] = address
        result = world.drain("--group", "g1", "--seconds", "0")
    assert result.exit_code == ExitCode.REFUSED
    assert "is no delay server that has a status" in result.output


def test_a_node_that_has_no_brokers_delivers_nothing(world: World) -> None:
    with answering(lambda *_: (200, b'{"failing": ["it is a slave"]}')) as address:
        world.http["n1"] = address
        assert world.drain("--group", "g1", "--seconds", "0").exit_code == 0


def test_a_group_is_not_at_rest_while_a_node_does_not_go_by_its_pause(world: World) -> None:
    world.node("n1", 0)
    world.node("n2", 0)
    world.behind["n2"] = "it keeps its own"
    result = world.drain("--group", "g1")
    assert result.exit_code == ExitCode.REFUSED
    assert "stored, but not applied everywhere yet: n2 of d1: it keeps its own" in result.output


def test_a_group_is_at_rest_whatever_becomes_of_a_node_that_delivers_nothing(
    world: World,
) -> None:
    world.node("n1", 1, 0)
    world.http["n2"] = "127.0.0.1:1"
    world.waits, world.silent = {"n2"}, {"n2"}
    world.behind["n2"] = "it has controls version 4, not 5 yet"
    result = world.drain("--group", "g1")
    assert result.output == "group g1 is paused and nothing is in flight to it from 1 node\n"
    assert result.exit_code == 0


def test_a_rule_holds_when_all_nodes_go_by_it_that_deliver_and_the_others_are_named(
    world: World,
) -> None:
    for name in ("n1", "n2", "n3", "n4"):
        world.node(name, 0)
    world.waits, world.silent = {"n2", "n3", "n4"}, {"n3"}
    world.behind = {"n2": "it keeps its own"}
    found = done(world.run("weight", "--group", "g1", "--none"))
    assert found.output == (
        "group g1: open\nversion 1: 2 of 2 nodes apply it\n"
        "it delivers nothing and need not apply it yet: n2 of d1: it keeps its own\n"
        "it delivers nothing and need not apply it yet: "
        "n3 of d1: it is silent, and applies what it got last\n"
    )
    world.waits = {"n3", "n4"}
    found = world.run("weight", "--group", "g1", "--none")
    assert found.exit_code == ExitCode.REFUSED
    assert "version 2: 2 of 3 nodes apply it\n" in found.output
    assert "not applied everywhere yet: n2 of d1: it keeps its own\n" in found.output


def test_a_node_is_not_drained_at_a_meta_server(world: World) -> None:
    world.node("n1", 0)
    refused(world.drain(), ExitCode.USAGE, "a node is stopped at the node itself: give --server")
    assert world.rules.changes == []


def test_a_node_is_told_to_stop_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delaywheel.node.drain, "TIMEOUT_S", 0.3)
    asked: list[str] = []

    def answer(method: str, *_: object) -> tuple[int, bytes]:
        asked.append(method)
        return (200, b'{"stops": true, "in_flight": 0}')

    with answering(answer) as server:
        result = CliRunner().invoke(main, ["drain", "--server", server, "--seconds", "0"])
    assert result.exit_code == ExitCode.REFUSED
    assert "the node was told to stop, and still answers after 0.3 s" in result.stderr
    assert (asked[0], set(asked[1:])) == ("POST", {"GET"})


def test_a_group_that_nobody_knows_is_not_said_to_be_at_rest(world: World) -> None:
    world.node("n1", 0)
    refused(world.drain("--group", "gl"), ExitCode.REFUSED, "broker group gl is not known")
    found = world.drain("--group", "gl", "--json")
    assert found.exit_code == ExitCode.REFUSED
    told = json.loads(found.stdout)
    assert (told["is_known"], told["done"], told["in_flight"]) == (False, False, 0)


def test_a_group_that_only_nodes_know_is_known(world: World) -> None:
    world.node("n1", 0)
    world.rules.known = set()
    assert world.drain("--group", "g1").exit_code == 0
