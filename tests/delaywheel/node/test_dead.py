"""`delaywheel dead --meta`: dead letters of all delay groups, whatever some of them do."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner, Result

from delaywheel.main import main
from delaywheel.shared import admin_client
from tests.delaywheel.json_servers import answering

Json = dict[str, Any]


class Node:
    """A delay server with dead letters; it notes what it is asked."""

    def __init__(self, *letters: tuple[int, int, str]) -> None:
        """Begin with letters: when each was given up, its sequence, and who refused it."""
        self.letters: list[Json] = [
            {
                "sequence": sequence,
                "subject": "s",
                "message_id": f"m{sequence}",
                "due_ms": 1,
                "dead_ms": dead_ms,
                "code_name": "block",
                "group": group,
            }
            for dead_ms, sequence, group in letters
        ]
        self.pages: list[int] = []
        self.changes: list[tuple[str, Json]] = []
        self.tokens: set[str | None] = set()
        self.fails = ""
        """The path that is answered with 503."""
        self.page_max = 2

    def answer(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, bytes]:
        path, query = urlsplit(target).path, parse_qs(urlsplit(target).query)
        self.tokens.add(headers.get("authorization"))
        code, found = self._answer(method, path, query, body)
        return code, json.dumps(found).encode()

    def _answer(
        self, method: str, path: str, query: dict[str, list[str]], body: bytes
    ) -> tuple[int, object]:
        if path == "/status":
            return 200, {}
        if path == self.fails:
            return 503, {"code": "starting", "detail": "the dead letters are not read yet"}
        group = query.get("group", [None])[0]
        found = [one for one in self.letters if group in {None, one["group"]}]
        if path == "/dead":
            after, limit = int(query.get("after", ["0"])[0]), int(query["limit"][0])
            page = [one for one in found if one["sequence"] > after][: min(limit, self.page_max)]
            self.pages.append(len(page))
            more = page and page[-1] is not found[-1]
            following = str(page[-1]["sequence"]) if more else None
            return 200, {"items": page, "next": following, "matched": len(found)}
        if method == "POST":
            asked = json.loads(body)
            self.changes.append((path, asked))
            known = {one["sequence"] for one in self.letters}
            named = set(asked.get("sequences", ()))
            wanted = asked.get("group")
            done = sum(wanted in {None, one["group"]} for one in self.letters)
            done = len(known & named) if named else done
            return 200, {"done": done, "damaged": [], "missing": sorted(named - known)}
        for one in self.letters:
            if path == f"/dead/{one['sequence']}":
                return 200, one
        return 404, {"code": "unknown", "detail": "no such letter"}


class Cluster:
    """A meta server, and nodes of the groups d1, d2, …"""

    def __init__(self, stack: ExitStack, *nodes: Node) -> None:
        addresses = [stack.enter_context(answering(node.answer)) for node in nodes]
        self.groups = [group(f"d{number}", address) for number, address in enumerate(addresses, 1)]
        self.groups.append({**group("other", "127.0.0.1:1"), "cluster": "another"})
        self.addresses = addresses
        self.meta_tokens: set[str | None] = set()
        self.meta = stack.enter_context(answering(self._answer))

    def _answer(self, _: str, target: str, headers: dict[str, str], __: bytes) -> tuple[int, bytes]:
        self.meta_tokens.add(headers.get("authorization"))
        assert urlsplit(target).path == "/api/v1/topology"
        return 200, json.dumps({"delay_groups": self.groups}).encode()

    def dead(self, *words: str, code: int = 0) -> Result:
        result = CliRunner().invoke(
            main, ["dead", *words, "--meta", self.meta, "--cluster", "c"], env={"COLUMNS": "200"}
        )
        assert result.exit_code == code, result.output
        return result

    def json(self, *words: str, code: int = 0) -> Json:
        found: Json = json.loads(self.dead(*words, "--json", code=code).stdout)
        return found


def group(name: str, address: str) -> Json:
    nodes = [
        {"node_id": "n0", "http_address": "127.0.0.1:1"},
        {"node_id": "n1", "http_address": address},
    ]
    return {"name": name, "cluster": "c", "master": "n1", "election": "", "nodes": nodes}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def two(stack: ExitStack) -> tuple[Cluster, Node, Node]:
    """Return a cluster of two groups with three and two letters."""
    first = Node((10, 1, "billing"), (30, 2, "mail"), (50, 3, "billing"))
    second = Node((20, 1, "billing"), (40, 9, "billing"))
    return Cluster(stack, first, second), first, second


def names(found: Json) -> list[str]:
    return [f"{one['delay_group']}/{one['sequence']}" for one in found["items"]]


def test_letters_of_all_groups_are_listed_by_age_under_names_that_say_the_group(
    stack: ExitStack,
) -> None:
    cluster, _, _ = two(stack)
    found = cluster.json("list")
    assert names(found) == ["d1/1", "d2/1", "d1/2", "d2/9", "d1/3"]
    assert found["unanswered"] == {}
    shown = cluster.dead("list", "--limit", "3")
    assert [line.split()[0] for line in shown.stdout.splitlines()[-3:]] == ["d1/1", "d2/1", "d1/2"]
    assert "there are more: give --limit" in shown.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--group", "billing"),
        ("%DLQ%billing",),
        ("--group", "%DLQ%billing"),
        ("--subject", "%DLQ%billing"),
        ("--subject=%DLQ%billing",),
    ],
)
def test_rocketmqs_name_of_a_dead_letter_queue_is_that_of_a_group(
    stack: ExitStack, words: tuple[str, ...]
) -> None:
    cluster, first, second = two(stack)
    assert names(cluster.json("list", *words)) == ["d1/1", "d2/1", "d2/9", "d1/3"]
    assert cluster.dead("requeue", *words).stdout == "4 requeued\n"
    assert [one.changes for one in (first, second)] == [
        [("/dead/requeue", {"group": "billing"})],
        [("/dead/requeue", {"group": "billing"})],
    ]


def test_no_more_than_a_page_of_each_group_is_asked_for_ahead(stack: ExitStack) -> None:
    nodes = [Node(*((place * 10 + n, place, "g") for place in range(1, 100))) for n in range(3)]
    cluster = Cluster(stack, *nodes)
    assert len(cluster.json("list", "--limit", "10")["items"]) == 10
    # A third of 11 each, by pages of two, and one page ahead.
    assert all(len(one.pages) <= 3 for one in nodes)


@pytest.mark.parametrize("words", [("list",), ("requeue", "--subject", "s"), ("show", "d2/9")])
def test_who_does_not_answer_is_named_and_what_others_answer_is_shown(
    stack: ExitStack, words: tuple[str, ...]
) -> None:
    cluster, _, _ = two(stack)
    broken = Node((1, 1, "g"))
    broken.fails = "/dead/requeue" if words[0] == "requeue" else "/dead"
    address = stack.enter_context(answering(broken.answer))
    cluster.groups += [
        group("gone", "127.0.0.1:1"),
        {**group("vacant", "127.0.0.1:1"), "master": None, "election": "n1 is asked"},
        group("starts", address),
    ]
    if words[0] == "show":
        # Nobody else is asked.
        assert "m9" in cluster.dead(*words).stdout
        assert "no master: there is no such group" in cluster.dead("show", "d7/9", code=6).stderr
        assert "no such letter" in cluster.dead("show", "d2/7", code=7).stderr
        return
    shown = cluster.dead(*words, code=6)
    assert "delay group gone: " in shown.stderr
    assert "delay group vacant: no master: n1 is asked\n" in shown.stderr
    assert "delay group starts: the dead letters are not read yet\n" in shown.stderr
    assert "other" not in shown.stderr
    found = cluster.json(*words, code=6)
    assert sorted(found["unanswered"]) == ["gone", "starts", "vacant"]
    assert found["done"] == 5 if words[0] == "requeue" else len(found["items"]) == 5


def test_what_fails_in_the_middle_of_a_list_is_shown_as_far_as_it_came(stack: ExitStack) -> None:
    cluster, first, _ = two(stack)
    whole = first.answer

    def fail_later(
        method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, bytes]:
        first.fails = "/dead" if first.pages else ""
        return whole(method, target, headers, body)

    cluster.groups[0] = group("d1", stack.enter_context(answering(fail_later)))
    found = cluster.json("list", code=7)
    assert names(found) == ["d1/1", "d2/1", "d1/2", "d2/9"]
    assert found["unanswered"] == {"d1": "the dead letters are not read yet"}


def test_letters_of_several_groups_are_changed_each_at_its_own(stack: ExitStack) -> None:
    cluster, first, second = two(stack)
    shown = cluster.dead("requeue", "d1/1", "d2/9", "d1/7", code=7)
    assert shown.stdout == "2 requeued\n"
    assert shown.stderr == "no dead letters, or settled before: d1/7\n"
    assert first.changes == [("/dead/requeue", {"sequences": [1, 7]})]
    assert second.changes == [("/dead/requeue", {"sequences": [9]})]
    assert "may drop many dead letters" in cluster.dead("drop", "--subject", "s", code=2).stderr
    assert cluster.json("drop", "d2/9")["done"] == 1
    assert second.changes[1:] == [("/dead/drop", {"sequences": [9]})]
    assert len(first.changes) == 1


def test_a_time_and_a_rate_are_those_of_each_group(stack: ExitStack) -> None:
    cluster, first, second = two(stack)
    at = "2026-12-24T18:00:00+00:00"
    cluster.dead("requeue", "--group", "billing", "--rate", "8", "--at", at)
    wanted = {"group": "billing", "due_ms": 1_798_135_200_000, "rate_per_s": 8.0}
    assert [one.changes for one in (first, second)] == [[("/dead/requeue", wanted)]] * 2
    for words in (("--rate", "0"), ("--rate", "nan"), ("--at", "noon")):
        cluster.dead("requeue", "d1/1", *words, code=2)
    assert len(first.changes) == 1


@pytest.mark.parametrize("word", ["7", "d1/", "d1/x", "d1/0", "d1/-1", "%DLQ%", f"d1/{10**19}"])
@pytest.mark.parametrize("verb", ["show", "requeue", "drop"])
def test_what_names_no_letter_of_a_group_is_refused_with_how_to_name_one(
    stack: ExitStack, verb: str, word: str
) -> None:
    cluster, first, second = two(stack)
    assert "d1/184467" in (said := cluster.dead(verb, word, code=2).stderr) or "GROUP/SEQ" in said
    assert not first.changes + second.changes
    result = CliRunner().invoke(main, ["dead", verb, "d1/7", "--server", cluster.addresses[0]])
    assert (result.exit_code, "of a node SEQUENCE alone" in result.stderr) == (2, True)


def test_a_node_that_the_meta_server_names_gets_no_token_but_its_own(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(admin_client.TOKEN_VARIABLE, "of-environment")
    cluster, first, second = two(stack)
    cluster.json("list")
    assert (cluster.meta_tokens, first.tokens) == ({"Bearer of-environment"}, {None})
    file = tmp_path / "tokens"
    file.write_text(f"{cluster.meta} of-meta\n{cluster.addresses[1]} of-second\n")
    cluster.json("list", "--token-file", str(file))
    assert (first.tokens, second.tokens) == ({None}, {None, "Bearer of-second"})
    assert "Bearer of-meta" in cluster.meta_tokens
