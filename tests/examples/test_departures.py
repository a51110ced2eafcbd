"""The demo's books: what they count, and every promise whose breach they must tell."""

import argparse
import io
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from examples.departures.account import (
    NODES,
    RETURN_MS,
    Account,
    MasterChange,
    Outage,
    Phase,
    Reception,
    quantile,
)
from examples.departures.demo import DATA, SPEED_MAX, BrokerGroup, Demo, read_calls, speed
from examples.departures.processes import (
    NotReadyError,
    Running,
    process,
    run_command,
)
from examples.departures.tables import print_account

GROUP_OUTAGE = Outage(killed_ms=10_000, started_ms=17_000, ready_ms=18_000)
AFTER_MS = 18_000 + RETURN_MS
HANDOVER = MasterChange(begun_ms=26_000, ended_ms=27_000)
TAKEOVER = MasterChange(begun_ms=34_000, ended_ms=40_000)
NODE_OUTAGE = Outage(killed_ms=34_000, started_ms=40_000, ready_ms=43_000)

CALLS = read_calls(DATA, speed=1440, chance=random.Random(1))

ROUND = ("heavy", "heavy", "light", "heavy")


def good_day() -> Account:
    """Return the account of a day on which a message came every 50 ms, each 2 ms late."""
    account = Account(
        weights={"heavy": 3, "light": 1},
        taken_down="heavy",
        group_outage=replace(GROUP_OUTAGE),
        handover=replace(HANDOVER),
        takeover=replace(TAKEOVER),
        node_outage=replace(NODE_OUTAGE),
    )
    for number, due_ms in enumerate(range(1000, 52_000, 50)):
        account.sent += 1
        account.acknowledged[f"m{number}"] = due_ms
        account.answered_ms.append(due_ms)
        group = "light" if 10_000 < due_ms + 2 <= 18_000 else ROUND[number % 4]
        account.receive(Reception(f"m{number}", group, due_ms, due_ms + 2))
    account.disks = {f"n{number}": set(account.acknowledged) for number in range(NODES)}
    account.is_reconciled = True
    return account


def keep_only(account: Account, keep: Callable[[Reception], bool]) -> None:
    """Forget receptions."""
    account.receptions = [one for one in account.receptions if keep(one)]


def give(account: Account, phase: Phase, group: str) -> None:
    """Have a group get everything that came in a phase."""
    account.receptions = [
        replace(one, group=group) if account.phase_of(one) is phase else one
        for one in account.receptions
    ]


def test_on_a_good_day_no_promise_is_broken() -> None:
    account = good_day()
    assert account.broken() == []
    assert account.got(Phase.DOWN) == {"heavy": 0, "light": 140}
    assert sum(account.got(Phase.AFTER).values()) == 240
    assert account.deserved("heavy") == 0.75
    console = Console(file=io.StringIO(), width=80)
    assert print_account(account, console, start_ms=0)


def lose(account: Account) -> None:
    account.received.discard("m7")


def come_early(account: Account) -> None:
    account.receptions[7] = replace(account.receptions[7], received_ms=0)


def fail(account: Account) -> None:
    del account.acknowledged["m7"]
    account.failed.append("m7: refused")


def leave_unanswered(account: Account) -> None:
    del account.acknowledged["m7"]


def not_hand_over(account: Account) -> None:
    account.handover.ended_ms = None


def elect_nobody(account: Account) -> None:
    account.takeover.ended_ms = None


def leave_node(account: Account) -> None:
    account.node_outage.ready_ms = None


def lack(account: Account) -> None:
    account.disks["n1"].discard("m7")


def skip_directory(account: Account) -> None:
    del account.disks["n1"]


def leave_unreconciled(account: Account) -> None:
    account.is_reconciled = False


def leave_group_down(account: Account) -> None:
    account.group_outage = replace(GROUP_OUTAGE, started_ms=None, ready_ms=None)


def starve_returned(account: Account) -> None:
    give(account, Phase.AFTER, "light")


def starve_other(account: Account) -> None:
    give(account, Phase.AFTER, "heavy")


def share_before_equally(account: Account) -> None:
    account.receptions = [
        replace(one, group="heavy" if number % 2 else "light")
        if account.phase_of(one) is Phase.BEFORE
        else one
        for number, one in enumerate(account.receptions)
    ]


def deliver_nothing_meanwhile(account: Account) -> None:
    keep_only(account, lambda one: account.phase_of(one) is not Phase.DOWN)


