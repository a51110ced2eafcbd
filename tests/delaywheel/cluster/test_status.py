"""`delaywheel status` shows whatever a server says, and tells in a sentence when none answers."""

import io
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from delaywheel.cluster.status import render
from delaywheel.main import main
from delaywheel.shared import admin_client
from delaywheel.shared.failures import ExitCode
from delaywheel.shared.tables import format_value, title_of
from tests.delaywheel.endings import done, refused
from tests.delaywheel.json_servers import answering

STATUS = {
    "version": "0.1.0",
    "now_ms": 1_700_000_000_000,
    "uptime_ms": 90_061_000,
    "ready": True,
    "failing": [],
    "accepted": 1_234_567,
    "pending": 20,
    "lateness_ms": {"p50": 0.5, "p99": 2500.0, "max": None},
    "brokers": {
        "g1": {"state": "open", "queued": 5, "in_flight": 1024},
        "g2": {"state": "failing", "queued": 0, "in_flight": 0},
    },
    "disk_free_bytes": 3 * 2**30,
}


def serving(code: int, body: bytes) -> AbstractContextManager[str]:
    """Answer GET /status so; gives host:port."""
    return answering(
        lambda method, target, headers, _: (
            (code, body)
            if (method, target, headers["accept"]) == ("GET", "/status", "application/json")
            else (404, b"{}")
        )
    )


@pytest.fixture
def address() -> Iterator[str]:
    with serving(200, json.dumps(STATUS).encode()) as address:
        yield address


def shown(status: dict[str, Any], *, width: int = 160) -> str:
    text = io.StringIO()
    Console(width=width, file=text).print(render(status))
    return text.getvalue()


def test_the_server_is_asked_and_its_answer_shown(address: str) -> None:
    result = done(CliRunner().invoke(main, ["status", "--server", address]))
    assert "1,234,567" in result.output
    result = CliRunner().invoke(main, ["status", "--server", address, "--json"])
    assert json.loads(result.output) == STATUS


def test_of_an_answer_without_end_only_so_much_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps(STATUS | {"more": "x" * 100_000}).encode()
    with serving(200, body) as address:
        asked = ["status", "--server", address, "--json"]
        assert len(json.loads(CliRunner().invoke(main, asked).output)["more"]) == 100_000
        monkeypatch.setattr(admin_client, "ANSWER_BYTES_MAX", 100_000)
        refused(CliRunner().invoke(main, asked), ExitCode.NETWORK, "is no delay server")


def test_figures_and_rows_that_matter_are_shown() -> None:
    text = shown(STATUS)
    for word in ("1 d 1 h 1 min", "3 GiB", "1,234,567", "2.5 s", "g2", "1,024"):
        assert word in text


def test_a_long_table_is_cut_and_says_so() -> None:
    text = shown(STATUS | {"brokers": {f"group-{number}": {} for number in range(50)}})
    assert "group-19" in text
    assert "group-20" not in text
    assert "and 30 more" in text


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("accepted", 1234, "1,234"),
        ("ratio", 0.123, "0.12"),
        ("rate_per_s", 100, "100"),
        ("uptime_ms", 20, "20 ms"),
        ("uptime_ms", 1500, "1.5 s"),
        ("recovery_seconds", 0.25, "250 ms"),
        ("next_due_ms", 1_700_000_000_000, "2023-11-14 22:13:20 UTC"),
        ("disk_free_bytes", 1536, "1.5 KiB"),
        ("disk_free_bytes", 5 * 2**40, "5 TiB"),
        ("next_due_ms", None, "-"),
        ("ready", False, "no"),
        ("listen", "127.0.0.1:1", "127.0.0.1:1"),
        ("names", ["a", 2], "a, 2"),
        ("counts", {"a": 1, "b": 2}, "a 1, b 2"),
    ],
)
def test_figures_are_written_for_people(key: str, value: object, text: str) -> None:
    assert format_value(key, value) == text


def test_a_title_has_the_unit_of_a_rate_alone() -> None:
    assert (title_of("uptime_ms"), title_of("rate_per_s")) == ("uptime", "rate per s")


