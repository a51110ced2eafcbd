"""`delaywheel drain`: stop a node, or bring a broker group to rest before it is stopped."""

import time

import click
import msgspec

from delaywheel.cluster.node_client import TIMEOUT_S, asks
from delaywheel.cluster.rules import Rules
from delaywheel.cluster.topology import ask_nodes
from delaywheel.shared.admin_client import Json, Session
from delaywheel.shared.failures import ExitCode, Failure
from delaywheel.shared.options import option
from delaywheel.shared.terminal import print_json

_LOOK_S = 0.2


@click.command(short_help="Stop a node, or bring a broker group to rest.")
@option("--group NAME", "A broker group instead of the node.")
@option("--seconds N>=0", "How long to wait for messages in flight.", default=30)
@asks("session", "rules")
def drain(
    *,
    group: str | None,
    seconds: int,
    session: Session | None,
    rules: Rules | None,
) -> None:
    """Stop a node, or bring a broker group to rest before it is stopped.

    The node does the same as at SIGTERM: it sends clients elsewhere, accepts nothing more, and
    waits until messages in flight are answered, --seconds at most; then its process ends. The node
    itself is asked (--server). A broker group (--group) is paused at the meta server (--meta) until
    nothing is in flight to it from any node; `delaywheel resume --group` ends the pause. Ends with
    exit code 0 if the node has stopped or the group is at rest, else with 7 and what is left.

    \b
    Examples:
      delaywheel drain --seconds 60
      delaywheel drain --meta 127.0.0.1:8080 --group g1 --seconds 60
    """
    if (rules is None) is not (group is None):
        raise click.UsageError(
            "a node is stopped at the node itself: give --server HOST:PORT, its http.address; "
            "a broker group is paused at the meta server: --meta and --group go together"
        )
    if rules is not None and group is not None:
        _drain_group(rules, group, seconds)
    elif session is not None:
        _drain_node(session, seconds)


def _drain_node(session: Session, seconds: int) -> None:
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


def _drain_group(rules: Rules, group: str, seconds: int) -> None:
    is_known = rules.pause_group(group)
    deadline = time.monotonic() + seconds
    counts, unknown = _in_flight(rules, group)
    while (any(counts) or unknown) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        counts, unknown = _in_flight(rules, group)
    is_known = is_known or any(count is not None for count in counts)
    messages, nodes = sum(filter(None, counts)), len(counts) + len(unknown)
    is_at_rest = not messages and not unknown
    if rules.session.as_json:
        answer = {"group": group, "is_known": is_known, "paused": True}
        answer |= {"done": is_known and is_at_rest, "in_flight": messages}
        print_json(answer | {"nodes": nodes, "unknown": unknown})
    elif is_at_rest and is_known:
        of_nodes = "1 node" if nodes == 1 else f"{nodes} nodes"
        click.echo(f"group {group} is paused and nothing is in flight to it from {of_nodes}")
    if not is_known:
        raise Failure(
            f"broker group {group} is not known, so it may not be at rest: "
            f"where there is one it is paused until `delaywheel resume --group {group}`",
            ExitCode.REFUSED,
        )
    if not is_at_rest:
        raise Failure(
            f"not at rest: {messages} messages are in flight to {group}"
            + "".join(f"; not known of {one}" for one in unknown),
            ExitCode.REFUSED,
        )


def _in_flight(rules: Rules, group: str) -> tuple[list[int | None], list[str]]:
    """Return what is in flight from each node, None if it does not know the group, and who fails.

    The nodes of the cluster are asked at the HTTP addresses that they registered, but for those
    that deliver nothing.
    """
    groups = rules.session.ask("GET", "topology")["delay_groups"]
    of_cluster = [one for one in groups if one["cluster"] == rules.cluster]
    nodes = [node for one in of_cluster for node in one["nodes"] if node["in_sync"]]

    def take(status: Json) -> Json:
        broker = msgspec.convert(status, _Status).brokers.get(group)
        return {"in_flight": None if broker is None else broker.in_flight}

    answers = ask_nodes(nodes, take, rules.session)
    unknown = [
        f"{node['node_id']}: {answer['error']}"
        for node, answer in zip(nodes, answers, strict=True)
        if "error" in answer
    ]
    return [answer["in_flight"] for answer in answers if "error" not in answer], unknown


class _Broker(msgspec.Struct, frozen=True):
    in_flight: int


class _Status(msgspec.Struct, frozen=True):
    """The used part of a node's status."""

    failing: list[str]
    brokers: dict[str, _Broker] = {}
    """A node that has none delivers nothing: it is no master, or has only just been started."""
