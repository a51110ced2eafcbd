"""`delaywheel topology`: nodes, roles, lag, broker groups and routes.

One answer of the meta server has the groups, nodes and routes. The lag of each delay server comes
from its own `http_address`. All are asked at the same time, so a node that does not answer delays
no other.
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from delaywheel.cluster.status import ROWS_MAX, format_value, in_seconds, rows_table
from delaywheel.shared.admin_client import Session, token_in
from delaywheel.shared.http_exchange import Json
from delaywheel.shared.options import of_meta_server, watching, with_node_token_file
from delaywheel.shared.terminal import show

NODE_TIMEOUT_S: Final = 2.0
"""Seconds in which a node has to answer."""

NODES_AT_ONCE: Final = 32
"""Nodes that are asked at a time."""

NODES_TIMEOUT_S: Final = 10.0
"""Seconds for all of them: in a cluster of which much is down the rest is shown as not asked."""

STATUS_BYTES_MAX: Final = 4 << 20
"""Bytes of one node's status."""

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
@with_node_token_file
@click.option("--all", "shows_all", is_flag=True, help="Show every row and figure.")
@click.option("--json", "as_json", is_flag=True, help="Print it for programs.")
@watching(every_seconds=2.0)
def topology(
    *,
    meta: str,
    token_file: Path | None,
    node_token_file: Path | None,
    shows_all: bool,
    as_json: bool,
    watch: bool,
    every: float,
) -> None:
    """Show nodes, roles, epochs, broker groups, routes, and how far nodes are behind.

    Of a long list it shows what is away first, and counts the rest; --all shows all of it.

    \b
    Examples:
      delaywheel topology --meta 127.0.0.1:8080
      delaywheel topology --watch
      delaywheel topology --all
    """
    session = Session(
        address=meta, token_file=token_file, as_json=as_json, node_token_file=node_token_file
    )
    shown = partial(render, shows_all=shows_all)
    show(lambda: fetch(session), shown, as_json=as_json, every=every if watch else None)


def fetch(session: Session) -> Json:
    """Return the meta server's topology, each node with its `lag` or the reason for none.

    Raises Failure if the meta server does not answer.
    """
    found = session.ask("GET", "topology")
    nodes = [node for group in found["delay_groups"] for node in group["nodes"]]
    for node, lag in zip(nodes, ask_nodes(nodes, _lag_of, session.node_token_file), strict=True):
        node["lag"] = lag
    return found


def ask_nodes(
    nodes: Sequence[Json], take: Callable[[Json], Json], token_file: Path | None
) -> list[Json]:
    """Return what `take` makes of the status of each node, or {"error": why there is none}.

    Nodes are as in the meta server's answer, with an `http_address`; each gets the token of the
    file. `take` raises ValidationError for an invalid status. Ends in time whatever the nodes do.
    Raises Failure if there is no token in the file.
    """
    import trio

    token = None if token_file is None else token_in(token_file)
    addresses = list(dict.fromkeys(node["http_address"] for node in nodes if node["http_address"]))
    found = trio.run(_ask_all, addresses, take, token)
    found[""] = {"error": "it has no HTTP address"}
    return [found[node["http_address"]] for node in nodes]


