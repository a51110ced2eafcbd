"""Runs by hour find what one run over the same hours does, each thing once, whatever happens."""

import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_tools.files.errors import ReconcileError
from spark_tools.hours.by_hour import Outcome, run_hours
from spark_tools.hours.state_directory import (
    HOURS,
    HourEntry,
    StateDirectory,
    hour_name,
    hour_of_name,
)
from spark_tools.judge.account import FACT_CLASSES, STATES
from spark_tools.repaired.repair_audit import Answer, Audit
from spark_tools.repaired.repairs import Repairs, read_repairs
from spark_tools.run.local import local_engine
from spark_tools.run.plan import Request, Source, make_plan
from spark_tools.run.reconcile import Result, Verdict, reconcile
from spark_tools.run.report import encode_report, report
from tests.seeds import each_seed
from tests.spark_tools.growing_worlds import FAULTS, Life, Row
from tests.spark_tools.hours_rig import HOURLY, Watcher, named
from tests.spark_tools.repaired.test_repair_audit import answer
from tests.spark_tools.worlds import T0, TOTALS

HOUR_TOTALS = (*TOTALS, "records")
CALM = replace(HOURLY, request=Request(examples=3))
"""No lateness is a finding."""


def whole(
    source: Source, begin: int, end: int, request: Request = HOURLY.request
) -> tuple[Result, pa.Table]:
    """Reconcile a range in one run."""
    found: list[pa.Table] = []
    request = replace(request, from_minute=begin, to_minute=end)
    result = reconcile(make_plan([source], request), local_engine(1), found.append)
    return result, pa.concat_tables([result.examples.slice(0, 0), *found])


def check_hours(watcher: Watcher, outcome: Outcome, source: Source) -> None:
    """Hold each hour that was done against a run over this hour alone."""
    for entry in outcome.done:
        result, findings = whole(source, entry.hour, entry.hour + 60, watcher.request.request)
        wanted, totals = result.groups[0].account.totals, watcher.totals(entry)
        assert {name: totals[name] for name in HOUR_TOTALS} == {
            name: wanted[name] for name in HOUR_TOTALS
        }
        assert watcher.findings(entry) == named(findings)
        assert entry.complete == (not result.problems)
        document = watcher.document(entry)
        for key in ("by_subject", "by_target", "lateness_ms", "deleted", "states"):
            assert document["groups"][0][key] == whole_group(result)[key]