def end_too_soon(account: Account) -> None:
    keep_only(account, lambda one: one.received_ms <= AFTER_MS + 1000)
    account.acknowledged = {one.message_id: one.due_ms for one in account.receptions}


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lose, "lost: m7"),
        (come_early, "1 messages came early"),
        (fail, "failed: m7: refused"),
        (leave_unanswered, "1 messages were sent and never answered"),
        (not_hand_over, "no master handed the delay group over"),
        (elect_nobody, "the master was not killed and another one elected"),
        (leave_node, "the delay server that was killed did not come back in sync"),
        (lack, "the directory of n1 lacks 1 acknowledged messages: m7"),
        (skip_directory, "2 directories of 3 were verified"),
        (leave_unreconciled, "the three directories do not reconcile"),
        (leave_group_down, "broker group heavy was not taken down and brought back"),
        (starve_returned, "broker group heavy got 0 of 240 messages after heavy was down"),
        (starve_other, "broker group light got 0 of 240 messages after heavy was down"),
        (share_before_equally, "before heavy was down, 50% in place of 75%"),
        (deliver_nothing_meanwhile, "nothing was delivered while broker group heavy was down"),
        (end_too_soon, "only 20 messages came after heavy was down"),
    ],
)
def test_each_promise_that_is_broken_is_told_and_is_a_failure(
    spoil: Callable[[Account], None], told: str
) -> None:
    account = good_day()
    spoil(account)
    assert any(told in fault for fault in account.broken()), account.broken()
    text = io.StringIO()
    assert not print_account(account, Console(file=text, width=200), start_ms=0)
    assert told in text.getvalue()
    assert "PROMISES BROKEN" in text.getvalue()


def test_moments_lie_in_the_phase_of_what_was_away() -> None:
    account = good_day()
    phases = [
        (10_000, Phase.BEFORE),
        (10_001, Phase.DOWN),
        (17_000, Phase.DOWN),
        (17_001, Phase.RETURN),
        (AFTER_MS, Phase.RETURN),
        (AFTER_MS + 1, Phase.AFTER),
        (26_000, Phase.AFTER),
        (26_001, Phase.CHANGE),
        (27_000 + RETURN_MS, Phase.CHANGE),
        (27_001 + RETURN_MS, Phase.AFTER),
        (34_001, Phase.CHANGE),
        (40_000 + RETURN_MS, Phase.CHANGE),
        (40_001 + RETURN_MS, Phase.AFTER),
    ]
    for moment_ms, phase in phases:
        assert account.phase_of(Reception("m", "heavy", 0, moment_ms)) is phase
    # A change of the master that does not end does not hide that a group was away.
    account.handover = MasterChange(begun_ms=5000)
    assert account.phase_of(Reception("m", "heavy", 0, 10_000)) is Phase.CHANGE
    assert account.phase_of(Reception("m", "heavy", 0, 10_001)) is Phase.DOWN


def test_a_pause_is_the_longest_time_without_anything_that_fell_into_a_change() -> None:
    change = MasterChange(begun_ms=1000, ended_ms=2000)
    assert change.pause_ms([0, 500, 900, 1300, 1400, 2300, 9000]) == 900
    assert change.pause_ms([9000, 0]) == 9000
    assert change.pause_ms([0, 1000, 2001, 9000]) == 1001
    assert change.pause_ms([1500]) is None
    assert MasterChange(begun_ms=1000).pause_ms([0, 9000]) is None


receptions = st.builds(
    Reception,
    message_id=st.sampled_from("abcdef"),
    group=st.sampled_from(["heavy", "light"]),
    due_ms=st.integers(0, 60_000),
    received_ms=st.integers(0, 60_000),
)


@given(st.lists(receptions, max_size=40))
def test_every_reception_is_in_one_phase_and_the_first_or_one_too_many(
    came: list[Reception],
) -> None:
    account = replace(good_day(), receptions=[], received=set())
    for reception in came:
        account.receive(reception)
    distinct, twice = account.distinct(), account.twice()
    assert sum(distinct.values()) == len({one.message_id for one in came})
    for group in account.weights:
        own = [one for one in came if one.group == group]
        assert distinct[group] + twice[group] == len(own)
        assert sum(account.got(phase)[group] for phase in Phase) == len(own)
    assert sum(len(account.lateness_ms(phase)) for phase in Phase) == len(came)


def test_a_message_that_came_to_both_groups_is_one_of_the_first_and_twice_of_the_other() -> None:
    account = replace(good_day(), receptions=[], received=set())
    account.receive(Reception("m", "light", 0, 5))
    account.receive(Reception("m", "heavy", 0, 4))
    assert account.distinct() == {"heavy": 1, "light": 0}
    assert account.twice() == {"heavy": 0, "light": 1}


