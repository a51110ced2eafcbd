"""Promise: an audit survives being cut anywhere, belongs to one process, and says what it is."""

import zlib
from pathlib import Path

import pytest

from spark_tools.files.errors import ReconcileError
from spark_tools.repaired.repair_audit import Answer, Audit, read_audit


def answer(
    sequence: int, result: str = "accepted", *, kind: str = "lost", group: str = "g"
) -> Answer:
    return Answer(
        at_ms=3, who="me", kind=kind, cluster="c", group=group, log_uuid="u",
        sequence=sequence, filed_minute=sequence // 10, message_id=f"id-{sequence}", subject="s",
        due_ms=7, result=result, by="a:1", reason=None,
    )  # fmt: skip


LINES = (answer(11), answer(12, "refused"), answer(13), answer(14, kind="missing"), answer(15))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for line in LINES:
        with Audit(path) as audit:
            audit.append([line])
    assert tuple(read_audit(path)) == LINES
    assert path.read_bytes().startswith(b'{"at_ms":3,"who":"me"')


def test_an_audit_that_was_cut_anywhere_goes_on_behind_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with Audit(path) as audit:
        audit.append(LINES)
    data = path.read_bytes()
    ends = [place + 1 for place, byte in enumerate(data) if byte == ord("\n")]
    lengths = {end + more for end in ends for more in (-1, 0, 1)} | set(range(0, len(data), 41))
    for length in sorted(lengths):
        path.write_bytes(data[:length])
        whole = data[:length].count(b"\n")
        assert tuple(read_audit(path)) == LINES[:whole]
        with Audit(path) as audit:
            audit.append([answer(99)])
        assert tuple(read_audit(path)) == (*LINES[:whole], answer(99))


def test_a_torn_end_longer_than_what_is_read_at_a_time_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_tools.repaired.repair_audit._PIECE", 100)
    path = tmp_path / "a.jsonl"
    with Audit(path) as audit:
        audit.append(LINES)
    with path.open("ab") as file:
        file.write(b"\0" * 1000)
    assert tuple(read_audit(path)) == LINES
    with Audit(path) as audit:
        audit.append([answer(99)])
    assert tuple(read_audit(path)) == (*LINES, answer(99))


def test_a_damaged_line_is_told_and_hides_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with Audit(path) as audit:
        audit.append(LINES)
    data = path.read_bytes()
    at = data.rindex(b'"accepted"')
    path.write_bytes(data[:at] + b'"accEpted"' + data[at + 10 :])
    found = list(read_audit(path))
    assert found[-1] is None
    assert tuple(found[:-1]) == LINES[:-1]


def test_an_audit_belongs_to_one_process_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with (
        Audit(path) as audit,
        pytest.raises(ReconcileError, match="another repair"),
        Audit(path),
    ):
        pass
    with Audit(path) as audit:
        audit.append([answer(99)])
    assert list(read_audit(path)) == [answer(99)]


def test_another_kind_of_audit_and_a_file_without_lines_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    body = b'{"at_ms":1,"who":"alice"'
    for data in (body + b"}\n", b'%b,"crc":"%08x"}\n' % (body, zlib.crc32(body))):
        path.write_bytes(data)
        with pytest.raises(ReconcileError, match="no audit of repairs"):
            list(read_audit(path))
    monkeypatch.setattr("spark_tools.repaired.repair_audit._LINE_MAX", 100)
    path.write_bytes(bytes(1000))
    with pytest.raises(ReconcileError, match="no lines"):
        list(read_audit(path))
