"""`log verify` and `log dump` look at the operator's files too, and name what is wrong in them."""

from pathlib import Path
from typing import Any

import pytest

from storage.state.audit_file import audit_path, encode_audit_line
from storage.state.controls_file import CONTROLS_PATH, write_controls_document
from storage.tools.inspect import dump_records, verify_files
from tests.storage.store_rig import StoreRig
from tests.storage.tools.test_inspect import damage_in, written

LINES = [
    encode_audit_line(
        {"at_ms": number, "who": "al", "action": "set subject", "target": "t", "version": number}
    )
    for number in range(1, 7)
]


def operated() -> dict[str, bytes]:
    """Return the files of a node whose operator has changed rules, and the log of a crash."""
    rig = StoreRig(1)
    rig.open()
    write_controls_document(rig.disk, rig.store.identity.log_uuid, b'{"version":6}')
    files = rig.disk.contents()
    files[audit_path(4)] = b"".join(LINES[:3])
    files[audit_path(5)] = b"".join(LINES[3:]) + LINES[0][:20]
    return files


def test_whole_files_of_an_operator_are_looked_at_and_shown(tmp_path: Path) -> None:
    root = written(operated(), tmp_path)
    assert damage_in(root) == {}
    reports = {str(report["file"]): report for report in verify_files(root)}
    assert reports[CONTROLS_PATH]["kind"] == "CONTROLS"
    counts = [
        (reports[audit_path(n)]["records"], reports[audit_path(n)]["tail bytes"]) for n in (4, 5)
    ]
    assert counts == [(3, 0), (3, 20)]
    shown: dict[str, list[dict[str, Any]]] = {}
    for record in dump_records(root):
        shown.setdefault(str(record["file"]), []).append(dict(record))
    assert [one["document"] for one in shown[CONTROLS_PATH]] == ['{"version":6}']
    assert [one["entry"] for one in shown[audit_path(4)]] == [
        line.decode().rstrip() for line in LINES[:3]
    ]


@pytest.mark.parametrize("step", [1, 7])
def test_every_byte_of_them_is_checked(tmp_path: Path, step: int) -> None:
    files = operated()
    for path in (CONTROLS_PATH, audit_path(4)):
        whole = files[path]
        for at in range(0, len(whole), 5):
            struck = bytearray(whole)
            struck[at] ^= step
            found = damage_in(written({**files, path: bytes(struck)}, tmp_path))
            assert list(found) == [path]
            (damage,) = found[path]
            position = int(damage.partition(":")[0])
            assert position <= at < position + (len(LINES[0]) if path != CONTROLS_PATH else 100)


def test_what_is_missing_of_them_is_named_as_far_as_anything_tells_of_it(tmp_path: Path) -> None:
    files = operated()
    files[audit_path(4)] = files[audit_path(4)][:-5]
    assert damage_in(written(files, tmp_path / "cut")) == {
        audit_path(4): [f"{len(LINES[0]) * 2}: the line is no JSON"]
    }
    files = operated()
    files[audit_path(7)] = files.pop(audit_path(5))
    assert damage_in(written(files, tmp_path / "gap")) == {
        audit_path(4): [f"{len(LINES[0]) * 3}: 5 to 6 are missing"]
    }
    files = operated()
    del files[CONTROLS_PATH]
    assert damage_in(written(files, tmp_path / "gone")) == {CONTROLS_PATH: ["0: the file is gone"]}
    for path in (audit_path(4), audit_path(5)):
        files[path] = files[path].replace(b"set subject", b"drain")
    # Without their CRCs nothing is believed.
    assert CONTROLS_PATH not in damage_in(written(files, tmp_path / "never"))


def test_of_a_damaged_directory_they_say_what_they_can(tmp_path: Path) -> None:
    files = operated()
    files[CONTROLS_PATH] = files[CONTROLS_PATH][:70]
    files[audit_path(4)] = b"\0" * 300 + files[audit_path(4)]
    damages = [record for record in dump_records(written(files, tmp_path)) if "damage" in record]
    assert [record["file"] for record in damages] == [CONTROLS_PATH, audit_path(4)]
