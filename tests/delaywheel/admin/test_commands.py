"""`delaywheel admin`: what each command asks of the meta server, what it waits for and prints."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from click.testing import CliRunner, Result

import delaywheel.admin.waiting
from delaywheel.main import main
from delaywheel.shared.failures import ExitCode
from tests.delaywheel.endings import done, refused
from tests.delaywheel.json_servers import answering

ACTIVE = {"phase": "active", "master": "n1", "epoch": 4, "election": "", "version": 1}
ELECTING = ACTIVE | {"phase": "electing", "master": None, "epoch": 5, "election": "waits for n2"}
GROUP: dict[str, Any] = {
    "name": "g1",
    "kind": "normal",
    "address": "h:1",
    "state": "RW",
    "static": True,
    "retired": False,
    "read_only": False,
    "weight": 100,
    "heard_seconds_ago": 2.5,
    "version": 3,
}
AWAY = (503, {"code": "starting", "detail": "the store has not been loaded yet"})
REFUSED = (409, {"code": "state", "detail": "n1 may send"})
NOTHING = (404, {"code": "not-found", "detail": "there is none"})
LATER = (412, {"code": "version", "detail": "g1: version 3 was expected"})


class Meta:
    """A meta server that answers what a test says, a request's last answer again and again."""

    def __init__(self, **answers: Any) -> None:  # noqa: ANN401 (rows, or codes with them)
        """Answer by method and path, such as GET_delay_group_d1: a row, or several one by one."""
        self.answers = {
            name: list(found) if isinstance(found, list) else [found]
            for name, found in answers.items()
        }
        self.asked: list[tuple[str, Any]] = []
        """Changes: method and path, the body and the version that it is for."""
        self.queries: list[str] = []

    def run(self, *words: str) -> Result:
        """Run a command of `delaywheel admin`."""
        with answering(self.answer) as address:
            return CliRunner().invoke(main, ["admin", "--meta", address, *words])

    def answer(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, bytes]:
        """Answer a request."""
        url = urlsplit(target)
        path = unquote(url.path.removeprefix("/api/v1/"))
        self.queries.append(url.query)
        if method != "GET":
            sent = json.loads(body) if body else None
            version = headers.get("if-match", "").strip('"')
            self.asked.append((f"{method} {path}", (sent, version) if version else sent))
        key = "".join(one if one.isalnum() else "_" for one in f"{method} {path}").strip("_")
        found = self.answers[key]
        answer = found.pop(0) if len(found) > 1 else found[0]
        code, row = answer if isinstance(answer, tuple) else (200, answer)
        return code, json.dumps(row).encode()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delaywheel.admin.waiting, "_LOOK_S", 0.01)
    monkeypatch.setattr(delaywheel.admin.waiting, "_HANDOVER_S", 0.3)
    monkeypatch.setattr(delaywheel.admin.waiting, "_ELECTED_S_MAX", 0.3)
    monkeypatch.setattr(delaywheel.admin.waiting, "_SILENT_S_MAX", 0.2)


# Rows


def test_set_changes_the_fields_that_are_named_and_nothing_that_changed_meanwhile() -> None:
    meta = Meta(GET_broker_group_g1=GROUP, PUT_broker_group_g1=GROUP)
    done(meta.run("set", "broker-group", "g1", "weight=50", "static=false"))
    editable = {name: GROUP[name] for name in ("kind", "address")}
    body = editable | {"weight": 50, "static": False}
    assert meta.asked == [("PUT broker-group/g1", (body, "3"))]
    meta = Meta(GET_broker_group_g1=GROUP, PUT_broker_group_g1=LATER)
    result = meta.run("set", "broker-group", "g1", "weight=50", "--version", "2")
    assert (result.exit_code, meta.asked[0][1][1]) == (ExitCode.REFUSED, "2")
    assert "look at it with `delaywheel admin get broker-group g1`" in result.stderr


