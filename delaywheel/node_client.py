"""What commands that ask a delay server's administration have in common."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec

from delaywheel.admin_client import TOKEN_VARIABLE, Session

TIMEOUT_S: Final = 30.0
"""A change is answered when it holds, which takes longer the more is held for delivery."""

Command = TypeVar("Command", bound=Callable[..., Any])


def at_node(command: Command) -> Command:
    """Add `server` and `token_file`: which node, and what proves that one may."""
    for option in (
        click.option(
            "--token-file",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help=f"File with the token; else it is taken from {TOKEN_VARIABLE}.",
        ),
        click.option(
            "--server",
            default="127.0.0.1:20811",
            show_default=True,
            metavar="HOST:PORT",
            help="The delay server's HTTP address (http.address).",
        ),
    ):
        command = option(command)
    return command


def of_node(command: Command) -> Command:
    """Add what `at_node` does, and `as_json`: how the answer is shown."""
    shown = click.option("--json", "as_json", is_flag=True, help="Print the answer as it came.")
    return at_node(shown(command))


def on_one(command: Command) -> Command:
    """Add `subject` and `group`, of which one has to be given."""
    for option in (
        click.option("--group", metavar="NAME", help="A broker group."),
        click.option(
            "--subject",
            metavar="SUBJECT",
            help="A subject, or a prefix with a * at its end (quote it).",
        ),
    ):
        command = option(command)
    return command


def path_of(subject: str | None, group: str | None) -> tuple[str, str, str]:
    """Return the path of the one rule that is meant."""
    if (subject is None) == (group is None):
        raise click.UsageError("give --subject or --group")
    if subject is not None:
        return "controls", "subjects", subject
    assert group is not None
    return "controls", "groups", group


def session_of(
    server: str, token_file: Path | None, *, as_json: bool, timeout_s: float = TIMEOUT_S
) -> Session:
    """Return where a command asks; a URL does for host:port as well."""
    return Session(
        address=server.removeprefix("http://").rstrip("/"),
        token_file=token_file,
        as_json=as_json,
        prefix="",
        what="delay server",
        timeout_s=timeout_s,
    )


def print_json(answer: Mapping[str, Any]) -> None:
    """Print an answer for programs."""
    click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2))


def say_rule(answer: Mapping[str, Any], *, as_json: bool) -> None:
    """Print what holds for a subject or group after a change."""
    from delay_protocol import printable

    if as_json:
        print_json(answer)
        return
    word = "subject" if "subject" in answer else "group"
    rule = answer.get("rule") or {}
    click.echo(printable(f"{word} {answer[word]}: {text_of_rule(rule)}"))


def text_of_rule(rule: Mapping[str, Any]) -> str:
    """Return what a rule says, for people."""
    parts = []
    if rule.get("paused"):
        parts.append("paused")
    if rule.get("rate_per_s") is not None:
        parts.append(f"at most {rule['rate_per_s']:g} messages/s")
    if rule.get("weight") is not None:
        parts.append(f"weight {rule['weight']:g}")
    return ", ".join(parts) or "open"
