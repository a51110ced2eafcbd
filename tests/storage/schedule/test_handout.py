"""Rows are held by whoever has them; cursors, lanes and open minutes follow, within bounds."""

import random
from itertools import chain

import numpy as np
import pytest

from storage.batch.entries import Entries
from storage.disk.spans import MINUTE_MS
from storage.schedule import handout as handout_module
from storage.schedule.handout import held_rows
from storage.schedule.loading import DrainJob, LoadJob, Reading
from storage.schedule.row_places import SequenceSet
from tests.simulation.faults import Action, Trap
from tests.storage.schedule.test_loading import START_MS, Model
from tests.storage.small_logs import facts_batch


def model_of(*due_ms: list[int], subjects: int = 1) -> Model:
    """Return a model with a batch of rows for each list, written to disk, of subjects in turn."""
    model = Model(random.Random(0))
    for times in due_ms:
        model.file(times, [place % subjects for place in range(len(times))])
        model.log.flush(model.now_ms)
    return model


def run(reading: Reading | None, step: int = 10_000) -> Entries:
    """Read to the end; return what is handed out."""
    assert reading is not None
    found, done = [], False
    while not done:
        entries, done = reading.step(step)
        found.append(entries)
    return np.concatenate(found)


def sequences_of(entries: Entries) -> list[int]:
    found: list[int] = entries["sequence"].tolist()
    return found


def load_of(model: Model, ahead_ms: int = 1000, rows_max: int = 10**6) -> LoadJob | None:
    return model.handout.begin_load(model.now_ms + ahead_ms, rows_max=rows_max, now_ms=model.now_ms)


def drain_of(model: Model, lane: int, rows_max: int = 10**6) -> DrainJob | None:
    return model.handout.begin_drain(lane, model.now_ms, rows_max=rows_max)


def assign(model: Model, lane: int, *subjects: int) -> None:
    model.handout.assign(np.array([model.number(subject) for subject in subjects]), lane)


def test_a_slice_ends_inside_a_millisecond_in_which_too_much_is_due() -> None:
    model = model_of([START_MS + 5] * 100)
    taken: list[list[int]] = []
    while (job := load_of(model, rows_max=30)) is not None:
        taken.append(sequences_of(run(job)))
    assert list(map(len, taken)) == [30, 30, 30, 10]
    assert list(chain(*taken)) == list(range(1, 101))


def test_a_slice_is_drawn_by_rows_that_are_neither_held_nor_settled() -> None:
    model = model_of([START_MS + place for place in range(100)])
    model.load(1000, 1000, 10_000)
    model.now_ms += 90
    model.pop(90)
    model.deliver(1)
    model.note(1)
    model.give_back(list(model.wheel))
    model.handout.remember()
    model.wheel.clear()
    model.load(1000, 9, 10_000)
    assert sorted(model.wheel) == list(range(91, 100))


@pytest.mark.parametrize("facts", [False, True], ids=["rows", "facts"])
def test_what_cannot_be_read_is_left_out_until_the_next_start_and_all_else_is_loaded(
    *, facts: bool
) -> None:
    model = model_of([START_MS + place * MINUTE_MS for place in (5, 6, 6, 7)], subjects=3)
    middle = model.log.segments[sorted(model.log.segments)[1]].key
    [row] = [row for row in model.rows.values() if row.sequence == 2]
    told = facts_batch(model.next_sequence, model.facts_of([row]), floor_minute=model.floor)
    model.log.apply(told, now_ms=model.now_ms)
    model.log.file_facts(model.now_ms)
    model.next_sequence += 1
    path = middle.facts_path if facts else middle.path

    def struck(_kind: str, wanted: str, _label: str) -> bool:
        return wanted == path

    model.disk.arm(Trap(action=Action.EIO, kinds=frozenset({"open_read"}), when=struck))
    assert sequences_of(run(load_of(model, ahead_ms=9 * MINUTE_MS))) == [1, 4]
    assert [damage.path for damage in model.damages] == [path]
    # Others come meanwhile, and are loaded: nothing stands before them.
    model.file([START_MS + 20 * MINUTE_MS], [0])
    assert sequences_of(run(load_of(model, ahead_ms=30 * MINUTE_MS))) == [6]
    # Facts that could not be read are not read again: who reads the minute anew gets nothing.
    model.handout = model.log.hand_out()
    read = sequences_of(run(load_of(model, ahead_ms=9 * MINUTE_MS)))
    assert read == ([1, 4] if facts else [1, 3, 4])


