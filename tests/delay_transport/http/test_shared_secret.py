"""The file of the secret: who may read it, what is in it, and that it is shown nowhere."""

import os
from pathlib import Path

import pytest

from delay_transport.http.shared_secret import FILE_BYTES_MAX, SharedSecret, read_secrets
from delay_transport.seams.errors import ConfigError

FIRST, SECOND = "first " * 8, "second " * 8


def written(path: Path, text: str, *, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o440, 0o640])
def test_lines_are_secrets_but_for_comments(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "s", f"# ours\n\n  {FIRST} \r\n{SECOND}\n", mode=mode)
    assert read_secrets(path) == (FIRST.strip().encode(), SECOND.strip().encode())


@pytest.mark.parametrize(
    ("text", "mode", "reason"),
    [
        (FIRST, 0o604, "users other than its owner"),
        (FIRST, 0o602, "users other than its owner"),
        (FIRST, 0o660, "users other than its owner"),
        ("", 0o600, "has 0 secrets"),
        ("# none\n", 0o600, "has 0 secrets"),
        ("\n".join([FIRST] * 3), 0o600, "has 3 secrets"),
        ("too short a secret", 0o600, "less than 32 bytes"),
        (f"{FIRST}\nshort", 0o600, "less than 32 bytes"),
        ("x" * (FILE_BYTES_MAX + 1), 0o600, "more than 4096 bytes"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_refused_and_not_shown(
    tmp_path: Path, text: str, mode: int, reason: str
) -> None:
    path = written(tmp_path / "s", text, mode=mode)
    with pytest.raises(ConfigError, match=reason) as caught:
        read_secrets(path)
    assert str(path) in str(caught.value)
    for line in filter(None, text.splitlines()):
        assert line.startswith("#") or line.strip() not in str(caught.value)


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path, reason in (
        (tmp_path, "is not a regular file"),
        (tmp_path / "pipe", "is not a regular file"),
        (tmp_path / "nowhere", "No such file"),
    ):
        with pytest.raises(ConfigError, match=reason):
            read_secrets(path)


def test_it_is_read_again_when_it_changes_and_not_before(tmp_path: Path) -> None:
    path = written(tmp_path / "s", FIRST)
    secret = SharedSecret(path)
    assert secret.is_set
    assert secret.read()
    assert not secret.read()
    written(tmp_path / "new", f"{FIRST}\n{SECOND}").replace(path)
    assert secret.read()
    assert len(list(secret.entries)) == 2
    path.chmod(0o644)
    assert secret.read()
    assert list(secret.entries) == []
    assert "users other than" in secret.fault
    with pytest.raises(ConfigError, match=r"meta\.secret_file"):
        secret.check("meta.secret_file")
    path.unlink()
    assert secret.read()
    assert "No such file" in secret.fault
    written(path, SECOND)
    assert secret.read()
    assert next(iter(secret.entries)) == SECOND.strip().encode()
    assert not secret.fault


def test_without_a_file_there_is_none() -> None:
    secret = SharedSecret(None)
    assert not secret.is_set
    assert not secret.read()
    secret.check("meta.secret_file")
    assert secret.entries == ()