def test_set_adds_what_is_not_there() -> None:
    meta = Meta(GET_broker_b1_MASTER=NOTHING, PUT_broker_b1_MASTER=(201, {"version": 1}))
    words = ("hostname=h", "ip=10.0.0.1", "serve-port=1")
    assert meta.run("set", "broker", "b1/MASTER", *words).exit_code == 0
    body = {"hostname": "h", "ip": "10.0.0.1", "serve_port": 1}
    assert meta.asked == [("PUT broker/b1/MASTER", (body, "0"))]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("set", "broker-group", "g1", "wight=1"), "there is no field wight; there are: kind, "),
        (("set", "broker-group", "g1", "weight=x"), "weight: Its share of subjects"),
        (("set", "broker-group", "g1", "weight"), "weight is not FIELD=VALUE"),
        (("get", "broker", "b1"), "the key of a broker is GROUP/ROLE"),
        (("get", "broker-group", "g1", "--prefix", "g"), "go with a list"),
        (("min-isr", "d1"), "give NAME MIN_ISR"),
        (("min-isr", "d1", "two"), "min_isr: With fewer nothing is accepted."),
    ],
)
def test_what_is_typed_wrongly_is_refused_with_what_is_allowed(
    words: tuple[str, ...], sentence: str
) -> None:
    meta = Meta()
    refused(meta.run(*words), ExitCode.USAGE, sentence)
    assert meta.asked == []


def test_a_list_has_five_columns_and_with_all_every_field() -> None:
    rows = [GROUP, GROUP | {"name": "g2", "retired": True, "read_only": True}]
    pages: list[dict[str, Any]] = [
        {"items": rows[:1], "next": "g1"},
        {"items": rows[1:], "next": None},
    ]
    meta = Meta(GET_broker_group=pages)
    shown = meta.run("get", "broker-group", "--prefix", "g").stdout.splitlines()
    assert [line.split() for line in shown] == [
        ["name", "kind", "address", "state", "heard"],
        ["g1", "normal", "h:1", "RW", "2.5", "s", "ago"],
        ["g2", "normal", "h:1", "RW,", "retired,", "read-only", "2.5", "s", "ago"],
    ]
    assert meta.queries == ["prefix=g&limit=101", "prefix=g&after=g1&limit=100"]
    every = Meta(GET_broker_group={"items": rows, "next": None}).run("get", "broker-group", "--all")
    assert "weight" in every.stdout
    some = Meta(GET_broker_group={"items": rows[:1], "next": "g1"})
    assert "and more: --all" in some.run("get", "broker-group", "--limit", "1").stdout
    both = Meta(GET_broker_group={"items": rows[:1], "next": "g1"})
    assert "weight" in both.run("get", "broker-group", "--limit", "1", "--all").stdout
    assert both.queries == ["limit=2", "after=g1&limit=1"]
    lines = Meta(GET_broker_group=pages[1]).run("get", "broker-group", "--json").stdout
    assert json.loads(lines) == rows[1]
    assert Meta(GET_broker=pages[1] | {"items": []}).run("get", "broker").stdout == "none\n"


def test_a_list_of_clusters_counts_their_nodes() -> None:
    row = {"name": "c1", "version": 2, "rules": 1, "nodes": [{"node_id": "n1"}, {"node_id": "n2"}]}
    shown = Meta(GET_cluster={"items": [row], "next": None}).run("get", "cluster").stdout
    assert shown.splitlines()[-1].split() == ["c1", "2", "1", "2"]


def test_a_delay_group_with_its_nodes_is_at_most_100_columns_wide() -> None:
    node = {
        "version": 1,
        "group": "d1",
        "node_id": "n1",
        "in_sync": True,
        "last_sequence": 17,
        "heard_seconds_ago": 0.5,
        "fitness": "unfit",
        "fitness_note": "its disk was full at the last heartbeat",
        "clock_note": "its clock is 4 s ahead of the clock of this meta server",
        "controls_note": "",
    } | {f"more_{number}": "x" * 30 for number in range(10)}
    meta = Meta(GET_delay_group_d1=ACTIVE | {"nodes": [node]})
    shown = meta.run("get", "delay-group", "d1").stdout
    assert max(map(len, shown.splitlines())) <= 100
    assert {"node", "sequence", "notes", "n1", "17"} <= set(shown.split())
    assert "more 9" in meta.run("get", "delay-group", "d1", "--all").stdout


