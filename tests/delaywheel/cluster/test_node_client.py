"""What the commands about rules say beside the rule itself."""

from collections.abc import Mapping

import msgspec
import pytest
from click.testing import CliRunner

from delaywheel.main import main
from tests.delaywheel.json_servers import answering

CLUSTER = ["--cluster", "c", "--meta"]
NOTE = "knows no broker group nope at present"


@pytest.mark.parametrize("is_known", [True, False])
def test_a_rule_for_a_group_that_is_not_there_says_so(*, is_known: bool) -> None:
    rule = {"paused": True}
    answer = {
        "version": 1,
        "groups": {"nope": rule},
        "unknown_groups": [] if is_known else ["nope"],
        "nodes": [],
    }
    with answering(lambda *_: (200, msgspec.json.encode(answer))) as address:
        words = ["pause", "--group", "nope", "--meta", address, "--cluster", "c"]
        result = CliRunner().invoke(main, words)
    assert result.exit_code == 0
    assert "group nope: paused" in result.output
    assert (NOTE in result.output) is not is_known


def test_a_rule_is_for_a_subject_or_for_a_group() -> None:
    pause = ["pause", "--meta", "127.0.0.1:1"]
    both = CliRunner().invoke(main, [*pause, "--subject", "a", "--group", "g"])
    neither = CliRunner().invoke(main, pause)
    assert (both.exit_code, neither.exit_code) == (2, 2)
    assert "not both" in both.stderr
    assert "not both" not in neither.stderr


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ([2, 4711], "2 4711\n"),
        (list(range(8, 30)), " ".join(map(str, range(8, 28))) + " and 2 more\n"),
    ],
)
def test_what_is_no_dead_letter_is_named(missing: list[int], said: str) -> None:
    answer = {"done": 1, "damaged": [], "missing": missing}
    with answering(lambda *_: (200, msgspec.json.encode(answer))) as server:
        result = CliRunner().invoke(main, ["dead", "requeue", "7", "8", "--server", server])
    assert result.stdout == "1 requeued\n"
    assert result.stderr == f"no dead letters, or settled before: {said}"
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
@pytest.mark.parametrize("words", [["pause", "--subject"], ["controls", "--remove"]])
def test_it_is_said_what_counts_for_a_subject_after_a_change(
    words: list[str], name: str, rules: Mapping[str, object], said: str
) -> None:
    answer = {"version": 3, "subjects": rules, "nodes": []}
    methods: list[str] = []

    def reply(method: str, *_: object) -> tuple[int, bytes]:
        methods.append(method)
        return 200, msgspec.json.encode(answer)

    with answering(reply) as address:
        result = CliRunner().invoke(main, [*words, name, "--meta", address, "--cluster", "c"])
    assert result.exit_code == 0
    assert result.output.startswith(said)
    assert methods[0] == ("PATCH" if words[0] == "pause" else "DELETE")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--remove", "a"], "--remove goes with --meta"),
        (["--follow", "--meta", "127.0.0.1:1"], "--follow goes with --server"),
        (["--server", "a:1", "--meta", "b:1"], "give --server or --meta"),
    ],
)
def test_rules_are_changed_at_the_meta_server_and_followed_at_a_node(
    words: list[str], said: str
) -> None:
    result = CliRunner().invoke(main, ["controls", *words])
    assert (result.exit_code, said in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "door"),
    [
        (["pause", "--subject"], CLUSTER),
        (["limit", "--rate", "5", "--group"], CLUSTER),
        (["explain", "--id"], ["--server"]),
        (["dead", "list", "--subject"], ["--server"]),
        (["dead", "requeue", "--group"], ["--server"]),
        (["controls", "--remove"], CLUSTER),
    ],
)
def test_what_is_no_utf_8_is_said_to_be_none(words: list[str], door: list[str]) -> None:
    def reply(*_: object) -> tuple[int, bytes]:
        raise AssertionError("it was asked")

    with answering(reply) as address:
        result = CliRunner().invoke(main, [*words, "a\udcff", *door, address])
    assert result.exit_code == 2
    assert r"'a\udcff' is no UTF-8" in result.stderr


@pytest.mark.parametrize(
    ("matched", "typed", "dropped"),
    [(3, "y\n", True), (3, "n\n", False), (3, "", False), (0, "", True)],
)
def test_what_cannot_be_taken_back_is_asked_about_and_nobody_is_no(
    matched: int, typed: str, *, dropped: bool
) -> None:
    asked: list[tuple[str, str]] = []

    def answer(method: str, target: str, *_: object) -> tuple[int, bytes]:
        asked.append((method, target))
        if method == "GET":
            return 200, msgspec.json.encode({"matched": matched, "items": []})
        return 200, b'{"done":3,"damaged":[],"missing":[]}'

    with answering(answer) as server:
        words = ["dead", "drop", "--subject", "s", "--server", server]
        result = CliRunner().invoke(main, words, input=typed)
    assert ("Drop 3 dead letters for good?" in result.stderr) is bool(matched)
    assert asked == [("GET", "/dead?subject=s&limit=0")] + [("POST", "/dead/drop")] * dropped
    assert result.exit_code == (0 if dropped else 2)
    assert ("--yes" in result.stderr) is not dropped


def test_a_subject_that_no_address_could_hold_is_refused_before_it_is_sent() -> None:
    words = ["explain", "--subject", "x" * 40_000, "--server", "127.0.0.1:1"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert "at most 2048 bytes" in result.stderr
