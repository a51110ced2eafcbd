"""Promise: a record has one JSON object a line, and what was recorded is there for others."""

import json
from pathlib import Path

from bridges.recorder import Delivery, Recorder


def test_lines_can_be_read_while_the_recorder_is_open(tmp_path: Path) -> None:
    path = tmp_path / "record"
    recorder = Recorder(path)
    recorder.record([Delivery("m1", "s", 5, 7), Delivery("m2", "s\n", 6, 8)])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [
        {"message_id": "m1", "subject": "s", "due_ms": 5, "received_ms": 7},
        {"message_id": "m2", "subject": "s\n", "due_ms": 6, "received_ms": 8},
    ]
    recorder.close()


def test_a_record_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    path = tmp_path / "record"
    for name in ("m1", "m2"):
        recorder = Recorder(path)
        recorder.record([Delivery(name, "s", 5, 7)])
        recorder.close()
    names = [json.loads(line)["message_id"] for line in path.read_text().splitlines()]
    assert names == ["m1", "m2"]
