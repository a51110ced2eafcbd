"""What the commands about rules say beside the rule itself."""

from collections.abc import Mapping

import msgspec
import pytest
from click.testing import CliRunner

from delaywheel.main import main
from tests.delaywheel.endings import refused
from tests.delaywheel.json_servers import answering
from tests.delaywheel.rules_server import RulesServer

CLUSTER = ["--cluster", "c", "--meta"]
NOTE = "knows no broker group nope at present"


@pytest.mark.parametrize("is_known", [True, False])
def test_a_rule_for_a_group_that_is_not_there_says_so(*, is_known: bool) -> None:
    server = RulesServer()
    server.known = {"nope"} if is_known else set()
    with answering(server.answer) as address:
        words = ["pause", "--group", "nope", "--meta", address]
        result = CliRunner().invoke(main, words)
    assert result.exit_code == 0
    assert "group nope: paused" in result.output
    assert (NOTE in result.output) is not is_known


def test_a_rule_is_for_a_subject_or_for_a_group() -> None:
    pause = ["pause", "--meta", "127.0.0.1:1"]
    for words in (pause, [*pause, "--subject", "a", "--group", "g"]):
        refused(CliRunner().invoke(main, words), 2, "give either --subject or --group")


def test_what_is_no_dead_letter_is_named() -> None:
    answer = {"done": 1, "damaged": [], "missing": [2, 4711]}
    with answering(lambda *_: (200, msgspec.json.encode(answer))) as server:
        result = CliRunner().invoke(main, ["dead", "requeue", "7", "8", "--server", server])
    assert result.stdout == "1 requeued\n"
    assert result.stderr == "no dead letters, or settled before: 2 4711\n"
    assert result.exit_code == 7


@pytest.mark.parametrize("words", [[], ["7", "--group", "g"], ["--group", "g", "--subject", "s"]])
@pytest.mark.parametrize("verb", ["requeue", "drop"])
def test_it_is_said_in_one_way_which_dead_letters_are_meant(verb: str, words: list[str]) -> None:
    result = CliRunner().invoke(main, ["dead", verb, *words, "--server", "127.0.0.1:1"])
    assert result.exit_code == 2
    assert "by sequences, or by one of --subject and --group" in result.stderr


@pytest.mark.parametrize(
    ("name", "rules", "said"),
    [
        ("a.b", {}, "subject a.b: open\n"),
        ("a.b", {"a.b": {"paused": True}}, "subject a.b: paused\n"),
        (
            "a.b",
            {"a.*": {}, "*": {"paused": True}},
            "subject a.b: open, by the rule of a.*\n",
        ),
        (
            "a.b",
            {"a.b": {}, "a.*": {"paused": True}},
            "subject a.b: open, an exception: a.* is paused\n",
        ),
        (
            "a.*",
            {"a.*": {"paused": True}, "a.b": {}, "a": {"paused": True}},
            "subject a.*: paused\nbut for those with a rule of their own: a.b\n",
        ),
        (
            "*",
            {"*": {"paused": True}} | {f"s{n}": {} for n in range(8)},
            (
                "subject *: paused\n"
                "but for those with a rule of their own: s0, s1, s2, s3, s4 and 3 more\n"
            ),
        ),
    ],
)
def test_it_is_said_what_counts_for_a_subject_after_a_change(
    name: str, rules: Mapping[str, dict[str, object]], said: str
) -> None:
    server = RulesServer()
    server.rules["subject"], server.is_fixed = dict(rules), True
    with answering(server.answer) as address:
        result = CliRunner().invoke(main, ["pause", "--subject", name, *CLUSTER, address])
    assert result.exit_code == 0
    assert result.output.startswith(said)


def test_the_other_fields_of_a_rule_stay_also_if_somebody_changes_it_meanwhile() -> None:
    server = RulesServer()
    server.rules["group"], server.conflicts = {"g": {"paused": True, "weight": 3.0}}, 2
    limit = ["limit", "--group", "g", "--rate", "5"]
    with answering(server.answer) as address:
        result = CliRunner().invoke(main, [*limit, "--meta", address])
        server.conflicts = 5
        refused = CliRunner().invoke(main, [*limit, "--meta", address])
    assert "group g: paused, at most 5 messages/s, weight 3" in result.output
    assert (refused.exit_code, "at the same time: try again" in refused.stderr) == (7, True)
    assert server.changes == [("group g", {"paused": True, "weight": 3.0, "rate_per_s": 5.0})]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--follow", "--meta", "127.0.0.1:1"], "--follow goes with --server"),
        (["--server", "a:1", "--meta", "b:1"], "give --server or --meta"),
    ],
)
def test_rules_are_changed_at_the_meta_server_and_followed_at_a_node(
    words: list[str], said: str
) -> None:
    refused(CliRunner().invoke(main, ["controls", *words]), 2, said)


@pytest.mark.parametrize(
    ("words", "door"),
    [
        (["pause", "--subject"], CLUSTER),
        (["limit", "--rate", "5", "--group"], CLUSTER),
        (["find", "--id"], ["--server"]),
        (["dead", "list", "--subject"], ["--server"]),
        (["dead", "requeue", "--group"], ["--server"]),
    ],
)
def test_what_is_no_utf_8_is_said_to_be_none(words: list[str], door: list[str]) -> None:
    def reply(*_: object) -> tuple[int, bytes]:
        raise AssertionError("it was asked")

    with answering(reply) as address:
        result = CliRunner().invoke(main, [*words, "a\udcff", *door, address])
    assert result.exit_code == 2
    assert r"'a\udcff' is no UTF-8" in result.stderr


@pytest.mark.parametrize("yes", [True, False])
def test_what_cannot_be_taken_back_has_to_be_meant(*, yes: bool) -> None:
    asked: list[tuple[str, str]] = []

    def answer(method: str, target: str, *_: object) -> tuple[int, bytes]:
        asked.append((method, target))
        return 200, b'{"done":3,"damaged":[],"missing":[]}'

    with answering(answer) as server:
        words = ["dead", "drop", "--subject", "s", "--server", server]
        result = CliRunner().invoke(main, [*words, *["--yes"] * yes])
    assert asked == [("POST", "/dead/drop")] * yes
    assert result.exit_code == (0 if yes else 2)
    assert ("may drop many dead letters for good" in result.stderr) is not yes


def test_a_subject_that_no_address_could_hold_is_refused_before_it_is_sent() -> None:
    words = ["explain", "--subject", "x" * 40_000, "--server", "127.0.0.1:1"]
    refused(CliRunner().invoke(main, words), 2, "at most 2048 bytes")
