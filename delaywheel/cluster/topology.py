"""`delaywheel topology`: nodes, roles, lag, broker groups and routes.

One answer of the meta server has the groups, nodes and routes. The lag of each delay server comes
from its own `http_address`. All are asked at the same time, so a node that does not answer delays
no other.
"""

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from delaywheel.shared.admin_client import Json, Session
from delaywheel.shared.failures import Failure
from delaywheel.shared.options import of_meta_server, option, watching
from delaywheel.shared.tables import ROWS_MAX, Columns, format_value, in_seconds, rows_table
from delaywheel.shared.terminal import show

NODE_TIMEOUT_S: Final = 2.0
"""Seconds in which a node has to answer."""

NODES_AT_ONCE: Final = 32
"""Nodes that are asked at a time."""

NODES_TIMEOUT_S: Final = 10.0
"""Seconds for all of them: in a cluster of which much is down the rest is shown without figures."""

_FITNESS: Final = {
    "behind": "others become the master before it",
    "last": "all others become the master before it",
    "unfit": "another one should be the master",
    "excluded": "it cannot become the master",
}
"""The consequence of its fitness for a node."""

_LAGS: Final = ("pending", "late", "replay_lag", "lateness_ms", "last_sequence", "ready")
"""The used part of a node's status, beside what has no route."""


@click.command(short_help="Show nodes, groups, routes and lags of a cluster.")
@of_meta_server
@option("--all", "Show every row.", to="shows_all")
@option("--json", "Print it for programs.", to="as_json")
@watching(every_seconds=2)
def topology(
    *,
    meta: str,
    token_file: Path | None,
    shows_all: bool,
    as_json: bool,
    watch: bool,
    every: int,
) -> None:
    """Show nodes, roles, epochs, broker groups, routes, and how far nodes are behind.

    Of a long list it shows what is away first, and counts the rest; --all shows all of it.

    \b
    Examples:
      delaywheel topology --meta 127.0.0.1:8080
      delaywheel topology --watch
      delaywheel topology --all
    """
    session = Session(address=meta, token_file=token_file, as_json=as_json)
    shown = partial(render, shows_all=shows_all)
    show(lambda: fetch(session), shown, as_json=as_json, every=every if watch else None)


def fetch(session: Session) -> Json:
    """Return the meta server's topology, each node with its `lag` or the reason for none.

    Raises Failure if the meta server does not answer.
    """
    found = session.ask("GET", "topology")
    nodes = [node for group in found["delay_groups"] for node in group["nodes"]]
    for node, lag in zip(nodes, ask_nodes(nodes, _lag_of, session), strict=True):
        node["lag"] = lag
    return found


