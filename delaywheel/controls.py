"""`delaywheel controls`: what is paused and limited, and who changed it."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from delaywheel.node_client import of_node, print_json, session_of, text_of_rule
from delaywheel.terminal import cell, wide_console


@click.command(short_help="Show what is paused and limited.")
@click.option("--audit", is_flag=True, help="Show who changed what, the newest first.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, metavar="N",
    help="Rows of --audit.",
)  # fmt: skip
@of_node
def controls(
    *, audit: bool, limit: int, server: str, token_file: Path | None, as_json: bool
) -> None:
    """Show the rules of subjects and broker groups, and how the groups do.

    \b
    Examples:
      delaywheel controls
      delaywheel controls --audit
    """
    session = session_of(server, token_file, as_json=as_json)
    path = ("controls", "audit") if audit else ("controls",)
    answer = session.ask("GET", *path, query={"limit": limit} if audit else None)
    if as_json:
        print_json(answer)
    elif audit:
        _print_audit(answer)
    else:
        _print_rules(answer)


def _print_rules(answer: Mapping[str, Any]) -> None:
    from rich.table import Table

    table = Table(title=f"version {answer['version']}", title_justify="left")
    for name in ("what", "name", "rule", "state", "circuit", "queued", "in flight"):
        table.add_column(name, justify="right" if name in {"queued", "in flight"} else "left")
    for name, rule in sorted(answer["subjects"].items()):
        table.add_row("subject", cell(name), text_of_rule(rule))
    states = answer["group_states"]
    for name in sorted({*answer["groups"], *states}):
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


def _print_audit(answer: Mapping[str, Any]) -> None:
    from rich.table import Table

    table = Table()
    for name in ("when", "who", "from", "what", "name", "before", "after", "count"):
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
            str(row.get("count", "-")),
        )
    wide_console().print(table)


def _rule_of(row: Mapping[str, Any], name: str) -> str:
    """Return the rule that was or is, for people; none where an entry changed no rules."""
    return text_of_rule(row.get(name) or {}) if row.get("version") else "-"
