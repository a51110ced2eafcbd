"""`delaywheel admin delay-group handover | elect | set`: what is asked, waited for and said."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

import delaywheel.admin.commands
from delaywheel.main import main
from delaywheel.shared.failures import ExitCode
from tests.delaywheel.json_servers import answering

ACTIVE = {"phase": "active", "master": "n1", "epoch": 4, "election": ""}
ELECTING = ACTIVE | {"phase": "electing", "master": None, "epoch": 5, "election": "waits for n2"}


class Meta:
    """A meta server whose delay group d1 is as told, look by look, the last one again and again."""

    def __init__(self, *looks: dict[str, Any], answer: dict[str, Any] | None = None) -> None:
        self.looks = list(looks)
        self.answer = answer or looks[0]
        self.asked: list[Any] = []

    def run(self, *words: str) -> Result:
        """Run a command of `delaywheel admin delay-group`."""

        def answer(method: str, target: str, _: dict[str, str], body: bytes) -> tuple[int, bytes]:
            if method == "POST":
                target = target.removeprefix("/api/v1/delay-groups/")
                self.asked.append((target, json.loads(body)) if body else target)
                return 200, json.dumps(self.answer).encode()
            assert target == "/api/v1/delay-groups/d1"
            shown = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
            return 200, json.dumps(shown).encode()

        with answering(answer) as address:
            return CliRunner().invoke(main, ["admin", "--meta", address, "delay-group", *words])


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delaywheel.admin.commands, "_LOOK_S", 0.01)
    monkeypatch.setattr(delaywheel.admin.commands, "_HANDOVER_S", 0.3)


def test_an_election_is_waited_for() -> None:
    looks = (ACTIVE, ELECTING, ACTIVE | {"epoch": 5, "master": "n2"})
    meta = Meta(*looks, answer=ELECTING | {"election": ""})
    result = meta.run("elect", "d1", "--wait")
    assert result.exit_code == 0, result.output
    assert meta.asked == ["d1/elect"]
    assert "waits for n2" in result.stderr
    assert "n2" in result.stdout


def test_an_election_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delaywheel.admin.commands, "_ELECTED_S_MAX", 0.2)
    result = Meta(ELECTING).run("elect", "d1", "--wait")
    assert result.exit_code == ExitCode.REFUSED
    assert "no master after 0 s: waits for n2. The election goes on" in result.stderr


def test_an_election_without_waiting_asks_once() -> None:
    meta = Meta(ELECTING)
    assert meta.run("elect", "d1").exit_code == 0
    assert meta.asked == ["d1/elect"]


def test_a_handover_is_over_with_the_next_epoch_or_after_a_while() -> None:
    meta = Meta(ACTIVE, ACTIVE | {"epoch": 5, "master": "n3"}, answer=ACTIVE)
    result = meta.run("handover", "d1", "--to", "n3")
    assert (result.exit_code, meta.asked) == (0, [("d1/handover", {"to": "n3"})])
    assert "n3" in result.stdout
    back = Meta(ACTIVE | {"epoch": 5}, answer=ACTIVE).run("handover", "d1")
    assert back.exit_code == ExitCode.REFUSED
    assert "n1 could not hand over, and goes on" in back.stderr
    silent = Meta(ACTIVE).run("handover", "d1")
    assert silent.exit_code == ExitCode.REFUSED
    assert "n1 has not handed d1 over within 0.3 s" in silent.stderr


def test_how_many_disks_have_to_be_in_sync_is_set() -> None:
    meta = Meta(ACTIVE)
    assert meta.run("set", "d1", "--min-isr", "2").exit_code == 0
    assert meta.asked == [("d1/min-isr", {"min_isr": 2})]


class Routes:
    """A meta server with routes of subjects, which answers a page of two at a time."""

    def __init__(self, **chosen: bool) -> None:
        self.own = [{"name": name, "chosen": is_chosen} for name, is_chosen in chosen.items()]
        self.asked: list[tuple[str, str]] = []
        self.looked = False
        """Whether it was asked for the group."""

    def set(self, *words: str) -> Result:
        """Run `delaywheel admin route set`."""
        return self.run("set", *words)

    def run(self, *words: str) -> Result:
        """Run `delaywheel admin route`."""

        def answer(method: str, target: str, _: dict[str, str], __: bytes) -> tuple[int, bytes]:
            path, query = f"{target}?".removeprefix("/api/v1/").split("?")[:2]
            found: dict[str, Any] = {"name": "orders.", "kept": len(self.own)}
            if path == "broker-groups/mail":
                self.looked = True
            elif (method, path) == ("GET", "prefix-routes/orders."):
                pass
            elif method == "GET":
                assert "prefix=orders." in query
                names = [one["name"] for one in self.own]
                begin = names.index(query.partition("after=")[2]) + 1 if "after=" in query else 0
                page, rest = self.own[begin : begin + 2], self.own[begin + 2 :]
                found = {"items": page, "next": page[-1]["name"] if rest else None}
            else:
                self.asked.append((method, path))
                gone = path.removeprefix("routes/") if method == "DELETE" else ""
                self.own = [one for one in self.own if one["name"] != gone]
            return 200, json.dumps(found).encode()

        with answering(answer) as address:
            words = ("--meta", address, "route", *words)
            return CliRunner().invoke(main, ["admin", *words])


def test_a_pattern_sets_a_prefix_and_takes_what_the_meta_server_chose_with_it() -> None:
    meta = Routes(**{"orders.a": True, "orders.b": False, "orders.c": True})
    result = meta.set("orders.*", "--group", "mail", "--also-existing")
    assert result.exit_code == 0, result.output
    assert meta.asked == [
        ("PUT", "prefix-routes/orders."),
        ("DELETE", "routes/orders.a"),
        ("DELETE", "routes/orders.c"),
    ]
    assert "orders.a" in result.stdout
    # What was moved is not kept.
    assert ["kept", "1"] in [line.split() for line in result.stdout.splitlines()]
    assert "1 subjects that begin with orders. have routes of their own" in result.stderr


def test_a_pattern_removes_the_route_of_a_prefix() -> None:
    meta = Routes()
    result = meta.run("remove", "orders.*")
    assert result.exit_code == 0, result.output
    assert meta.asked == [("DELETE", "prefix-routes/orders.")]


def test_a_dry_run_counts_and_changes_nothing() -> None:
    meta = Routes(**{"orders.a": True, "orders.b": False, "orders.c": True})
    words = ("orders.*", "--group", "mail", "--dry-run", "--json")
    for more, moves in (((), 0), (("--also-existing",), 2)):
        result = meta.set(*words, *more)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout) == {
            "route": "orders.", "prefix": True, "groups": ["mail"],
            "moves": moves, "keeps": 3 - moves,
        }  # fmt: skip
    assert meta.asked == []
    assert meta.looked


def test_a_receiver_is_approved_as_what_it_is_a_group_without_an_address() -> None:
    asked: list[tuple[str, str, Any]] = []

    def answer(method: str, target: str, _: dict[str, str], body: bytes) -> tuple[int, bytes]:
        asked.append((method, target, json.loads(body)))
        return 200, json.dumps({"name": "mail", "kind": "receiver"}).encode()

    with answering(answer) as address:
        words = ("--meta", address, "receiver", "approve", "mail")
        result = CliRunner().invoke(main, ["admin", *words])
    assert result.exit_code == 0, result.output
    assert asked == [("POST", "/api/v1/broker-groups/mail/approve", {"address": ""})]


def test_the_history_of_a_group_is_its_entries_of_the_audit() -> None:
    def group(master: str | None, epoch: int, **more: object) -> dict[str, Any]:
        named = None if master is None else {"node_id": master, "incarnation": 1}
        return {"record": {"epoch": epoch, "master": named}, **more}

    def entry(number: int, at_ms: int, action: str, before: object, after: object) -> Any:  # noqa: ANN401
        return {
            "number": number,
            "at_ms": at_ms,
            "actor": "alice",
            "action": f"delay-group.{action}",
            "target": "c1/d1",
            "before": before,
            "after": after,
        }

    why = "n1 was not heard for 3.0 s"
    rows = [
        entry(9, 9_000, "hand-over", group("n2", 2), group("n2", 3, why="its disk is full")),
        entry(8, 8_000, "hand-over", group("n1", 1), group("n2", 2, why="it is being stopped")),
        entry(7, 7_000, "hand-over", group("n1", 1)["record"], {"to": "n2"}),
        entry(6, 4_250, "elect", group(None, 1), group("n1", 1, why=why, votes={"n1": "fit"})),
        entry(5, 3_000, "elect", group("n0", 0), group(None, 1, why=why)),
    ]

    def answer(_: str, target: str, __: dict[str, str], ___: bytes) -> tuple[int, bytes]:
        if "audit" not in target:
            return 200, json.dumps(ACTIVE | {"cluster": "c1"}).encode()
        assert "target=c1%2Fd1" in target
        action = "elect" if "delay-group.elect" in target else "hand-over"
        items = [row for row in rows if row["action"] == f"delay-group.{action}"]
        return 200, json.dumps({"items": items, "next": None}).encode()

    def show(*words: str) -> str:
        with answering(answer) as address:
            words = ("admin", "--meta", address, *words, "delay-group", "show", "d1", "--history")
            result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, result.output
        return result.output

    found = [json.loads(line) for line in show("--json").splitlines()]
    assert [(row["event"], row["epoch"], row["master"], row["why"]) for row in found] == [
        ("could not hand over", 3, "n2", "its disk is full"),
        ("n1 hands over", 2, "n2", "it is being stopped"),
        ("an operator wants n2 as the master", 1, "n1", "by alice"),
        ("elected", 1, "n1", why),
        ("an election begins", 1, None, why),
    ]
    assert (found[3]["after_seconds"], found[3]["votes"]) == (1.25, "n1: fit")
    assert why in show()