def test_remove_names_the_key_and_the_version() -> None:
    meta = Meta(DELETE_delay_node_d1_n2={"changed": True}, DELETE_broker_group_g1={"changed": True})
    assert meta.run("remove", "delay-node", "d1/n2").stdout == "delay-node d1/n2 is removed\n"
    words = ("g1", "--lose-messages", "--version", "3")
    assert meta.run("remove", "broker-group", *words).exit_code == 0
    assert meta.queries[-1] == "lose_messages=true"
    assert meta.asked == [
        ("DELETE delay-node/d1/n2", None),
        ("DELETE broker-group/g1", (None, "3")),
    ]


def test_subjects_that_keep_their_routes_beside_a_prefix_are_told() -> None:
    route = {"pattern": "orders.*", "groups": ["mail"], "version": 1}
    meta = Meta(
        GET_route_orders=NOTHING,
        PUT_route_orders=route,
        GET_route={"items": [route], "next": "more"},
    )
    result = done(meta.run("set", "route", "orders.*", "groups=mail,sms"))
    assert meta.asked == [("PUT route/orders.*", ({"groups": ["mail", "sms"]}, "0"))]
    assert "subjects that begin with orders. have routes of their own" in result.stderr


def test_what_is_not_there_is_refused_with_what_lists_those_that_are() -> None:
    lists = "there is none: `delaywheel admin get {}` lists those that there are\n"
    meta = Meta(
        GET_subject_a=NOTHING,
        DELETE_route_a=NOTHING,
        GET_delay_group_a=NOTHING,
        GET_subject_rule_c_a=NOTHING,
        PUT_subject_rule_c_a=NOTHING,
    )
    assert meta.run("get", "subject", "a").stderr.endswith(lists.format("subject"))
    assert meta.run("remove", "route", "a").stderr.endswith(lists.format("route"))
    assert meta.run("elect", "a", "--wait").stderr.endswith(lists.format("delay-group"))
    # What is missing here is no rule.
    missing = meta.run("set", "subject-rule", "c/a", "paused=true")
    assert missing.stderr == "Error: there is none\n"


# Actions


def test_actions_have_their_fields_as_words_and_options() -> None:
    meta = Meta(
        POST_delay_group_d1_elect=ELECTING,
        POST_delay_group_d1_min_isr=ACTIVE,
        POST_delay_node_d1_n1_give_up=ACTIVE,
        POST_delay_node_d1_n1_approve=ACTIVE,
        POST_broker_group_g1_approve=GROUP,
        POST_broker_group_g1_read_only=GROUP,
        POST_broker_group_g1_extend={"changed": 1},
    )
    for words in (
        ("elect", "d1"),
        ("min-isr", "d1", "2", "--version", "4.1"),
        ("give-up", "d1", "n1", "--lose-messages"),
        ("approve", "d1/n1"),
        ("approve", "g1", "--address", "h:1"),
        ("read-only", "g1", "--no-read-only"),
        ("extend", "g1", "g2"),
    ):
        done(meta.run(*words))
    assert meta.asked == [
        ("POST delay-group/d1/elect", {}),
        ("POST delay-group/d1/min-isr", ({"min_isr": 2}, "4.1")),
        ("POST delay-node/d1/n1/give-up", {"lose_messages": True}),
        ("POST delay-node/d1/n1/approve", {}),
        ("POST broker-group/g1/approve", {"address": "h:1"}),
        ("POST broker-group/g1/read-only", {"read_only": False}),
        ("POST broker-group/g1/extend", {"new_group": "g2"}),
    ]


