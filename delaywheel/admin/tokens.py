"""`delaywheel admin token`: the file of tokens that a meta server reads.

The file is written anew beside itself and renamed, under a lock of its directory: a server that
reads it meanwhile sees the one or the other, and two commands at a time do not lose a token.
"""

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from delaywheel.shared.failures import ExitCode, Failure
from delaywheel.shared.options import option
from delaywheel.shared.tables import rows_table, screen

if TYPE_CHECKING:
    from delay_transport.http.tokens import Token

_FILE = option("--file FILE", "The file of tokens (admin.token_file).", to="file", required=True)


@click.group(short_help="Add and remove tokens for administration.")
def token() -> None:
    """Add and remove tokens. The file has hashes only; a running server reloads it."""


@token.command(short_help="Make a token.")
@click.argument("name")
@option(
    "--role",
    "read: look at everything; admin: change it too. At a gateway also send: send messages, and "
    "cancel or move each; and change: send, look, cancel and move, also all of a filter.",
    type=click.Choice(["read", "admin", "send", "change"]),
    required=True,
)
@option(
    "--subject PATTERN",
    "Only for such subjects, at a gateway; may be given more than once.",
    multiple=True,
)
@_FILE
def add(*, name: str, role: str, subject: Sequence[str], file: Path) -> None:
    """Make a token called NAME and print it, once.

    \b
    Examples:
      delaywheel admin token add alice --role admin --file tokens.json > alice.token
    """
    from delay_transport.http.tokens import SECRET_BYTES, Role, Token, digest_of, token_text

    text = token_text(secrets.token_bytes(SECRET_BYTES))
    with _locked(file):
        known = _read(file)
        if any(one.name == name for one in known):
            raise Failure(f"there is a token {name} already; remove it first", ExitCode.USAGE)
        made = Token(
            name=name,
            role=Role(role),
            sha256=digest_of(text),
            subjects=tuple(subject),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        try:
            msgspec.convert(msgspec.to_builtins(made), Token)
        except msgspec.ValidationError as error:
            raise Failure(
                "a name has 1 to 100 letters, digits and . _ @ + -", ExitCode.USAGE
            ) from error
        _write(file, [*known, made])
    click.echo(text)


@token.command(short_help="Print the token of a receiver's name.")
@click.argument("name")
@option(
    "--secret FILE",
    "The file of the cluster's secret (registration.secret_file, meta.secret_file).",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    required=True,
)
def receiver(*, name: str, secret: Path) -> None:
    """Print the token with which services receive under NAME, where the cluster has a secret.

    It follows from the secret and the name: nothing is stored, and another secret makes another.

    \b
    Examples:
      delaywheel admin token receiver reminders --secret cluster.secret > reminders.token
    """
    from delay_protocol.nodes.auth import receiver_token
    from delay_transport.http.shared_secret import read_secrets

    click.echo(receiver_token(read_secrets(secret)[0], name))


@token.command("list", short_help="List tokens.")
@_FILE
def list_tokens(*, file: Path) -> None:
    """List the tokens of a file by name and role; the tokens themselves are not stored.

    \b
    Examples:
      delaywheel admin token list --file tokens.json
    """
    rows = [msgspec.to_builtins(one) for one in _read(file, must_exist=True)]
    screen().print(rows_table("", ("name", "role", "subjects", "created"), rows, most=len(rows)))


@token.command(short_help="Remove a token.")
@click.argument("name")
@_FILE
def remove(*, name: str, file: Path) -> None:
    """Remove the token called NAME: a running server refuses it within seconds.

    \b
    Examples:
      delaywheel admin token remove alice --file tokens.json
    """
    with _locked(file):
        known = _read(file, must_exist=True)
        kept = [one for one in known if one.name != name]
        if len(kept) == len(known):
            raise Failure(f"there is no token {name}", ExitCode.USAGE)
        _write(file, kept)


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Keep others from changing the file; raise Failure if its directory cannot be used.

    Not by a lock on the directory: a server holds that of its data, and the file may lie there. The
    file of the lock stays: whoever deletes one may delete that of the next.
    """
    lock = file.absolute().with_name(f".{file.name}.lock")
    try:
        held = os.open(lock, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Failure(f"{file.absolute().parent}: {error.strerror}", ExitCode.USAGE) from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _read(file: Path, *, must_exist: bool = False) -> tuple["Token", ...]:
    from delay_transport.http.tokens import read_tokens

    if not must_exist and not file.exists():
        return ()
    return read_tokens(file)


def _write(file: Path, tokens: Sequence["Token"]) -> None:
    """Replace the file durably; only its owner may read it."""
    from delay_transport.http.tokens import decode_tokens, encode_tokens
    from storage.disk.disk import DirectoryDisk, replace_file

    content = encode_tokens(tokens)
    # What a server would not read is not written.
    decode_tokens(content, source=str(file))
    os.umask(0o077)
    # The lock keeps others from it; what a command that failed left there is written over.
    replace_file(DirectoryDisk(file.absolute().parent), file.name, [content])
