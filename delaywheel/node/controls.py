"""`delaywheel controls`: what is paused and limited, and who changed it."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from delaywheel.cluster.node_client import ClusterRules, Rules, of_rules, print_json, text_of_rule
from delaywheel.shared.terminal import cell, wide_console


@click.command(short_help="Show what is paused and limited.")
@click.option("--audit", is_flag=True, help="Show who changed what, the newest first.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, metavar="N",
    help="Rows of --audit.",
)  # fmt: skip
@click.option("--remove", metavar="SUBJECT", help="Remove the rule of a subject or a prefix.")
@click.option("--follow", is_flag=True, help="Make a node apply the rules of its meta server.")
@of_rules
def controls(*, audit: bool, limit: int, remove: str | None, follow: bool, door: Rules) -> None:
    """Show the rules of subjects and broker groups, and the state of the groups.

    --meta also shows which nodes apply the rules, and why others do not. A node with stricter rules
    of its own, or of another meta server store, keeps them until --follow. After a subject's rule
    is removed, the rule of its prefix applies.

    \b
    Examples:
      delaywheel controls
      delaywheel controls --audit
      delaywheel controls --remove coupon.vip
      delaywheel controls --meta 127.0.0.1:8080
      delaywheel controls --follow --server 10.0.0.5:20811
    """
    if remove is not None:
        if audit or follow:
            raise click.UsageError("give --remove, --audit or --follow: one at a time")
        door.remove(remove)
        return
    if follow:
        if isinstance(door, ClusterRules) or audit:
            raise click.UsageError("--follow goes with --server: it is done at one node")
        taken = door.session.ask("POST", "controls", "follow", body={})
        click.echo(f"the node applies version {taken['version']} of its meta server's controls")
        return
    answer = door.audit(limit) if audit else door.show()
    if door.session.as_json:
        print_json(answer)
    elif audit:
        _print_audit(answer)
    else:
        _print_rules(answer)


def _print_rules(answer: Mapping[str, Any]) -> None:
    from rich.table import Table

    from delay_protocol.basics.printable import printable

    table = Table(title=f"version {answer['version']}", title_justify="left")
    for name in ("what", "name", "rule", "state", "circuit", "queued", "in flight"):
        table.add_column(name, justify="right" if name in {"queued", "in flight"} else "left")
    for name, rule in sorted(answer["subjects"].items()):
        table.add_row("subject", cell(name), text_of_rule(rule))
    states = answer.get("group_states")
    for name in sorted({*answer["groups"], *(states or ())}):
        if states is None:
            table.add_row("group", cell(name), text_of_rule(answer["groups"][name]))
            continue
        state = states.get(name, {})
        table.add_row(
            "group",
            cell(name),
            text_of_rule(answer["groups"].get(name, {})),
            cell(str(state.get("state", "unknown"))),
            cell(str(state.get("circuit", ""))),
            str(state.get("queued", "")),
            str(state.get("in_flight", "")),
        )
    wide_console().print(table)
    if answer.get("nodes"):
        _print_nodes(answer["nodes"])
    meta = answer.get("meta") or {}
    for note in filter(None, (meta.get("keeps"), meta.get("trouble"))):
        click.echo(printable(f"differs from the meta server: {note}"))


def _print_nodes(nodes: Sequence[Mapping[str, Any]]) -> None:
    from rich.table import Table

    table = Table(title="nodes", title_justify="left")
    for name in ("group", "node", "version", "note"):
        table.add_column(name)
    for node in nodes:
        version = "-" if node["version"] is None else str(node["version"])
        table.add_row(cell(node["group"]), cell(node["node_id"]), version, cell(node["note"]))
    wide_console().print(table)


def _print_audit(answer: Mapping[str, Any]) -> None:
    from rich.table import Table

    from delay_protocol.basics.printable import printable

    table = Table()
    for name in ("when", "who", "from", "what", "name", "before", "after", "version", "count"):
        table.add_column(name, justify="right" if name == "count" else "left")
    for row in answer["items"]:
        when = datetime.fromtimestamp(row["at_ms"] / 1000, UTC)
        table.add_row(
            f"{when:%Y-%m-%d %H:%M:%S}Z",
            cell(row["who"]),
            cell(row["peer"]),
            cell(row["action"]),
            cell(row["target"]),
            *(_rule_of(row, name) for name in ("before", "after")),
            *("-" if row.get(name) is None else str(row[name]) for name in ("version", "count")),
        )
    wide_console().print(table)
    for damage in answer.get("damages", ()):
        where = f"{damage['path']} at {damage['position']}, {damage['bytes']} bytes"
        click.echo(printable(f"damaged: {where}: {damage['reason']}"))


def _rule_of(row: Mapping[str, Any], name: str) -> str:
    """Return the rule that was or is, for people; none where there was none of that very name."""
    rule = row.get(name)
    return "-" if rule is None else text_of_rule(rule)