def test_what_peers_chose_is_shown_as_it_is_and_moves_no_cursor() -> None:
    hostile = {
        "brokers": {"[bold]c[/nonsense]": {"address": "a\x1b[31m\nb"}},
        "failing": ["why\x1b[2J"],
        "node_id": "[red]n",
    }
    text = shown(hostile)
    assert "\x1b" not in text
    for word in ("a\\x1b[31m\\nb", "[bold]c[/nonsense]", "why\\x1b[2J", "[red]n"):
        assert word in text


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "d1/n1 takes and delivers messages"),
        (
            {"late": 3, "brokers": {"g1": {"up": 0}, "g2": {"up": 1}}},
            (
                "d1/n1 takes and delivers messages; "
                "but 3 messages are late, and these groups take nothing: g1"
            ),
        ),
        ({"late": 3, "brokers": {"g2": {"up": 1}}}, "d1/n1 takes and delivers messages"),
        (
            {"meta": {"away_ms": 150_000, "trouble": "refused"}},
            (
                "d1/n1 takes and delivers messages; "
                "but no meta server answers since 2023-11-14 22:10:50 UTC, for 2 min: refused"
            ),
        ),
        ({"meta": {"away_ms": 0, "trouble": ""}}, "d1/n1 takes and delivers messages"),
        ({"replication": {"role": "master"}}, "d1/n1 takes and delivers messages"),
        ({"replication": {"role": "slave"}}, "d1/n1 copies what its master has"),
        (
            {"ready": False, "failing": ["not in sync"], "replication": {"role": "slave"}},
            "d1/n1 does not do its work: not in sync",
        ),
        (
            {"ready": False, "failing": ["the disk is full", "it stops"]},
            "d1/n1 does not do its work: the disk is full; it stops",
        ),
    ],
)
def test_the_first_line_says_that_all_is_well_or_what_is_not(
    changes: dict[str, Any], line: str
) -> None:
    text = shown(STATUS | {"group": "d1", "node_id": "n1"} | changes, width=200)
    assert text.splitlines()[0].rstrip() == line


REPLICATION = {
    "role": "master",
    "epoch": 7,
    "durable": 120,
    "messages_held": "",
    "committed": 110,
}
REPLICAS = {
    "b": {
        "standing": "in sync",
        "sentence": "keeps b in sync: 0.2 s behind, limit 2.5 s",
        "lag": 10,
        "lag_seconds": 0.2,
        "filing_lag_seconds": 0.0,
        "in_sync": 1,
    },
    "c": {"standing": "away", "sentence": "c is not connected", "lag": None, "in_sync": 0},
}


def test_the_screen_has_the_commit_and_how_each_other_disk_stands() -> None:
    lines = shown(STATUS | {"replication": REPLICATION, "replicas": REPLICAS}).splitlines()
    for wanted in (
        ("committed", "110"),
        ("b", "in sync", "200 ms", "keeps b in sync: 0.2 s behind, limit 2.5 s"),
        ("c", "away", "-", "c is not connected"),
    ):
        assert any(all(part in line for part in wanted) for line in lines), wanted


def test_a_lateness_of_years_is_no_date() -> None:
    lateness = {"p50": 0.5, "p99": 217_795_932_000.0, "max": 217_795_932_000.0}
    status = STATUS | {"lateness_ms": lateness, "lateness_5_minutes_ms": lateness}
    assert shown(status).count("2520 d 18 h 52 min") == 4
    assert "1976-" not in shown(status)


def test_the_screen_has_both_latenesses_and_no_address_is_cut() -> None:
    address = "a-broker-with-a-long-name.of-a-site.example.com:20881"
    recent = {"p50": 1.0, "p99": 2.0, "max": 607_000.0}
    brokers = {f"g{n}": {"address": address, "delivered": 10**9} for n in range(4)}
    text = shown(STATUS | {"lateness_5_minutes_ms": recent, "brokers": brokers}, width=100)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) <= 40
    assert "since the start" in text
    assert "10 min" in text
    assert "\N{HORIZONTAL ELLIPSIS}" not in text


def test_the_screen_has_what_decides_whether_the_disk_is_full() -> None:
    disk = {"disk_free_bytes": 3 * 2**30, "disk_owed_bytes": 2**30, "disk_floor_bytes": 2**31}
    lines = [line.split() for line in shown(STATUS | disk, width=100).splitlines()]
    for wanted in (["free", "3"], ["owed", "1"], ["floor", "2"]):
        assert any(wanted == line[line.index("disk") + 1 :][:2] for line in lines if "disk" in line)
