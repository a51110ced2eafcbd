"""`delaywheel controls`: what is paused and limited."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from delaywheel.cluster.node_client import Rules, of_node_or_rules, print_json, text_of_rule
from delaywheel.shared.admin_client import Session
from delaywheel.shared.terminal import cell, wide_console


@click.command(short_help="Show what is paused and limited.")
@click.option("--remove", metavar="SUBJECT", help="Remove the rule of a subject or a prefix.")
@click.option("--follow", is_flag=True, help="Make a node apply the rules of its meta server.")
@of_node_or_rules
def controls(*, remove: str | None, follow: bool, door: Session | Rules) -> None:
    """Show the rules of subjects and broker groups, and the state of the groups.

    --meta also shows which version of the rules each node applies. A node with rules of another
    store of the meta server, or of its own, keeps them until --follow. After a subject's rule is
    removed, the rule of its prefix applies. Who changed what: `delaywheel admin audit --action
    controls`.

    \b
    Examples:
      delaywheel controls
      delaywheel controls --meta 127.0.0.1:8080
      delaywheel controls --meta 127.0.0.1:8080 --remove coupon.vip
      delaywheel controls --follow --server 10.0.0.5:20811
    """
    if isinstance(door, Rules):
        if follow:
            raise click.UsageError("--follow goes with --server: it is done at one node")
        if remove is None:
            _show(door.show(), as_json=door.session.as_json)
        else:
            door.remove(remove)
    elif remove is not None:
        raise click.UsageError("--remove goes with --meta: rules are changed at the meta server")
    elif follow:
        taken = door.ask("POST", "controls", "follow", body={})
        click.echo(f"the node applies version {taken['version']} of its meta server's controls")
    else:
        _show(door.ask("GET", "controls"), as_json=door.as_json)


def _show(answer: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
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