@given(st.lists(st.integers(0, 9), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_exceeded_by_no_more_than_the_rest(values: list[int], share: float) -> None:
    found = quantile(values, share)
    assert sum(value <= found for value in values) >= share * len(values) - 1e-6
    assert found in values


def test_a_line_that_is_half_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    group = BrokerGroup("heavy", tmp_path / "heavy.jsonl")
    assert list(group.new_receptions()) == []
    line = '{"message_id":"m1","subject":"s","due_ms":5,"received_ms":7}\n'
    group.record.write_text(line + line[:20], encoding="utf-8")
    assert list(group.new_receptions()) == [Reception("m1", "heavy", 5, 7)]
    assert list(group.new_receptions()) == []
    group.record.write_text(line + line, encoding="utf-8")
    assert list(group.new_receptions()) == [Reception("m1", "heavy", 5, 7)]


def test_calls_are_sent_before_they_are_due_and_every_flight_has_one() -> None:
    calls = read_calls(DATA, speed=1440, chance=random.Random(1))
    assert len({call.message_id for call in calls}) == len(calls) == 1014
    assert all(0 <= call.send_ms < call.due_ms for call in calls)
    assert [call.send_ms for call in calls] == sorted(call.send_ms for call in calls)
    assert 50_000 < max(call.due_ms for call in calls) < 60_000


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "fast", "1601"])
def test_a_speed_that_leaves_no_time_for_everything_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="1600 at the most"):
        speed(text)
    assert speed("1600") == SPEED_MAX


async def test_nobody_is_told_any_address_but_that_of_the_meta_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    own = {"--listen", "--http", "--set"}

    async def note(_: Demo, *arguments: str, log: str = "", gets_ready: bool = True) -> Running:
        assert log or arguments[0]
        assert gets_ready or log in {"n2", "n3"}
        names = ("", *arguments)
        told.extend(word for name, word in pairwise(names) if name not in own and ":" in word)
        ready = "ready listen=127.0.0.1:1 http=127.0.0.1:2"
        return Running(Mock(spec=subprocess.Popen), ready)

    async def stop(_: Demo) -> None:
        raise NotReadyError("far enough")

    monkeypatch.setattr(Demo, "_start", note)
    monkeypatch.setattr(Demo, "_until_registered", stop)
    console = Console(file=io.StringIO())
    with pytest.raises(NotReadyError, match="far enough"):
        await Demo(directory=tmp_path, calls=CALLS, speed=1440, console=console).run()
    # Two brokers and three delay servers.
    assert told == ["127.0.0.1:2"] * 5


@pytest.mark.parametrize(("java", "engine"), [(None, "spark"), ("no Java: get it so", "local")])
async def test_spark_reconciles_where_there_is_java_and_else_it_is_told_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, java: str | None, engine: str
) -> None:
    asked: list[str] = []

    async def note(_: Demo, *arguments: str) -> str:
        asked.extend(arguments)
        return f"{engine}: clean\n"

    monkeypatch.setattr(Demo, "_command", note)
    monkeypatch.setattr("examples.departures.demo.why_no_java", lambda _: java)
    monkeypatch.setattr("examples.departures.demo.PAGE", tmp_path / "pages" / "page.html")
    said = io.StringIO()
    demo = Demo(directory=tmp_path, calls=CALLS, speed=1440, console=Console(file=said))
    await demo._reconcile()
    assert asked[asked.index("--engine") + 1] == engine
    assert asked.count("--root") == NODES
    assert said.getvalue().lstrip().startswith(java or "reconciling the three directories")
    assert demo.account.is_reconciled
    assert demo.account.reconciliation.endswith(f"the page: {tmp_path / 'pages' / 'page.html'}")


@pytest.mark.process
def test_a_command_that_fails_is_told_with_its_own_words() -> None:
    command = ("weight", "--group", "g", "--meta", "h:1")
    told = r"^`delaywheel weight --group g --meta h:1` failed:\n(.|\n)*give --weight N, or --none"
    with pytest.raises(NotReadyError, match=told):
        run_command(command)


@pytest.mark.process
def test_a_process_that_does_not_start_is_told_with_its_own_words(tmp_path: Path) -> None:
    told = r"^`delaywheel broker` did not get ready:\nError: 'nowhere' is not an address"
    log = tmp_path / "broker.log"
    with pytest.raises(NotReadyError, match=told), process(("broker", "--listen", "nowhere"), log):
        pass


@pytest.mark.process
@pytest.mark.long
def test_the_demo_keeps_all_promises() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "examples.departures.demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    for words in (
        "hand over",
        ", the master, killed (SIGKILL)",
        "is elected",
        "back in sync",
        "broker group heavy killed (SIGKILL)",
        "broker group heavy back after",
        ": clean",
        "the page: ",
        "all promises kept",
    ):
        assert words in run.stdout
