"""`delaywheel controls`: what is paused and limited."""

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

import click

from delaywheel.cluster.node_client import asks
from delaywheel.cluster.rules import Rules, text_of_rule
from delaywheel.shared.admin_client import Session
from delaywheel.shared.options import option
from delaywheel.shared.tables import Columns, rows_table, screen
from delaywheel.shared.terminal import print_json


@click.command(short_help="Show what is paused and limited.")
@option("--follow", "Make a node apply the rules of its meta server.")
@asks("session", "rules")
def controls(*, follow: bool, session: Session | None, rules: Rules | None) -> None:
    """Show the rules of subjects and broker groups, and the state of the groups.

    --meta also shows which version of the rules each node applies. A node with rules of another
    store of the meta server, or of its own, keeps them until --follow. `delaywheel admin remove
    subject-rule CLUSTER/SUBJECT` removes a rule; then the rule of its prefix applies. Who changed
    what: `delaywheel admin get audit --action subject-rule`, or group-rule.

    \b
    Examples:
      delaywheel controls
      delaywheel controls --meta 127.0.0.1:8080
      delaywheel controls --follow --server 10.0.0.5:20811
    """
    if rules is not None:
        if follow:
            raise click.UsageError("--follow goes with --server: it is done at one node")
        _show(rules.show(), as_json=rules.session.as_json)
        return
    assert session is not None
    if follow:
        taken = session.ask("POST", "controls", "follow", body={})
        click.echo(f"the node applies version {taken['version']} of its meta server's controls")
    else:
        _show(session.ask("GET", "controls"), as_json=session.as_json)


def _show(answer: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        _print_rules(answer)


_COLUMNS: Final[Columns] = {
    "what": "what",
    "name": "name",
    "rule": text_of_rule,
    "state": "state",
    "circuit": "circuit",
    "queued": "queued",
    "in flight": "in_flight",
}


_NODE_COLUMNS: Final[Columns] = {
    "group": "group",
    "node": "node_id",
    "version": "controls_version",
    "note": "controls_note",
}


def _print_rules(answer: Mapping[str, Any]) -> None:
    from delay_protocol.basics.printable import printable

    groups, states = answer["groups"], answer.get("group_states")
    rows = [
        {"what": "subject", "name": name, **answer["subjects"][name]}
        for name in sorted(answer["subjects"])
    ]
    for name in sorted({*groups, *(states or ())}):
        state = {} if states is None else states.get(name, {"state": "unknown"})
        rows.append({**state, "what": "group", "name": name, **groups.get(name, {})})
    columns = _COLUMNS if states is not None else dict(islice(_COLUMNS.items(), 3))
    screen().print(rows_table(f"version {answer['version']}", columns, rows, most=len(rows)))
    if nodes := answer.get("nodes"):
        screen().print(rows_table("nodes", _NODE_COLUMNS, nodes, most=len(nodes)))
    meta = answer.get("meta") or {}
    for note in filter(None, (meta.get("keeps"), meta.get("trouble"))):
        click.echo(printable(f"differs from the meta server: {note}"))
