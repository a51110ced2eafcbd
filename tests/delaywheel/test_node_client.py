"""What the commands about rules say beside the rule itself."""

import msgspec
import pytest
from click.testing import CliRunner

from delaywheel.main import main
from tests.delaywheel.json_servers import answering

NOTE = "knows no broker group nope at present"


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("door", ["--server", "--meta"])
def test_a_rule_for_a_group_that_is_not_there_says_so(door: str, *, is_known: bool) -> None:
    rule = {"paused": True}
    answer = {
        "version": 1,
        "rule": rule,
        "is_known": is_known,
        "groups": {"nope": rule},
        "unknown_groups": [] if is_known else ["nope"],
        "nodes": [],
    }
    with answering(lambda *_: (200, msgspec.json.encode(answer))) as address:
        cluster = ["--cluster", "c"] if door == "--meta" else []
        result = CliRunner().invoke(main, ["pause", "--group", "nope", door, address, *cluster])
    assert result.exit_code == 0
    assert "group nope: paused" in result.output
    assert (NOTE in result.output) is not is_known


def test_damage_to_the_audit_is_said_below_it() -> None:
    damage = {"path": "audit/1.log", "position": 7, "bytes": 9, "reason": "no\x1b JSON"}
    answer = {"items": [], "damages": [damage]}
    with answering(lambda *_: (200, msgspec.json.encode(answer))) as address:
        result = CliRunner().invoke(main, ["controls", "--audit", "--server", address])
    assert result.exit_code == 0
    assert r"damaged: audit/1.log at 7, 9 bytes: no\x1b JSON" in result.output


def test_a_rule_is_for_a_subject_or_for_a_group() -> None:
    both = CliRunner().invoke(main, ["pause", "--subject", "a", "--group", "g"])
    neither = CliRunner().invoke(main, ["pause"])
    assert (both.exit_code, neither.exit_code) == (2, 2)
    assert "not both" in both.stderr
    assert "not both" not in neither.stderr


@pytest.mark.parametrize(
    ("sequences", "said"),
    [
        (["1"], "1 is no dead letter, or was settled before\n"),
        (["1", "2"], "2 are no dead letters, or were settled before\n"),
    ],
)
def test_what_is_no_dead_letter_is_counted(sequences: list[str], said: str) -> None:
    answer = {"matched": 0, "done": 0, "damaged": [], "next": None, "examined": 0}
    with answering(lambda *_: (200, msgspec.json.encode(answer))) as server:
        result = CliRunner().invoke(main, ["dead", "requeue", *sequences, "--server", server])
    assert said in result.stderr
    assert result.exit_code == 7