def test_an_election_is_waited_for_while_the_meta_server_is_restarted() -> None:
    elected = ACTIVE | {"epoch": 5, "master": "n2"}
    meta = Meta(
        GET_delay_group_d1=[AWAY, ACTIVE, ACTIVE, ELECTING, AWAY, ELECTING, elected],
        POST_delay_group_d1_elect=[REFUSED, AWAY, ELECTING],
    )
    result = done(meta.run("elect", "d1", "--wait"))
    assert [path for path, _ in meta.asked] == ["POST delay-group/d1/elect"] * 2
    assert "waits for n2" in result.stderr
    assert "asking again: the store has not been loaded yet" in result.stderr
    assert "n2" in result.stdout


def test_no_election_is_waited_for_without_end() -> None:
    elect = ELECTING | {"election": ""}
    for meta, code, said in (
        (
            Meta(GET_delay_group_d1=ELECTING, POST_delay_group_d1_elect=elect),
            ExitCode.REFUSED,
            "no master after 0.3 s: waits for n2. The election goes on",
        ),
        (
            Meta(GET_delay_group_d1=AWAY),
            ExitCode.NETWORK,
            "no answer of the meta server within 0.3 s: the store has not",
        ),
        (
            Meta(GET_delay_group_d1=ACTIVE, POST_delay_group_d1_elect=REFUSED),
            ExitCode.REFUSED,
            "Error: n1 may send\n",
        ),
    ):
        refused(meta.run("elect", "d1", "--wait"), code, said)


def test_a_handover_is_over_with_the_next_epoch_or_after_a_while() -> None:
    def hand_over(*looks: Any, to: tuple[str, ...] = ()) -> tuple[Result, Meta]:  # noqa: ANN401
        answers = [REFUSED, ACTIVE] if AWAY in looks[:1] else ACTIVE
        meta = Meta(GET_delay_group_d1=list(looks), POST_delay_group_d1_handover=answers)
        return meta.run("handover", "d1", *to), meta

    next_one = ACTIVE | {"epoch": 5, "master": "n3"}
    result, meta = hand_over(ACTIVE, AWAY, next_one, to=("--to", "n3"))
    assert (result.exit_code, meta.asked) == (0, [("POST delay-group/d1/handover", {"to": "n3"})])
    assert "n3" in result.stdout
    # A meta server that has just begun has not received a heartbeat yet.
    result, meta = hand_over(AWAY, ACTIVE, ACTIVE, next_one)
    assert (result.exit_code, len(meta.asked)) == (0, 2)
    back, _ = hand_over(ACTIVE, ACTIVE | {"epoch": 5})
    assert back.exit_code == ExitCode.REFUSED
    assert "n1 could not hand over, and goes on" in back.stderr
    silent, _ = hand_over(ACTIVE)
    assert silent.exit_code == ExitCode.REFUSED
    assert "n1 has not handed d1 over within 0.3 s" in silent.stderr


# The audit


def test_the_audit_shows_what_a_change_was_by_the_names_of_fields() -> None:
    before = {"version": 1, "record": {"epoch": 4, "in_sync": {"n1": "x"}}, "since_ms": 1}
    after = {"version": 2, "record": {"epoch": 5, "in_sync": {}}, "since_ms": 2}
    changes = (
        (before, after, 'record.epoch 4 -> 5, record.in_sync.n1 "x" -> -'),
        (None, after, "record.epoch 5"),
        (before, None, "removed"),
        (before, {"to": "n2"}, 'to "n2"'),
    )
    rows = [
        {"at_ms": 1, "actor": "al", "action": "a.b", "target": "c/d", "before": old, "after": new}
        for old, new, _ in changes
    ]
    meta = Meta(GET_audit={"items": rows, "next": None})
    lines = meta.run("get", "audit").stdout.splitlines()
    assert lines[0].split() == ["at", "what", "change"]
    for line, (_, _, change) in zip(lines[1:], changes, strict=True):
        assert line.split("a.b c/d by al")[1].strip() == change
