"""Events come out as JSON lines or readable lines, whoever wrote them."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from delaywheel.shared.log_output import set_up_log


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_events_are_one_object_a_line() -> None:
    stream = io.StringIO()
    set_up_log(level="info", form="json", stream=stream)
    log = structlog.get_logger()
    log.info("accepted", subject="flight", path=Path("a/b"))
    log.debug("not this")
    (line,) = stream.getvalue().splitlines()
    event = json.loads(line)
    assert event.pop("timestamp")
    assert event == {"event": "accepted", "level": "info", "subject": "flight", "path": "a/b"}


def test_an_exception_stays_in_its_line() -> None:
    stream = io.StringIO()
    set_up_log(level="info", form="json", stream=stream)
    try:
        int("wrong")
    except ValueError:
        structlog.get_logger().exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["exception"][0]["exc_type"] == "ValueError"


def test_console_events_are_readable_and_plain_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    set_up_log(level="info", form="console", stream=stream)
    structlog.get_logger().warning("late", seconds=3)
    assert "late" in stream.getvalue()
    assert "seconds=3" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_without_a_terminal_auto_is_json() -> None:
    stream = io.StringIO()
    set_up_log(level="info", form="auto", stream=stream)
    structlog.get_logger().info("accepted")
    assert json.loads(stream.getvalue())["event"] == "accepted"


def test_other_libraries_warnings_come_out_alike_and_their_small_talk_does_not() -> None:
    stream = io.StringIO()
    set_up_log(level="debug", form="json", stream=stream)
    logging.getLogger("hypercorn.error").info("running on ...")
    logging.getLogger("hypercorn.error").warning("trouble with %s", "a peer")
    (line,) = stream.getvalue().splitlines()
    event = json.loads(line)
    assert event["event"] == "trouble with a peer"
    assert (event["level"], event["logger"]) == ("warning", "hypercorn.error")


def test_readable_lines_move_no_cursor_whatever_a_peer_sent() -> None:
    stream = io.StringIO()
    set_up_log(level="info", form="console", stream=stream)
    structlog.get_logger().info("refused", subject="a\nb", remark="c\x1b[31m")
    (line,) = stream.getvalue().splitlines()
    assert "a\\nb" in line
    assert "c\\x1b[31m" in line
    assert "\x1b" not in line