def whole_group(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(encode_report(report(result)))["groups"][0]
    return found


def check_sums(watcher: Watcher, outcome: Outcome, source: Source, *, is_same_log: bool) -> None:
    """Hold the sums of all hours that are done against one run over them.

    is_same_log: nothing was deleted since the first of them was done.
    """
    final = [entry for entry in entries(outcome) if entry.is_final]
    hours = [entry.hour for entry in final]
    if not hours or hours != list(range(hours[0], hours[-1] + 60, 60)):
        return
    result, findings = whole(source, hours[0], hours[-1] + 60, watcher.request.request)
    account = result.groups[0].account
    kept = ("accepted", *STATES, "facts", *FACT_CLASSES, "early")
    names = [name for name in HOUR_TOTALS if name != "doubled"] if is_same_log else kept
    totals = sum((watcher.totals(entry) for entry in final), Counter[str]())
    assert {name: totals[name] for name in names} == {name: account.totals[name] for name in names}
    summary = watcher.json("summary.json")
    assert summary["groups"][0]["accepted"] == account.totals["accepted"]
    wanted_late = whole_group(result)["lateness_ms"]
    assert wanted_late["max"] is not None
    assert summary["groups"][0]["lateness_ms"] == wanted_late
    if is_same_log:
        together = sum((watcher.findings(entry) for entry in final), Counter())
        assert placeless(together) == placeless(named(findings))


def placeless(found: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """Return findings without positions: cuts of batches are drawn anew for each moment.

    Rows of a sequence in two hours are `doubled` in a run over both of them only.
    """
    return Counter(row[:6] + row[7:] for row in found.elements() if row[0] != "doubled")


def entries(outcome: Outcome) -> list[HourEntry]:
    return [one.hour for _, one in sorted(outcome.results.items())]


def look_on(life: Life, root: Path, watcher: Watcher, moments: tuple[int, ...]) -> Outcome:
    """Run at each moment, and check everything after each run."""
    outcomes: list[Outcome] = []
    is_same_log = True
    # Of some lives the message_log did not reach back to the first record when runs began.
    trimmed = life.seed % 3 * 4
    for moment in moments:
        world = life.at(moment, trimmed=trimmed + 2 * len(outcomes))
        source = world.written(root / f"{moment}")
        if outcomes and outcomes[-1].results:
            is_same_log &= {"trimmed_log", "deleted"}.isdisjoint(life.faults)
        outcome = watcher.run(source)
        outcomes.append(outcome)
        check_hours(watcher, outcome, source)
        if is_same_log or "deleted" not in life.faults:
            check_sums(watcher, outcome, source, is_same_log=is_same_log)
        again = watcher.run(source)
        assert not any(one.is_final for one in again.done), "nothing is done twice"
    return outcomes[-1]


@each_seed(3, quick=1)
def test_whatever_is_wrong_hours_add_up_to_what_one_run_finds(seed: int, tmp_path: Path) -> None:
    """Rows, facts and seals come, files leave, while runs look on."""
    chance = random.Random(seed)
    faults = FAULTS if seed == 0 else chance.sample(FAULTS, 6)
    life = Life(seed, frozenset(faults), before=chance.choice([0, 300]))
    look_on(life, tmp_path, Watcher(tmp_path / "state"), (130, 255, 365))


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_row_that_is_in_the_wrong_hour_is_found_there_though_its_record_has_left(
    is_kept: bool, tmp_path: Path
) -> None:
    """Nothing else gives it away: the hour of the first row is right."""
    life = Life(1, frozenset() if is_kept else frozenset({"trimmed_log"}))
    victim = next(one for one in life.rows if one.minute > T0 + 60 > one.message.floor)
    again = replace(victim.message, due_ms=(T0 + 190) * 60_000)
    facts = tuple(
        replace(one, minute=T0 + 190, at_ms=(T0 + 190) * 60_000 + 5) for one in victim.facts
    )
    life.rows.append(Row(again, T0 + 190, facts))
    watcher = Watcher(tmp_path / "state", CALM)
    watcher.run(life.at(70).written(tmp_path / "a"))
    outcome = watcher.run(life.at(255, trimmed=6).written(tmp_path / "b"))
    found = entry_of(outcome, 3).findings
    assert found == ({"altered": 1, "misfiled": 1} if is_kept else {"log_differs": 1})
    assert entry_of(outcome, 2).verdict == "clean"


# -- retention, and what could not be read ---------------------------------------------------


def entry_of(outcome: Outcome, hour: int) -> HourEntry:
    return outcome.results[T0 + 60 * hour].hour


def test_a_message_that_was_never_filed_is_noticed_though_its_record_has_left(
    tmp_path: Path,
) -> None:
    life = Life(1)
    victim = next(one for one in life.rows if one.message.floor < T0 + 60 and one.minute > T0 + 130)
    hour = (victim.minute - T0) // 60
    life.rows.remove(victim)
    life.faults = frozenset({"trimmed_log"})
    watcher = Watcher(tmp_path / "state", CALM)
    watcher.run(life.at(130).written(tmp_path / "a"))
    source = life.at(hour * 60 + 70, trimmed=12).written(tmp_path / "b")
    assert source.manifest.first_sequence > victim.message.sequence
    outcome = watcher.run(source)
    assert outcome.verdict is Verdict.FINDINGS
    entry = entry_of(outcome, hour)
    assert entry.findings == {"log_differs": 1}
    table = watcher.table(entry, "findings")
    assert "rows in this hour" in table["note"][0].as_py()
    # A run over this hour alone has nothing to hold its rows against.
    result, _ = whole(source, entry.hour, entry.hour + 60, CALM.request)
    assert result.verdict is Verdict.CLEAN
    others = [one for one in entries(outcome) if one.hour != entry.hour]
    assert others
    assert all(one.verdict == "clean" for one in others)


def test_hours_whose_segments_were_deleted_before_are_incomplete(tmp_path: Path) -> None:
    life = Life(1, frozenset({"deleted"}))
    watcher = Watcher(tmp_path / "state", replace(CALM, retry_hours=0))
    outcome = watcher.run(life.at(365).written(tmp_path))
    assert outcome.verdict is Verdict.INCOMPLETE
    gone = [one for one in entries(outcome) if one.verdict == "incomplete"]
    assert gone
    for entry in gone:
        assert "messages were deleted" in entry.problems[0]
        assert watcher.document(entry)["groups"][0]["deleted"]["rows"] > 0
    summary = watcher.json("summary.json")
    assert summary["hours"]["incomplete"] == len(gone)
    assert [one["hour"] for one in summary["with_findings"]]
    assert summary["groups"][0]["deleted"]["segments"] > 0


def with_problem(source: Source) -> Source:
    changed = msgspec.structs.replace(source.manifest, quarantined=("schedule_log/x",))
    return Source(changed, source.root)


def later(source: Source, minutes: int) -> Source:
    """Return the same logs, looked at so much later."""
    made_ms = source.manifest.made_ms + minutes * 60_000
    return Source(msgspec.structs.replace(source.manifest, made_ms=made_ms), source.root)


def test_an_hour_that_is_incomplete_is_tried_again_by_each_run_and_then_stays(
    tmp_path: Path,
) -> None:
    source = Life(1).at(70).written(tmp_path)
    watcher = Watcher(tmp_path / "state", replace(CALM, retry_hours=5, back_hours=1))
    tried, outcomes = [], []
    for hour in range(7):
        # The floor stays where it is, so no later hour closes.
        outcome = watcher.run(later(with_problem(source), 60 * hour))
        outcomes.append(outcome)
        if T0 in [entry.hour for entry in outcome.done]:
            tried.append(hour)
            assert outcome.verdict is not Verdict.CLEAN
        entry = entry_of(outcome, 0)
        assert entry.is_final == (hour >= 5)
        assert outcome.summary["hours"]["final"] == (1 if hour >= 5 else 0)
    assert tried == [0, 1, 2, 3, 4, 5]
    assert not list((watcher.root / HOURS).glob("*.tmp")), "earlier tries are removed"


def test_what_is_mended_in_time_is_complete(tmp_path: Path) -> None:
    source = Life(1).at(70).written(tmp_path)
    watcher = Watcher(tmp_path / "state", CALM)
    assert watcher.run(with_problem(source)).verdict is Verdict.INCOMPLETE
    [told] = watcher.json("summary.json")["not_final"]
    assert told["problems"] == [
        "c g n1 schedule_log/x was put aside, maybe with lost rows: run `delaywheel log salvage`"
    ]
    outcome = watcher.run(later(source, 60))
    assert outcome.verdict is Verdict.CLEAN
    assert [one.hour for one in outcome.done] == [T0]
    assert entry_of(outcome, 0).is_final
    summary = watcher.json("summary.json")
    assert (summary["hours"], summary["not_final"]) == ({"final": 1, "clean": 1}, [])


def test_a_damaged_file_of_the_message_log_is_read_again_until_it_is_whole(tmp_path: Path) -> None:
    life, watcher = Life(1), Watcher(tmp_path / "state", replace(CALM, retry_hours=24))
    path = life.at(130).manifest.message_log[1].file
    wholes = {}
    for moment in (130, 255):
        world = life.at(moment)
        wholes[moment] = world.files[path]
        world.files[path] = world.files[path][:400] + b"XX" + world.files[path][402:]
        source = world.written(tmp_path / f"{moment}")
        outcome = watcher.run(source)
        assert outcome.done
        # Of no hour is it known that none of the records that were lost was of it.
        assert not any(entry.complete for entry in outcome.done)
        check_hours(watcher, outcome, source)
    world = life.at(255)
    assert world.files[path] == wholes[255]
    outcome = watcher.run(later(world.written(tmp_path / "mended"), 130))
    mended = [entry for entry in outcome.done if entry.state != "open"]
    assert [entry.hour for entry in mended] == [T0 + 60 * hour for hour in range(4)]
    assert all(entry.is_final and entry.verdict == "clean" for entry in mended)


# -- hours that do not close -----------------------------------------------------------------


def test_an_hour_that_stays_open_is_named_then_overdue_and_done_once_more_when_it_closes(
    tmp_path: Path,
) -> None:
    life = Life(1)
    minute = next(row.minute for row in life.rows if T0 <= row.minute < T0 + 60 and row.facts)
    life.stuck[minute] = T0 + 250
    told = [replace(row, facts=()) if row.minute == minute else row for row in life.rows]
    late = [row for row in life.rows if row.minute == minute]
    life.rows, delivered = told, life.rows
    watcher = Watcher(tmp_path / "state", CALM)
    outcome = watcher.run(life.at(70).written(tmp_path / "a"))
    assert outcome.verdict is Verdict.CLEAN
    assert not outcome.done
    [waiting] = outcome.waiting
    assert (waiting.hour, waiting.is_late) == (T0, False)
    assert waiting.reason == "1 segment(s) of g are not sealed"
    outcome = watcher.run(life.at(130).written(tmp_path / "b"))
    assert outcome.verdict is Verdict.FINDINGS
    assert outcome.waiting[0].is_late
    first, second = outcome.done
    assert (first.hour, first.state, first.findings) == (T0, "open", {"overdue": len(late)})
    assert (second.state, second.verdict) == ("final", "clean")
    assert outcome.summary["hours"]["final"] == 1, "what may change is not in the sums"
    life.rows = delivered
    outcome = watcher.run(life.at(255).written(tmp_path / "c"))
    assert not outcome.waiting
    entry = entry_of(outcome, 0)
    assert (entry.state, entry.verdict) == ("final", "clean")
    assert outcome.summary["hours"]["final"] == len(entries(outcome)) == 4
    check_sums(watcher, outcome, life.at(255).written(tmp_path / "c"), is_same_log=True)


def test_the_last_hour_before_a_node_falls_idle_is_told_of_and_done_when_it_goes_on(
    tmp_path: Path,
) -> None:
    life, watcher = Life(1), Watcher(tmp_path / "state", CALM)
    life.rows = [row for row in life.rows if row.minute < T0 + 60]
    source = life.at(70).written(tmp_path / "a")
    idle = Source(msgspec.structs.replace(source.manifest, floor_minute=T0 + 59), source.root)
    outcome = watcher.run(idle)
    assert [one.reason for one in outcome.waiting] == ["no later record of g has closed it yet"]
    assert not outcome.done
    outcome = watcher.run(later(idle, 60))
    [entry] = outcome.done
    assert (entry.hour, entry.state) == (T0, "open")
    assert [one.is_late for one in outcome.waiting] == [True, False], "the second is empty"
    outcome = watcher.run(later(source, 61))
    [entry] = outcome.done
    assert (entry.hour, entry.state) == (T0, "final")


def test_an_hour_with_nothing_in_it_waits_for_the_record_that_closes_it(tmp_path: Path) -> None:
    source = Life(1).at(70).written(tmp_path)
    watcher = Watcher(tmp_path / "state", CALM)
    outcome = watcher.run(later(source, 600))
    waiting = [one for one in outcome.waiting if not one.is_late]
    assert waiting
    assert waiting[-1].reason == "no later record of g has closed it yet"
    assert outcome.summary["hours"]["final"] == 1


# -- clocks, bounds, groups ------------------------------------------------------------------


def test_the_first_run_goes_back_so_far_and_names_what_lies_before(tmp_path: Path) -> None:
    source = Life(1, before=400).at(190).written(tmp_path)
    watcher = Watcher(tmp_path / "state", replace(CALM, back_hours=2))
    outcome = watcher.run(source)
    assert [entry.hour for entry in entries(outcome)] == [T0 + 60, T0 + 120]
    assert outcome.segments_before > 0
    assert watcher.json("summary.json")["covered_from"] == "2013-11-27T01:00Z"
    # However far another run might go: where it begins was said.
    watcher.request = CALM
    assert not watcher.run(source).done


def test_a_clock_that_is_set_back_does_nothing_twice(tmp_path: Path) -> None:
    life, watcher = Life(1), Watcher(tmp_path / "state", CALM)
    watcher.run(life.at(255).written(tmp_path / "a"))
    before = watcher.contents()
    outcome = watcher.run(later(life.at(255).written(tmp_path / "a"), -170))
    assert not outcome.done
    after = watcher.contents()
    assert {path for path in before if before[path] != after.get(path)} == {"summary.json"}


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Berlin", "Pacific/Apia"])
def test_hours_are_those_of_utc_wherever_and_whenever_clocks_change(
    zone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Life(1).at(130).written(tmp_path)
    here = Watcher(tmp_path / "state", CALM)
    here.run(source)
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        there = Watcher(tmp_path / "there", CALM)
        there.run(source)
        # 3 November 2013, 1:30 in New York: an hour that is there twice on a wall.
        for hour in (23_057_220, 23_057_280, 23_057_340):
            assert hour_of_name(hour_name(hour)) == hour
    finally:
        monkeypatch.undo()
        time.tzset()
    assert there.contents() == here.contents()


def test_a_group_that_is_not_there_any_more_is_missed_until_it_is_said_to_be_gone(
    tmp_path: Path,
) -> None:
    def sources(moment: int) -> list[Source]:
        life = Life(1)
        worlds = [life.at(moment), life.at(moment)]
        worlds[1].manifest = msgspec.structs.replace(
            worlds[1].manifest, group="h", storage_uuid="h", node_id="n9"
        )
        return [world.written(tmp_path / f"{moment}-{world.manifest.group}") for world in worlds]

    watcher = Watcher(tmp_path / "state", CALM)
    assert watcher.run(*sources(70)).verdict is Verdict.CLEAN
    outcome = watcher.run(sources(130)[0])
    assert outcome.verdict is Verdict.INCOMPLETE
    assert "group h is expected, and none of the manifests is of it" in outcome.done[0].problems
    assert watcher.run(sources(130)[0]).verdict is Verdict.INCOMPLETE, "and missed until it is said"
    watcher.request = replace(CALM, without_groups=("h",))
    outcome = watcher.run(sources(190)[0])
    assert outcome.verdict is Verdict.CLEAN
    assert all(entry.is_final for entry in entries(outcome))
    watcher.request = CALM
    assert watcher.run(sources(255)[0]).verdict is Verdict.CLEAN, "it is remembered"
    both = {one["group"]: one["accepted"] for one in watcher.json("summary.json")["groups"]}
    assert both["g"] > both["h"] > 0


def test_another_log_of_the_same_group_is_refused(tmp_path: Path) -> None:
    source = Life(1).at(70).written(tmp_path)
    watcher = Watcher(tmp_path / "state", CALM)
    watcher.run(source)
    other = "00000000-0000-4000-8000-000000000001"
    changed = msgspec.structs.replace(source.manifest, log_uuid=other)
    with pytest.raises(ReconcileError, match="another log than before"):
        watcher.run(Source(changed, source.root))


def test_a_replica_that_differs_is_named_in_its_hour(tmp_path: Path) -> None:
    life = Life(1)
    first = life.at(190).written(tmp_path / "a")
    place = next(place for place, row in enumerate(life.rows) if T0 + 60 <= row.minute < T0 + 120)
    row = life.rows[place]
    message = replace(row.message, id_hash=row.message.id_hash ^ 1)
    life.rows[place] = replace(row, message=message)
    world = life.at(190)
    world.manifest = msgspec.structs.replace(world.manifest, node_id="n0", storage_uuid="copy")
    watcher = Watcher(tmp_path / "state", CALM)
    outcome = watcher.run(first, world.written(tmp_path / "b"))
    found = {entry.hour: entry.findings for entry in outcome.done}
    assert found == {T0: {}, T0 + 60: {"replica_differs": 1}, T0 + 120: {}}


# -- the state directory ---------------------------------------------------------------------


def test_old_hours_are_forgotten_with_all_that_the_index_has_of_them(tmp_path: Path) -> None:
    life = Life(1)
    watcher = Watcher(tmp_path / "state", replace(CALM, keep_days=1))
    source = life.at(255).written(tmp_path / "a")
    hours = [entry.hour for entry in entries(watcher.run(source))]
    assert hours == [T0 + 60 * hour for hour in range(4)]
    outcome = watcher.run(later(source, 1440 - 60))
    assert [entry.hour for entry in entries(outcome) if entry.is_final] == hours[3:]
    kept = {path.name for path in (watcher.root / HOURS).iterdir()}
    assert kept == {hour_name(entry.hour) for entry in entries(outcome)}
    assert outcome.summary["covered_from"] == "2013-11-27T03:00Z"
    [index] = (watcher.root / "index").iterdir()
    assert min(set(pq.read_table(index)["hour"].to_pylist()) - {-1}) == hours[3]
    again = watcher.run(later(source, 1440 - 60))
    assert not any(entry.is_final for entry in again.done), "what is forgotten is not done again"


def test_two_runs_at_once_are_one_and_an_error(tmp_path: Path) -> None:
    source = Life(1).at(70).written(tmp_path / "data")
    state = tmp_path / "state"
    state.mkdir()

    def sources(_: int | None) -> list[Source]:
        with pytest.raises(ReconcileError, match=f"another run is at work in {state}"):
            run_hours(StateDirectory(state), lambda _: [source], CALM, local_engine(1))
        return [source]

    outcome = run_hours(StateDirectory(state), sources, CALM, local_engine(1))
    assert len(outcome.done) == 1


def test_what_is_not_ours_stays_in_the_state_directory(tmp_path: Path) -> None:
    life, watcher = Life(1), Watcher(tmp_path / "state", CALM)
    watcher.run(life.at(70).written(tmp_path / "a"))
    strangers = [watcher.root / HOURS / "notes.txt", watcher.root / "README"]
    for path in strangers:
        path.write_bytes(b"mine")
    watcher.run(life.at(130).written(tmp_path / "b"))
    assert all(path.read_bytes() == b"mine" for path in strangers)


@pytest.mark.parametrize("path", ["summary.json", "hours/*/result.json", "index/*.parquet"])
def test_a_damaged_state_directory_is_an_error_that_says_what_to_do(
    path: str, tmp_path: Path
) -> None:
    life, watcher = Life(1), Watcher(tmp_path / "state", CALM)
    watcher.run(life.at(70).written(tmp_path / "a"))
    source = life.at(130).written(tmp_path / "b")
    [file] = watcher.root.glob(path)
    file.write_bytes(b"{ damaged")
    with pytest.raises(ReconcileError, match=r"cannot be read: .*remove it"):
        watcher.run(source)
    file.unlink()
    assert watcher.run(source).done


def test_names_of_hours_are_read_and_others_are_not_ours() -> None:
    assert hour_of_name("2013-11-27T00Z") == T0
    for name in ("notes.txt", "2013-11-27T00", "2013-13-27T00Z", "2013-11-27T00Z.tmp", ""):
        assert hour_of_name(name) is None


# -- hours that are repaired afterwards -------------------------------------------------------


def lines_of(watcher: Watcher, outcome: Outcome, source: Source) -> Iterator[Answer]:
    """Yield what an audit says of each repair: of what is lost and missing."""
    for entry in outcome.done:
        for row in watcher.table(entry, "findings").to_pylist():
            if row["class"] in {"lost", "missing"}:
                yield msgspec.structs.replace(
                    answer(row["sequence"], kind=row["class"]),
                    log_uuid=source.manifest.log_uuid,
                    filed_minute=row["filed_minute"],
                    message_id=row["message_id"],
                )


def audited(path: Path, lines: list[Answer]) -> Repairs:
    with Audit(path) as audit:
        audit.append(lines)
    return read_repairs([path])


@each_seed(3, quick=1)
def test_what_is_repaired_afterwards_is_as_if_it_had_been_known(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    life = Life(seed, frozenset({"no_fact", "missing", "duplicate", "doubled"}), share=0.2)
    source = life.at(255).written(tmp_path / "data")
    watcher = Watcher(tmp_path / "state")
    outcome = watcher.run(source)
    every = [one for one in lines_of(watcher, outcome, source) if chance.random() < 0.8]
    repairs = audited(tmp_path / "a", every)
    again = watcher.run(source, repairs=repairs)
    hours = {line.filed_minute // 60 * 60 for line in every}
    assert {entry.hour for entry in again.done} == hours, "no other hour is done once more"
    knowing = Watcher(tmp_path / "knowing")
    knowing.run(source, repairs=repairs)
    assert watcher.json("summary.json") == knowing.json("summary.json")
    before, after = (sum(one.summary["findings"].values()) for one in (outcome, again))
    assert after == before - len(every)
    [group] = again.summary["groups"]
    assert sum(group["states"].values()) == group["accepted"], "states still add up"
    assert group["states"]["repaired"] + group["log"]["repaired"] == len(every)
    # What an hour was told of stays told, and the same audit makes nothing more of it.
    assert not watcher.run(source).done
    assert not watcher.run(source, repairs=repairs).done
    assert watcher.json("summary.json") == again.summary


def test_an_hour_of_which_a_segment_was_deleted_stays_what_it_was(tmp_path: Path) -> None:
    life = Life(1, frozenset({"no_fact"}), share=0.5)
    source = life.at(130).written(tmp_path / "data")
    watcher = Watcher(tmp_path / "state", replace(HOURLY, open_hours=10))
    outcome = watcher.run(source)
    every = list(lines_of(watcher, outcome, source))
    assert {line.filed_minute // 60 * 60 for line in every} == {T0, T0 + 60}
    [first, *others] = source.manifest.sealed
    assert T0 <= first.start_minute < T0 + 60
    sealed = (msgspec.structs.replace(first, deleted=True), *others)
    manifest = msgspec.structs.replace(source.manifest, sealed=sealed)
    repairs = audited(tmp_path / "a", every)
    again = watcher.run(Source(manifest, source.root), repairs=repairs)
    assert [entry.hour for entry in again.done] == [T0 + 60]
    assert again.results[T0] == outcome.results[T0]
