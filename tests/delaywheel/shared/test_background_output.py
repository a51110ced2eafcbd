"""What nobody reads costs the oldest lines, counted, and never the writer's time."""

import json
import subprocess
import sys

_WRITER = """
import sys
import structlog
from delaywheel.shared.log_output import set_up_log

set_up_log(level="info", form="json")
log = structlog.get_logger("test")
for number in range({count}):
    log.info("x" * 1000, number=number)
print("written", flush=True)
sys.stdin.readline()
{end}
"""
"""A process that logs, waits for a line, and ends."""


def start(*, count: int, end: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _WRITER.format(count=count, end=end)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_the_writer_goes_on_and_the_log_says_how_many_lines_are_missing() -> None:
    with start(count=3000, end="log.info('end')") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"written\n"
        # From here on it is read: what was kept comes, and then the number of the rest.
        process.stdin.write(b"\n")
        process.stdin.close()
        events = [json.loads(line) for line in process.stderr]
        assert process.wait(10) == 0
    numbers = [event["number"] for event in events if "number" in event]
    notices = [event for event in events if "lines" in event]
    assert {event["event"] for event in notices} == {"lines of output were dropped"}
    assert {event["of"] for event in notices} == {2}
    lost = sum(event["lines"] for event in notices)
    assert lost + len(numbers) == 3000
    assert numbers[-1] == 2999
    assert 1_000 < lost < 2_500


def test_the_end_of_a_process_that_crashes_is_written() -> None:
    with start(count=0, end="raise ZeroDivisionError('the last word')") as process:
        _, errors = process.communicate(b"\n", timeout=20)
    assert process.returncode == 1
    assert errors.endswith(b"ZeroDivisionError: the last word\n")


def test_a_stream_that_cannot_be_written_ends_nobody() -> None:
    with start(count=0, end="log.error('nobody reads this'); print('nor this')") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"written\n"
        process.stdout.close()
        process.stderr.close()
        process.stdin.write(b"\n")
        process.stdin.close()
        assert process.wait(10) == 0
