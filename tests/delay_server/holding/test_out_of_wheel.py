"""What has left the wheel is found whatever it lies in: one array, or thousands of them."""

import random

import numpy as np
import pytest

from delay_server.holding import out_of_wheel
from delay_server.holding.out_of_wheel import OutOfWheel
from storage.batch.entries import ENTRY
from storage.disk.spans import MINUTE_MS
from tests.seeds import each_seed


@each_seed(20)
def test_what_is_found_does_not_depend_on_how_it_is_parted(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(out_of_wheel, "_BUNDLE_ENTRIES", chance.choice([1, 7, 100]))
    held = np.zeros(200, ENTRY)
    held["sequence"] = np.arange(1, 201)
    held["subject"] = [chance.randrange(10) for _ in held]
    held["due_ms"] = [chance.randrange(5 * MINUTE_MS) for _ in held]
    held["minute"] = [chance.randrange(5) for _ in held]
    edges = sorted(chance.choices(range(201), k=chance.choice([0, 3, 60])))
    parts = np.split(held, edges)
    unapplied = np.array([900, 901], np.int64)
    found = OutOfWheel(count=lambda: 200, held=lambda: parts, unapplied=lambda: [unapplied])
    wanted = chance.sample(range(10), 3)
    of_subjects = found.of_subjects(np.array(wanted, np.intp)).tolist()
    expected = held["sequence"][np.isin(held["subject"], wanted)].tolist()
    assert of_subjects == [*expected, 900, 901]
    key = (chance.randrange(5 * MINUTE_MS), chance.randrange(200))
    after = [
        sequence
        for sequence, due_ms, minute in zip(
            held["sequence"].tolist(), held["due_ms"].tolist(), held["minute"].tolist(), strict=True
        )
        if (max(due_ms, minute * MINUTE_MS), sequence) > key
    ]
    assert found.after(key).tolist() == [*after, 900, 901]


def test_nothing_held_is_nothing_found() -> None:
    found = OutOfWheel(count=lambda: 0, held=list, unapplied=list)
    assert found.of_subjects(np.array([1], np.intp)).tolist() == []
    assert found.after((0, 0)).tolist() == []
