"""`delaywheel drain`: stop a node, or bring a broker group to rest before it is stopped."""

import time
from pathlib import Path

import click

from delaywheel.cluster.node_client import TIMEOUT_S, Rules, of_node_or_rules, print_json
from delaywheel.shared.admin_client import Session
from delaywheel.shared.failures import ExitCode, Failure
from delaywheel.shared.options import with_node_token_file
from delaywheel.shared.parameters import FiniteRange

_LOOK_S = 0.2


@click.command(short_help="Stop a node, or bring a broker group to rest.")
@click.option("--group", metavar="NAME", help="A broker group instead of the node.")
@click.option(
    "--seconds",
    type=FiniteRange(min=0, max=3600),
    default=30.0,
    show_default=True,
    help="How long to wait for messages in flight.",
)
@click.option("--undo", is_flag=True, help="Resume the group.")
@with_node_token_file
@of_node_or_rules
def drain(
    *,
    group: str | None,
    seconds: float,
    undo: bool,
    node_token_file: Path | None,
    door: Session | Rules,
) -> None:
    """Stop a node, or bring a broker group to rest before it is stopped.

    The node does the same as at SIGTERM: it sends clients elsewhere, accepts nothing more, and
    waits until messages in flight are answered, --seconds at most; then its process ends. The node
    itself is asked (--server). A broker group (--group) is paused at the meta server (--meta) until
    nothing is in flight to it from any node; resume it after its stop. Ends with exit code 0 if the
    node has stopped or the group is at rest, else with 7 and what is left.

    \b
    Examples:
      delaywheel drain --seconds 60
      delaywheel drain --meta 127.0.0.1:8080 --group g1 --seconds 60
      delaywheel drain --meta 127.0.0.1:8080 --group g1 --undo
    """
    if undo and group is None:
        raise click.UsageError("--undo goes with --group: a node that has stopped is started again")
    if isinstance(door, Rules) is (group is None):
        raise click.UsageError(
            "a node is stopped at the node itself: give --server HOST:PORT, its http.address; "
            "a broker group is paused at the meta server: --meta and --group go together"
        )
    if isinstance(door, Rules) and group is not None:
        door.session.node_token_file = node_token_file
        _drain_group(door, group, seconds, undo=undo)
    elif isinstance(door, Session):
        _drain_node(door, seconds)


def _drain_node(session: Session, seconds: float) -> None:
    session.ask("POST", "drain", body={"seconds": seconds})
    # The server itself needs some time to end.
    wait_s = seconds + TIMEOUT_S
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        try:
            session.ask("GET", "status")
        except Failure as failure:
            if failure.exit_code is not ExitCode.NETWORK:
                raise
            if session.as_json:
                print_json({"stopped": True})
            else:
                click.echo("the node has stopped")
            return
        time.sleep(_LOOK_S)
    raise Failure(
        f"the node was told to stop, and still answers after {wait_s:g} s: look at its log",
        ExitCode.REFUSED,
    )


def _drain_group(rules: Rules, group: str, seconds: float, *, undo: bool) -> None:
    is_known = rules.pause_group(group, paused=not undo)
    deadline = time.monotonic() + seconds
    left = rules.in_flight_to(group)
    while not (undo or left.is_none) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        left = rules.in_flight_to(group)
    is_known = is_known or left.is_known
    if rules.session.as_json:
        found = {"in_flight": left.messages, "nodes": left.nodes, "unknown": left.unknown}
        done = is_known and left.is_none
        answer = {"group": group, "is_known": is_known, "paused": not undo, "done": done}
        print_json(answer | found)
    elif undo:
        click.echo(f"group {group} goes on")
    elif left.is_none and is_known:
        nodes = "1 node" if left.nodes == 1 else f"{left.nodes} nodes"
        click.echo(f"group {group} is paused and nothing is in flight to it from {nodes}")
    if not undo and not is_known:
        raise Failure(
            f"broker group {group} is not known, so it may not be at rest: "
            f"where there is one it is paused until `delaywheel resume --group {group}`",
            ExitCode.REFUSED,
        )
    if not undo and not left.is_none:
        raise Failure(
            f"not at rest: {left.messages} messages are in flight to {group}"
            + "".join(f"; not known of {one}" for one in left.unknown),
            ExitCode.REFUSED,
        )
