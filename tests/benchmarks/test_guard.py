"""What the guard says of pairs of runs."""

from pathlib import Path

import pytest

from benchmarks.guard import PAIRS, baseline_in, judge


@pytest.mark.parametrize(
    ("quotients", "said", "is_dearer"),
    [
        ([1.0] * PAIRS, "as before", False),
        ([1.09, 1.05, 1.08, 1.1, 1.07, 1.06, 1.09], "as before", False),
        ([1.2, 1.21, 1.19, 1.22, 1.18, 1.2, 1.2], "DEARER", True),
        ([0.5, 1.9, 1.4, 0.8, 1.3, 1.6, 1.2], "cannot tell", False),
    ],
)
def test_what_is_dearer_is_told_unless_the_pairs_do_not_agree(
    quotients: list[float], said: str, is_dearer: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = [({"ingest": one * 40}, {"ingest": 40.0}) for one in quotients]
    assert judge(pairs) is is_dearer
    assert said in capsys.readouterr().out


def test_a_baseline_that_is_not_in_the_clone_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.guard._ROOT", tmp_path)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "baseline").write_text("0" * 40)
    assert baseline_in(tmp_path / "there") is None
