"""An answer is shown once or again and again, to people as tables, to programs as JSON."""

import json
from collections.abc import Callable

import pytest

from delaywheel.shared.admin_client import Json
from delaywheel.shared.terminal import show


class NobodyAnswersError(Exception):
    """Ends what is shown for ever."""


def asking(times: int) -> Callable[[], Json]:
    """Return what answers so often, each time with another number."""
    answers = iter([{"asked": number} for number in range(times)])

    def ask() -> Json:
        for answer in answers:
            return answer
        raise NobodyAnswersError

    return ask


def render(found: Json) -> str:
    return f"asked: {found['asked']}"


def test_once_it_is_asked_once(capsys: pytest.CaptureFixture[str]) -> None:
    show(asking(1), render, as_json=False, every=None)
    assert capsys.readouterr().out == "asked: 0\n"


def test_json_that_is_shown_once_is_for_reading(capsys: pytest.CaptureFixture[str]) -> None:
    show(asking(1), render, as_json=True, every=None)
    assert capsys.readouterr().out == '{\n  "asked": 0\n}\n'


def test_the_newest_answer_is_shown_until_somebody_stops_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(NobodyAnswersError):
        show(asking(3), render, as_json=False, every=0.001)
    assert "asked: 2" in capsys.readouterr().out


def test_json_that_is_shown_again_and_again_has_a_line_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(NobodyAnswersError):
        show(asking(3), render, as_json=True, every=0.001)
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [{"asked": number} for number in range(3)]
