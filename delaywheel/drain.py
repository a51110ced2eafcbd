"""`delaywheel drain`: bring a node or a broker group to rest before a planned stop."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from delaywheel.admin_client import Session
from delaywheel.failures import ExitCode, Failure
from delaywheel.node_client import TIMEOUT_S, of_node, print_json, session_of

_LOOK_S = 0.2


@click.command(short_help="Bring a node or a broker group to rest.")
@click.option("--group", metavar="NAME", help="A broker group instead of the node.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, max=3600),
    default=30.0,
    show_default=True,
    help="How long to wait for what is under way.",
)
@click.option("--undo", is_flag=True, help="Go on as before.")
@of_node
def drain(
    *,
    group: str | None,
    seconds: float,
    undo: bool,
    server: str,
    token_file: Path | None,
    as_json: bool,
) -> None:
    """Bring a node to rest before it is stopped, or a broker group before it is.

    A node has clients told to go elsewhere, takes nothing more, sends nothing more, and waits until
    nothing is in flight. A group is paused until nothing is in flight to it; after its stop it is
    to be resumed. The exit code is 0 if all is at rest, else 7, and what is left is said.

    \b
    Examples:
      delaywheel drain && systemctl stop delaywheel-delay-server
      delaywheel drain --undo
      delaywheel drain --group g1 --seconds 60
    """
    session = session_of(server, token_file, as_json=as_json, timeout_s=seconds + TIMEOUT_S)
    if group is not None:
        _drain_group(session, group, seconds, undo=undo)
        return
    if undo:
        answer = session.ask("DELETE", "drain")
    else:
        answer = session.ask("POST", "drain", body={"seconds": seconds})
    if as_json:
        print_json(answer)
    else:
        click.echo(f"the node is {answer['phase']}; {answer['held']} due messages are left in it")
    if not undo and not answer["done"]:
        raise Failure("not at rest: " + "; ".join(answer["waits_for"]), ExitCode.REFUSED)


def _drain_group(session: Session, group: str, seconds: float, *, undo: bool) -> None:
    session.ask("PATCH", "controls", "groups", group, body={"paused": not undo})
    deadline = time.monotonic() + seconds
    while True:
        state: Mapping[str, Any] = session.ask("GET", "controls")["group_states"].get(group, {})
        in_flight = int(state.get("in_flight", 0))
        if undo or not in_flight or time.monotonic() >= deadline:
            break
        time.sleep(_LOOK_S)
    if session.as_json:
        print_json({"group": group, "paused": not undo, "done": not in_flight, **state})
    elif undo:
        click.echo(f"group {group} goes on")
    elif not in_flight:
        click.echo(f"group {group} is paused and nothing is in flight to it")
    if in_flight and not undo:
        raise Failure(
            f"not at rest: {in_flight} messages are in flight to {group}", ExitCode.REFUSED
        )
