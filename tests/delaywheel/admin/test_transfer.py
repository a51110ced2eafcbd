"""`delaywheel admin export` and `import` move the rows of a store that nobody is using."""

import stat
from pathlib import Path
from uuid import UUID

from click.testing import CliRunner, Result

from delaywheel.main import main
from delaywheel.shared.failures import ExitCode
from meta_server.sql.tables import SCHEMA
from storage.disk.disk import DirectoryDisk


def run(command: str, folder: Path, file: Path) -> Result:
    url = f"sqlite:///{folder / 'meta.db'}"
    return CliRunner().invoke(main, ["admin", command, "--store", url, str(file)])


def test_rows_move_from_a_store_to_an_empty_one_while_no_server_runs(tmp_path: Path) -> None:
    old, new, file = tmp_path / "old", tmp_path / "new", tmp_path / "rows.jsonl"
    old.mkdir()
    assert run("export", old, file).exit_code == ExitCode.USAGE
    assert not (old / "meta.db").exists()
    file.write_bytes(
        b'{"schema":%d,"store":"%s","timestamp_ms":7}\n'
        b'{"kind":"subject","row":{"version":3,"name":"paid","created_ms":0}}\n'
        b'{"lines":2}\n' % (SCHEMA, str(UUID(int=5)).encode())
    )
    assert run("import", old, file).exit_code == ExitCode.LOGS
    assert list(old.iterdir()) == []
    file.write_bytes(file.read_bytes().replace(b'"lines":2', b'"lines":1'))
    assert "1 rows" in run("import", old, file).output
    copy = tmp_path / "copy.jsonl"
    assert run("export", old, copy).exit_code == 0
    assert run("import", new, copy).exit_code == 0
    assert {stat.S_IMODE(path.stat().st_mode) for path in (copy, old / "meta.db")} == {0o600}
    assert run("import", new, copy).exit_code == ExitCode.REFUSED
    with DirectoryDisk(old).lock("lock"):
        assert run("export", old, copy).exit_code == ExitCode.DATA_DIRECTORY
    assert run("export", new, file).exit_code == 0
    assert file.read_bytes() == copy.read_bytes()
