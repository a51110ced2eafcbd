"""What people type for delays, moments and attributes means what they think, or is refused."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pytest
from click.testing import CliRunner

from delaywheel.main import main
from delaywheel.shared.parameters import DELAY, MINUTE, MOMENT, PAIR
from tests.delaywheel.endings import refused


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0", 0),
        ("30s", 30),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("1h30m", 5400),
        ("1d 12h", 129_600),
        ("2W", 1_209_600),
        ("5min", 300),
    ],
)
def test_a_delay_is_a_number_with_units(text: str, seconds: float) -> None:
    assert DELAY.convert(text, None, None) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "soon", "-5s", "5 parsecs", "1h-", "s", "nan", "1e3", "9" * 30]
)
def test_what_is_no_delay_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        DELAY.convert(text, None, None)


@pytest.mark.parametrize("value", ["nan", "-nan", "inf", "-inf", "Infinity", "1e400", "-1", "x"])
@pytest.mark.parametrize(
    "command",
    [
        ("limit", "--meta", "127.0.0.1:1", "--group", "g", "--rate"),
        ("weight", "--meta", "127.0.0.1:1", "--group", "g", "--weight"),
        ("drain", "--seconds"),
        ("status", "--every"),
        ("topology", "--every"),
    ],
)
def test_a_number_that_is_none_is_refused_before_anybody_is_asked(
    command: tuple[str, ...], value: str
) -> None:
    refused(CliRunner().invoke(main, [*command, value]), 2, "Invalid value")


def test_no_command_takes_a_number_with_a_fraction_that_may_be_infinite() -> None:
    assert dict(_fractions(main, ())) == {}


def _fractions(
    command: click.Command, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.ParamType[Any]]]:
    """Yield the type of each option of a command, and those below it, that is such a number."""
    for parameter in command.params:
        if isinstance(parameter.type, click.types.FloatParamType | click.FloatRange):
            yield (*path, parameter.name or ""), parameter.type
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            one = command.get_command(context, name)
            assert one is not None
            yield from _fractions(one, (*path, name))


def test_a_moment_keeps_its_zone() -> None:
    found = MOMENT.convert("2026-12-24T18:00:00+01:00", None, None)
    assert found == datetime(2026, 12, 24, 17, tzinfo=UTC)


def test_a_moment_without_a_zone_is_local_time() -> None:
    found = MOMENT.convert("2026-12-24T18:00:00", None, None)
    assert found.tzinfo is not None
    assert found.replace(tzinfo=None) == datetime(2026, 12, 24, 18)  # noqa: DTZ001 (local, on purpose)


@pytest.mark.parametrize("text", ["", "tomorrow", "2026-13-01"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        MOMENT.convert(text, None, None)


@pytest.mark.parametrize(
    "text", ["2026-12-24T17:00", "2026-12-24T17:00Z", "2026-12-24T18:00+01:00"]
)
def test_a_minute_without_a_zone_is_utc(text: str) -> None:
    assert MINUTE.convert(text, None, None) == 29_968_860


@pytest.mark.parametrize("text", ["yesterday", "2026-12-24T17:00:30Z", "1969-12-31T23:59Z", ""])
def test_what_is_no_whole_minute_since_1970_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        MINUTE.convert(text, None, None)


def test_a_pair_is_split_at_its_first_equals_sign() -> None:
    assert PAIR.convert("a=b=c", None, None) == ("a", "b=c")
    assert PAIR.convert("a=", None, None) == ("a", "")


@pytest.mark.parametrize("text", ["a", "=b", ""])
def test_what_is_no_pair_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        PAIR.convert(text, None, None)
