"""`log verify` and `log dump` look at the operator's rules too, and name what is wrong in them."""

from pathlib import Path

import pytest

from storage.state.controls_file import CONTROLS_PATH, controls_file
from storage.tools.inspect import dump_files
from tests.golden.directory import written
from tests.storage.store_rig import StoreRig
from tests.storage.tools.test_inspect import damage_in


def operated() -> dict[str, bytes]:
    """Return the files of a node that was told rules."""
    rig = StoreRig(1)
    rig.open()
    controls_file(rig.disk, rig.store.identity.log_uuid).write(b'{"version":6}')
    return rig.disk.contents()


def test_whole_rules_are_looked_at_and_shown(tmp_path: Path) -> None:
    root = written(operated(), tmp_path)
    assert damage_in(root) == {}
    shown = [record for record in dump_files(root) if record["file"] == CONTROLS_PATH]
    assert [one["content"] for one in shown] == ['{"version":6}']


@pytest.mark.parametrize("step", [1, 7])
def test_every_byte_of_the_rules_is_checked(tmp_path: Path, step: int) -> None:
    files = operated()
    whole = files[CONTROLS_PATH]
    for at in range(0, len(whole), 5):
        struck = bytearray(whole)
        struck[at] ^= step
        found = damage_in(written({**files, CONTROLS_PATH: bytes(struck)}, tmp_path))
        assert list(found) == [CONTROLS_PATH]
        (damage,) = found[CONTROLS_PATH]
        position = int(damage.partition(":")[0])
        assert position <= at < position + 100


def test_of_damaged_rules_the_dump_says_what_it_can(tmp_path: Path) -> None:
    files = operated()
    files[CONTROLS_PATH] = files[CONTROLS_PATH][:70]
    damages = [record for record in dump_files(written(files, tmp_path)) if "damage" in record]
    assert [record["file"] for record in damages] == [CONTROLS_PATH]
