"""Tokens: what a file must be to be trusted, and which of two texts is one."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_transport.http.tokens import (
    LOOPBACK,
    TOKENS_MAX,
    Role,
    Token,
    Tokens,
    decode_tokens,
    digest_of,
    encode_tokens,
    read_tokens,
    token_text,
)
from delay_transport.seams.errors import ConfigError


def token(name: str = "alice", role: Role = Role.ADMIN, *, text: str = "t") -> Token:
    return Token(name=name, role=role, sha256=digest_of(text))


def written(path: Path, *tokens: Token) -> Path:
    path.unlink(missing_ok=True)
    path.write_bytes(encode_tokens(tokens))
    path.chmod(0o600)
    return path


@given(secrets=st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=5, unique=True))
def test_a_token_is_found_by_its_text_alone_and_the_file_does_not_have_it(
    secrets: list[bytes],
) -> None:
    texts = [token_text(secret) for secret in secrets]
    known = [token(f"t{number}", text=text) for number, text in enumerate(texts)]
    data = encode_tokens(known)
    assert decode_tokens(data, source="f") == tuple(known)
    tokens = Tokens(None)
    tokens.entries = decode_tokens(data, source="f")
    for one, text in zip(known, texts, strict=True):
        assert tokens.find(text) == one
        assert text.encode() not in data
        for other in (text[:-1], text + "x", text.swapcase(), one.sha256, ""):
            assert other == text or tokens.find(other) is None


def test_what_may_read_may_not_change() -> None:
    assert Role.READ.covers(Role.READ)
    assert not Role.READ.covers(Role.ADMIN)
    assert Role.ADMIN.covers(Role.READ)
    assert Role.ADMIN.covers(Role.ADMIN)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is not a token file"),
        (b"[]", "is not a token file"),
        (b'{"tokens":[{"name":"a"}]}', "missing required field"),
        (b'{"tokens":[],"x":1}', "unknown field"),
        (b"\xff", "is not a token file"),
        (b"[" * 100_000, "is not a token file"),
        (encode_tokens([token(), token()]), "two tokens are called alice"),
        (encode_tokens([token(LOOPBACK)]), "loopback"),
        (encode_tokens([token(f"t{n}") for n in range(TOKENS_MAX + 1)]), "length <= 1000"),
        (encode_tokens([token("a b")]), "regex"),
    ],
)
def test_what_is_no_file_of_tokens_is_said(data: bytes, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        decode_tokens(data, source="f")


def test_a_file_that_others_may_write_is_not_trusted(tmp_path: Path) -> None:
    path = written(tmp_path / "tokens", token())
    assert read_tokens(path) == (token(),)
    for mode in (0o620, 0o602):
        path.chmod(mode)
        with pytest.raises(ConfigError, match="chmod 600"):
            read_tokens(path)


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, tmp_path / "missing"):
        with pytest.raises(ConfigError):
            read_tokens(path)


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    with path.open("wb") as file:
        file.truncate((1 << 20) + 1)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="more than"):
        read_tokens(path)


def test_a_changed_file_counts_when_it_is_looked_at_again(tmp_path: Path) -> None:
    path = written(tmp_path / "tokens", token())
    tokens = Tokens(path)
    assert tokens.is_set
    assert tokens.find("t") is None
    assert tokens.read()
    assert tokens.find("t") == token()
    assert not tokens.read()
    written(path, token("bob", text="b"))
    assert tokens.read()
    assert tokens.find("t") is None
    assert tokens.find("b") is not None


def test_while_the_file_is_damaged_nobody_is_let_in(tmp_path: Path) -> None:
    path = written(tmp_path / "tokens", token())
    tokens = Tokens(path)
    tokens.read()
    path.write_bytes(b"{")
    assert tokens.read()
    assert "is not a token file" in tokens.fault
    assert tokens.find("t") is None
    assert not tokens.read()
    written(path, token())
    assert tokens.read()
    assert tokens.fault == ""
    assert tokens.find("t") is not None
    path.chmod(0o666)
    assert tokens.read()
    assert not tokens.entries
