"""Known errors end in a sentence and a code; unknown ones keep their traceback."""

import re
from pathlib import Path

import pytest

from delay_server.settings.errors import NodeRefusedError
from delay_transport.seams.errors import AddressError, ConfigError, ConnectError, ListenError
from delaywheel.shared.failures import ExitCode, failure_of
from meta_server.known.errors import StoreUnavailableError, StoreUnusableError
from storage.disk import errors


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError(source="a.toml", key="wheel.slot", reason="no such setting"), 2),
        (AddressError(text="x", reason="the port is missing"), 2),
        (errors.DataDirectoryError("in use"), 3),
        (errors.NotPermittedError("not yours"), 3),
        (errors.NotRegularFileError("a FIFO"), 3),
        (NodeRefusedError(node="n1 of d1", meta="m:1", reason="a copy"), 3),
        (errors.DamagedError(path="a", position=1, reason="crc"), 4),
        (errors.UnsupportedFormatError(path="a", position=1, reason="version 9"), 4),
        (errors.LogStateError("contradiction"), 4),
        (StoreUnusableError("damaged"), 4),
        (errors.FatalDiskError("fsync"), 5),
        (errors.OpenError("open"), 5),
        (errors.StorageFullError("full"), 5),
        (StoreUnavailableError("away"), 5),
        (ListenError(address="127.0.0.1:1", reason="in use"), 6),
        (ConnectError(address="127.0.0.1:1", reason="refused"), 6),
    ],
)
def test_every_known_error_has_its_code_and_keeps_its_sentence(error: Exception, code: int) -> None:
    failure = failure_of(error)
    assert failure is not None
    assert failure.exit_code == code
    assert failure.message == str(error)


def test_a_group_of_known_errors_ends_as_its_first() -> None:
    group = ExceptionGroup("nursery", [ExceptionGroup("inner", [errors.FatalDiskError("fsync")])])
    failure = failure_of(group)
    assert failure is not None
    assert failure.exit_code == ExitCode.DISK
    assert failure.message == "fsync"


def test_an_unknown_error_has_no_place_nor_has_a_group_that_hides_one() -> None:
    assert failure_of(ZeroDivisionError()) is None
    group = ExceptionGroup("nursery", [errors.FatalDiskError("fsync"), ZeroDivisionError()])
    assert failure_of(group) is None


def test_what_an_error_repeats_of_others_moves_no_cursor() -> None:
    failure = failure_of(ConfigError(source="--set a\x1b[2J", key="", reason="no"))
    assert failure is not None
    assert failure.message == "--set a\\x1b[2J: no"


def test_the_pages_name_the_exit_codes_that_there_are() -> None:
    docs = Path(__file__).parents[3] / "docs"
    there_are = {0, 1, *ExitCode}
    table = re.findall(r"^\| (\d) \|", (docs / "configuration.md").read_text(), re.MULTILINE)
    assert set(map(int, table)) == there_are
    runbook = (docs / "operating.md").read_text()
    named = re.findall(
        r"^\| (\d), |exit code (\d)|systemd restarts on ([\d, ]+)", runbook, re.MULTILINE
    )
    assert set(map(int, re.findall(r"\d", str(named)))) <= there_are