def test_a_lane_fits_where_what_is_to_come_of_it_does() -> None:
    model = model_of([START_MS + 1000 + place for place in range(100)])
    assign(model, 1, 0)
    assert len(run(load_of(model, ahead_ms=60_000))) == 0
    for rows_max, fits in ((99, False), (100, True)):
        job = model.handout.begin_fit(1, model.now_ms, rows_max=rows_max)
        assert job is not None
        assert len(run(job)) == 0
        assert (job.fits, job.until) == (fits, job.until)
    assign(model, 0, 0)
    assert len(run(load_of(model, ahead_ms=60_000))) == 100


def test_a_lane_does_not_end_while_lane_0_is_behind_what_is_due() -> None:
    model = model_of([START_MS + place for place in range(100)])
    assign(model, 1, 0)
    model.now_ms += MINUTE_MS
    assert model.handout.begin_fit(1, model.now_ms, rows_max=10) is None


def test_a_minute_of_which_little_is_held_is_thinned_out_and_its_rows_are_handed_out_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handout_module, "PLACES_MAX", 100)
    chance = random.Random(3)
    model = Model(chance)
    for minute in range(6):
        for _ in range(10):
            at = START_MS + minute * MINUTE_MS
            model.file([at + chance.randrange(1000) for _ in range(8)], [0] * 8)
            model.log.flush(model.now_ms)
    model.load(7 * MINUTE_MS, 10**6, 10**6)
    held = dict(model.entries)
    assert len(held) == 480
    kept = set(chance.sample(sorted(held), 9))
    settled = set(chance.sample(sorted(held.keys() - kept), 200))
    model.now_ms += 8 * MINUTE_MS
    model.sender, model.wheel = {n: model.rows[n] for n in held}, {}
    model.unnoted = {n: model.sender.pop(n) for n in settled}
    model.note(1)
    back = sorted(held.keys() - kept - settled)
    model.handout.give_back(np.concatenate([model.entries.pop(n) for n in back]))
    for n in back:
        del model.sender[n]
    model.handout.heed()
    model.handout._thin_out()
    assert model.handout._open_rows == 9
    again = run(load_of(model, ahead_ms=MINUTE_MS))
    assert sorted(sequences_of(again)) == back
    model._hold(again)
    for part in (kept, back):
        entries = np.concatenate([model.entries.pop(n) for n in part])
        model.handout.settle(held_rows(entries))
    model.handout.heed()
    assert (model.handout._open_rows, model.handout._minutes) == (0, {})
    assert not model.handout._held_of.any()


def test_lanes_that_are_behind_open_no_minutes_beyond_the_room_and_loading_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handout_module, "PLACES_MAX", 10)
    minutes = [START_MS + place * MINUTE_MS for place in range(4)]
    model = model_of(*[[at + place for place in range(6)] for at in minutes])
    assign(model, 1, 0)
    run(load_of(model, ahead_ms=6 * MINUTE_MS))
    model.now_ms += 5 * MINUTE_MS
    held = run(drain_of(model, 1, rows_max=12))
    assert len(held) == 12
    assert model.handout._open_rows == 12
    # A row of each minute is enough to keep it open.
    model.handout.give_back(held[[0, 1, 6, 7]])
    found = run(drain_of(model, 1))
    assert sequences_of(found) == sequences_of(held[[0, 1, 6, 7]])
    assert drain_of(model, 1) is None
    fit = model.handout.begin_fit(1, model.now_ms, rows_max=10**6)
    run(fit)
    assert fit is not None
    assert not fit.fits
    # What is due now is loaded all the same.
    model.file([model.now_ms + 100], [1])
    assert len(model.wheel) + len(run(load_of(model, ahead_ms=6 * MINUTE_MS))) == 1
    model.handout.settle(held_rows(np.concatenate([held])))
    assert len(run(drain_of(model, 1))) == 12


@pytest.mark.parametrize("spread", [1, 3, 1000, 10**9])
def test_a_set_of_sequences_knows_its_own_dense_or_not(spread: int) -> None:
    chance = np.random.default_rng(spread)
    own = np.unique(chance.integers(1, 500 * spread + 1, 500))
    asked = np.concatenate([own, own + 1, own - 1, [0, 2**62]])
    known = SequenceSet([own[:100], own[50:]]).contains(asked)
    assert known.tolist() == np.isin(asked, own).tolist()
    assert not SequenceSet([]).contains(asked).any()