async def _ask_all(
    addresses: Sequence[str], take: Callable[[Json], Json], token: str | None
) -> dict[str, Json]:
    """Return the answer of each node by its address."""
    import trio

    answers: dict[str, Json] = {
        address: {"error": f"not asked within {NODES_TIMEOUT_S:g} s"} for address in addresses
    }
    limiter = trio.CapacityLimiter(NODES_AT_ONCE)

    async def ask(address: str) -> None:
        async with limiter:
            answers[address] = await _ask(address, take, token)

    with trio.move_on_after(NODES_TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            for address in addresses:
                nursery.start_soon(ask, address)
    return answers


async def _ask(address: str, take: Callable[[Json], Json], token: str | None) -> Json:
    """Return what is taken of a node's status, or {"error": why not}."""
    import trio

    from delay_transport.seams.errors import AddressError
    from delay_transport.seams.runtime import TcpNetwork, parse_peer_address

    error = f"no answer within {NODE_TIMEOUT_S:g} s"
    with trio.move_on_after(NODE_TIMEOUT_S):
        try:
            host, port = parse_peer_address(address)
            async with await TcpNetwork().connect(host, port) as stream:
                body = await _get(stream, address, token)
                if body is None:
                    return {"error": "it wants a token: give --node-token-file FILE"}
                return take(msgspec.json.decode(body, type=dict[str, Any]))
        except (OSError, trio.BrokenResourceError, AddressError) as failed:
            error = f"does not answer: {failed}"
        except (ValueError, RecursionError, msgspec.MsgspecError):
            error = "what answers there is no delay server"
    return {"error": error}


async def _get(
    stream: Any,  # noqa: ANN401 (imported lazily)
    address: str,
    token: str | None,
) -> bytes | None:
    """Return the body of GET /status, None if it wants a token, or another one.

    Raises ValueError for anything else but an answer of 200.
    """
    # HTTP/1.0: the answer ends with the connection, and comes in one piece.
    request = f"GET /status HTTP/1.0\r\nHost: {address}\r\nAccept: application/json\r\n"
    if token is not None:
        request += f"Authorization: Bearer {token}\r\n"
    await stream.send_all(f"{request}\r\n".encode("ascii"))
    data = bytearray()
    while part := await stream.receive_some(1 << 16):
        data += part
        if len(data) > STATUS_BYTES_MAX:
            raise ValueError("too long")
    head, _, body = bytes(data).partition(b"\r\n\r\n")
    code = head.split(b" ", 2)[1:2]
    if code == [b"401"]:
        return None
    if code != [b"200"]:
        raise ValueError("refused")
    return body


def _lag_of(status: Json) -> Json:
    return {name: status[name] for name in (*_LAGS, "unrouted") if name in status}


# For people


def render(found: Json, *, shows_all: bool = False) -> Any:  # noqa: ANN401 (what rich can show has no common type)
    """Return what matters, on a screen of 100 columns, for rich to print; or every row and figure.

    Nothing is cut on a narrower screen: what does not fit into a column goes on below.
    """
    from rich.console import Group
    from rich.text import Text

    from delay_protocol.basics.printable import printable

    table = partial(_table, most=sys.maxsize if shows_all else ROWS_MAX)
    warnings = [Text(printable(line), style="bold red") for line in found["failing"]]
    routes = found["routes"]
    counts = Text(
        f"{routes['subjects']:,} subjects, {routes['routes']:,} with a route of their own, "
        f"{routes['prefixes']:,} routes of prefixes"
    )
    unserved = routes["unserved"]
    lacking = [
        Text(f"{unserved:,} subjects whose messages no broker group takes", style="bold yellow"),
        table("reasons", [_unserved_row(row) for row in routes["unserved_why"]]),
    ]
    waiting = list(_waiting_rows(found))
    more = list(_more_node_rows(found)) if shows_all else []
    notes = list(_note_rows(found))
    return Group(
        *warnings,
        table("broker groups", list(_group_rows(found))),
        *([table("groups that wait for an operator", waiting)] if waiting else ()),
        table("delay servers", list(_node_rows(found))),
        *([table("copies and controls", more)] if more else ()),
        *([table("notes", notes)] if notes else ()),
        Text(""),
        counts,
        *(lacking if unserved else ()),
    )


def _table(title: str, rows: Sequence[Json], *, most: int) -> Any:  # noqa: ANN401 (imported lazily)
    from rich.text import Text

    return rows_table(title, rows, most=most) if rows else Text(f"no {title}")


def _group_rows(found: Json) -> Iterator[Json]:
    """Yield the broker groups, those that are away first."""
    subjects = found["routes"]["subjects_by_group"]
    for group in sorted(found["broker_groups"], key=lambda one: one["state"] == "RW"):
        yield {
            "name": group["name"],
            "kind": group["kind"],
            "address": group["address"] or "-",
            "state": group["state"],
            "for": _since(found["now_ms"], group["since_ms"]),
            "heard": _heard(group, never="-"),
            "subjects": subjects.get(group["name"], 0),
            "weight": group["weight"],
            "notes": ", ".join(
                name.replace("_", "-") for name in ("static", "read_only", "retired") if group[name]
            ),
        }


def _waiting_rows(found: Json) -> Iterator[Json]:
    """Yield the groups that an operator has to let in."""
    for row in found.get("waiting") or ():
        yield {
            "name": row["name"],
            "kind": row["kind"],
            "address": row["address"] or "-",
            "wants": ", ".join(row.get("patterns", ())) or "-",
            "speaks from": row["speaks_from"],
            "for": format_value("_seconds", math.floor(row["waits_seconds"])),
        }


def _nodes(found: Json) -> list[tuple[Json, Json]]:
    """Return all delay servers, each with its group; those that did not answer come first."""
    nodes = [(group, node) for group in found["delay_groups"] for node in group["nodes"]]
    return sorted(nodes, key=lambda one: "error" not in one[1]["lag"])


def _node_rows(found: Json) -> Iterator[Json]:
    for group, node in _nodes(found):
        lag = node["lag"]
        has_epoch = group["master"] == node["node_id"] or group["phase"] != "active"
        yield {
            "group": group["name"],
            "node": node["node_id"],
            "role": node["role"],
            "epoch": f"{group['epoch']} {group['phase']}" if has_epoch else "",
            "address": node["address"],
            "heard": _heard(node, never="silent"),
            "pending": lag.get("pending"),
            "late": lag.get("late"),
            "lateness p99": _p99(lag),
        }


def _more_node_rows(found: Json) -> Iterator[Json]:
    """Yield the figures of delay servers for which the first table has no room."""
    for group, node in _nodes(found):
        yield {
            "group": group["name"],
            "node": node["node_id"],
            "in sync": node["in_sync"],
            "end": node.get("last_sequence"),
            "committed": node.get("committed"),
            "uncommitted": node.get("uncommitted"),
            "unfiled": node["lag"].get("replay_lag"),
            "controls": _controls(group, node),
        }


def _note_rows(found: Json) -> Iterator[Json]:
    """Yield what is to be said of delay servers, which has lines of its own as it may be long."""
    for group, node in _nodes(found):
        notes = [node["lag"].get("error"), _fitness(node), node["controls_note"]]
        if node["clock_note"] not in node["fitness_note"]:
            notes.append(node["clock_note"])
        mine, current = node["controls_version"], group["controls_version"]
        if mine not in {None, current}:
            notes.append(f"applies version {mine} of the controls, the current one is {current}")
        unrouted = node["lag"].get("unrouted")
        notes += map(str, unrouted.get("examples", ())) if isinstance(unrouted, dict) else ()
        if said := "; ".join(note for note in notes if note):
            yield {"group": group["name"], "node": node["node_id"], "note": said}


def _fitness(node: Json) -> str:
    """Return why a node is not fit to be the master; empty if it is."""
    note = node["fitness_note"]
    return f"{_FITNESS[node['fitness']]}: {note}" if note else ""


def _controls(group: Json, node: Json) -> str:
    """Return by which version of the controls a node goes, of which there is."""
    version = node["controls_version"]
    return f"{'-' if version is None else version} of {group['controls_version']}"


def _unserved_row(row: Json) -> Json:
    more = "" if row["subjects"] <= len(row["examples"]) else ", ..."
    return {
        "subjects": row["subjects"],
        "why": row["why"],
        "which": ", ".join(row["examples"]) + more,
    }


def _since(now_ms: int, at_ms: int) -> str:
    # Not of a group that was changed less than a second ago, by a clock that was set back.
    return format_value("_seconds", math.floor(max(0, now_ms - at_ms) / 1000)) if at_ms else "-"


def _heard(row: Json, *, never: str) -> str:
    if row["liveness"] == "assumed":
        return "not yet"
    seconds = row["heard_seconds_ago"]
    return never if seconds is None else f"{format_value('_seconds', seconds)} ago"


def _p99(lag: Json) -> str:
    lateness = lag.get("lateness_ms")
    found = lateness.get("p99") if isinstance(lateness, dict) else None
    return format_value("_s", in_seconds(found))