def ask_nodes(nodes: Sequence[Json], take: Callable[[Json], Json], session: Session) -> list[Json]:
    """Return what `take` makes of the status of each node, or {"error": why there is none}.

    Nodes are as in the answer of the session's meta server, with an `http_address`; each gets its
    token of the file, if there is one. `take` raises ValidationError for an invalid status. Ends in
    time whatever the nodes do.
    """
    found = {
        node["http_address"]: {"error": f"no answer within {NODES_TIMEOUT_S:g} s"} for node in nodes
    }
    left = [address for address in found if address]

    def ask() -> None:
        with contextlib.suppress(IndexError):
            while True:
                address = left.pop(0)
                found[address] = _ask(session.at_node(address, timeout_s=NODE_TIMEOUT_S), take)

    deadline = time.monotonic() + NODES_TIMEOUT_S
    # One that is never done ends with the command.
    threads = [threading.Thread(target=ask, daemon=True) for _ in left[:NODES_AT_ONCE]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    found[""] = {"error": "it has no HTTP address"}
    return [found[node["http_address"]] for node in nodes]


def _ask(node: Session, take: Callable[[Json], Json]) -> Json:
    """Return what is taken of a node's status, or {"error": why not}."""
    from delay_transport.seams.errors import AddressError, ConfigError

    try:
        return take(node.ask("GET", "status"))
    except (Failure, AddressError, ConfigError) as failure:
        return {"error": str(failure)}
    except msgspec.ValidationError:
        return {"error": f"what answers at {node.address} is no delay server that has a status"}


def _lag_of(status: Json) -> Json:
    return {name: status[name] for name in (*_LAGS, "unrouted") if name in status}


# For people


def render(found: Json, *, shows_all: bool = False) -> Any:  # noqa: ANN401 (what rich can show has no common type)
    """Return what matters, on a screen of 100 columns, for rich to print; or every row.

    Nothing is cut on a narrower screen: what does not fit into a column goes on below.
    """
    from rich.console import Group
    from rich.text import Text

    from delay_protocol.basics.printable import printable

    most = sys.maxsize if shows_all else ROWS_MAX
    nodes = _nodes(found)
    groups = sorted(found["broker_groups"], key=lambda one: one["state"] == "RW")
    shown: list[Any] = [Text(printable(line), style="bold red") for line in found["failing"]]
    for title, columns, rows in (
        ("what to do next", ("group", "step"), found["next_steps"]),
        ("broker groups", _group_columns(found), groups),
        ("delay servers", _NODE_COLUMNS, nodes),
        ("notes", _NOTE_COLUMNS, [node for node in nodes if node["note"]]),
    ):
        if rows:
            shown.append(rows_table(title, columns, rows, most=most))
        elif title in {"broker groups", "delay servers"}:
            shown.append(Text(f"no {title}"))
    if unserved := found["unserved"]:
        lack = "routes, or subjects without one, whose messages no broker group takes:"
        shown.append(Text(lack, style="bold yellow"))
        shown.append(rows_table("reasons", _REASON_COLUMNS, unserved, most=most))
    return Group(*shown)


def _group_columns(found: Json) -> Columns:
    """Return the columns of broker groups."""
    now_ms, routes = found["now_ms"], found["routes_by_group"]
    return {
        "name": "name",
        "kind": "kind",
        "address": lambda group: group["address"] or "-",
        "state": "state",
        "for": lambda group: _since(now_ms, group["since_ms"]),
        "heard": partial(_heard, never="-"),
        "routes": lambda group: routes.get(group["name"], 0),
        "weight": "weight",
        "notes": lambda group: ", ".join(
            name.replace("_", "-") for name in ("static", "read_only", "retired") if group[name]
        ),
    }


def _nodes(found: Json) -> list[Json]:
    """Return all delay servers, with what is known of their groups; first who did not answer."""
    nodes = [
        {**node, "group": group["name"], "record": group, "note": _note(node)}
        for group in found["delay_groups"]
        for node in group["nodes"]
    ]
    return sorted(nodes, key=lambda node: "error" not in node["lag"])


def _note(node: Json) -> str:
    """Return what is to be known of a delay server beside its figures; it may be long."""
    unfit = node["fitness_note"]
    notes = [node["lag"].get("error"), unfit and f"{_FITNESS[node['fitness']]}: {unfit}"]
    notes.append(node["controls_note"])
    if node["clock_note"] not in unfit:
        notes.append(node["clock_note"])
    unrouted = node["lag"].get("unrouted")
    notes += map(str, unrouted.get("examples", ())) if isinstance(unrouted, dict) else ()
    return "; ".join(note for note in notes if note)


def _epoch(node: Json) -> str:
    group = node["record"]
    is_shown = group["master"] == node["node_id"] or group["phase"] != "active"
    return f"{group['epoch']} {group['phase']}" if is_shown else ""


def _since(now_ms: int, at_ms: int) -> str:
    # Not of a group that was changed less than a second ago, by a clock that was set back.
    return format_value("_seconds", math.floor(max(0, now_ms - at_ms) / 1000)) if at_ms else "-"


def _heard(row: Json, *, never: str) -> str:
    seconds = row["heard_seconds_ago"]
    return never if seconds is None else format_value("_seconds_ago", seconds)


def _p99(lag: Json) -> str:
    lateness = lag.get("lateness_ms")
    found = lateness.get("p99") if isinstance(lateness, dict) else None
    return format_value("_s", in_seconds(found))


_NODE_COLUMNS: Final[Columns] = {
    "group": "group",
    "node": "node_id",
    "role": "role",
    "epoch": _epoch,
    "address": "address",
    "heard": lambda node: _heard(node, never="silent"),
    "pending": lambda node: node["lag"].get("pending"),
    "late": lambda node: node["lag"].get("late"),
    "lateness p99": lambda node: _p99(node["lag"]),
}

_NOTE_COLUMNS: Final[Columns] = {"group": "group", "node": "node_id", "note": "note"}

_REASON_COLUMNS: Final[Columns] = {
    "routes": "patterns",
    "why": "why",
    "which": lambda row: ", ".join(
        [*row["examples"], *(["..."] if row["patterns"] > len(row["examples"]) else ())]
    ),
}
