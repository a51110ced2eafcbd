"""`delaywheel admin`: show and change groups, routes and subjects of a meta server.

Each command sends one or a few requests to the administration API and prints the answer as a table,
or as it is with `--json`. Tokens come from a file or the environment, never from an argument.
"""

import itertools
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from delaywheel.admin.tokens import token
from delaywheel.cluster.status import format_value
from delaywheel.shared.admin_client import Session
from delaywheel.shared.failures import ExitCode, Failure
from delaywheel.shared.http_exchange import Json
from delaywheel.shared.options import of_meta_server
from delaywheel.shared.parameters import MOMENT, PAIR
from delaywheel.shared.terminal import cell, wide_console

Command = TypeVar("Command", bound=Callable[..., Any])

_ROLES = click.Choice(
    ["MASTER", "SLAVE", "BACKUP", "DELAY_MASTER", "DELAY_SLAVE", "DELAY_BACKUP", "DELAY"]
)


_HANDOVER_S = 12.0
"""For longer than this a master is not asked to hand over."""
_ELECTED_S_MAX = 30.0
"""Seconds for which `elect --wait` waits; an election that can end has ended in seven."""
_SILENT_S_MAX = 4.0
"""Seconds after which a master that died a moment ago counts as silent at the meta server."""
_LOOK_S = 0.2
"""How often it is asked whether a group has its next master."""
_HISTORY_MAX = 100
"""Elections and handovers that `show --history` lists."""


@click.group(short_help="Show and change groups, routes and subjects of a meta server.")
@of_meta_server
@click.option("--json", "as_json", is_flag=True, help="Print the server's answer as JSON.")
@click.pass_context
def admin(ctx: click.Context, *, meta: str, token_file: Path | None, as_json: bool) -> None:
    """Show and change groups, routes and subjects of a meta server.

    When the command ends the change is stored, with an audit entry, and is being pushed to
    connected clients.

    \b
    Examples:
      delaywheel admin broker-group add broker1 --address 127.0.0.1:20881
      delaywheel admin --meta 127.0.0.1:8080 route set orders --group broker1
      delaywheel admin audit --action route
    """
    ctx.obj = Session(address=meta, token_file=token_file, as_json=as_json)


def _json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let --json stand behind a command too."""

    def note(ctx: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 (click's)
        if value:
            ctx.find_object(Session).as_json = True  # type: ignore[union-attr]

    return click.option(
        "--json",
        is_flag=True,
        expose_value=False,
        callback=note,
        help="Print the server's answer as JSON.",
    )(click.pass_obj(command))


def _paged(command: Command) -> Command:
    """Let a list be long, or not."""
    limited = click.option(
        "--limit",
        type=click.IntRange(min=1),
        default=100,
        show_default=True,
        metavar="ROWS",
        help="How many rows are shown.",
    )
    return limited(
        click.option("--all", "everything", is_flag=True, help="Show all rows.")(command)
    )


_version = click.option(
    "--version",
    type=click.IntRange(min=0),
    metavar="N",
    help="Only if it has this version; without it whatever is there is changed.",
)


# Showing


def _show(session: Session, answer: Json) -> None:
    """Print one thing."""
    if session.as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2))
        return
    from rich.table import Table

    table = Table(show_header=False, box=None)
    table.add_column(style="dim")
    table.add_column()
    rows = {name: value for name, value in answer.items() if not _is_rows(value)}
    for name, value in rows.items():
        table.add_row(cell(_title(name)), cell(_shown(name, value)))
    console = wide_console()
    console.print(table)
    for name, value in answer.items():
        if _is_rows(value):
            said = [key for key in value[0] if any(row[key] != "" for row in value)]
            rows_of = [{key: row[key] for key in said} for row in value]
            console.print(_table(rows_of, title=_title(name)))


def _is_rows(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _list(
    session: Session,
    *path: str,
    query: Mapping[str, object],
    columns: Sequence[str],
    limit: int,
    everything: bool,
) -> None:
    """Print a list, a page's worth of rows at a time."""
    rows = session.rows(*path, query=query, limit=None if everything else limit)
    if session.as_json:
        for row in rows:
            if row != {"more": True}:
                click.echo(msgspec.json.encode(row))
        return
    console = wide_console()
    is_first = True
    while some := list(itertools.islice(rows, 1000)):
        more = some[-1] == {"more": True}
        if more:
            some.pop()
        console.print(_table(some, columns=columns, header=is_first))
        is_first = False
        if more:
            click.echo("  and more: --all, or a larger --limit")
    if is_first:
        click.echo("none")


def _table(
    rows: Sequence[Json],
    *,
    columns: Sequence[str] = (),
    title: str | None = None,
    header: bool = True,
) -> Any:  # noqa: ANN401 (imported lazily)
    from rich.table import Table

    table = Table(
        title=None if title is None else cell(title),
        title_justify="left",
        box=None,
        show_header=header,
    )
    names = columns or list(dict.fromkeys(name for row in rows for name in row))
    for name in names:
        numbers = all(type(row.get(name)) in {int, float} for row in rows)
        is_count = numbers and not name.endswith("_ms")
        table.add_column(cell(_title(name)), justify="right" if is_count else "left")
    for row in rows:
        table.add_row(*(cell(_shown(name, row.get(name))) for name in names))
    return table


def _title(name: str) -> str:
    for ending in ("_seconds_ago", "_ms", "_max"):
        name = name.removesuffix(ending)
    return name.replace("_", " ")


def _shown(name: str, value: object) -> str:
    if value is None:
        return "-"
    if name.endswith("_seconds_ago"):
        return f"{format_value('_seconds', value)} ago"
    if name in {"version", "port", "serve_port", "sync_port", "number", "epoch"}:
        return str(value)
    return format_value(name, value)


# Broker groups


@admin.group("broker-group", short_help="Broker groups: list, add, change, retire.")
def broker_group() -> None:
    """Broker groups, including groups of delay servers."""


_GROUP_COLUMNS = (
    "name",
    "kind",
    "address",
    "state",
    "since_ms",
    "liveness",
    "heard_seconds_ago",
    "weight",
    "tag",
    "static",
    "read_only",
    "retired",
    "version",
)


@broker_group.command("list", short_help="List broker groups.")
@click.option(
    "--kind",
    type=click.Choice(["normal", "delay", "receiver"]),
    help="Only groups of this kind.",
)
@click.option(
    "--state", type=click.Choice(["RW", "R", "W", "NRW"]), help="Only groups in this state."
)
@_paged
@_json_option
def list_groups(
    session: Session, *, kind: str | None, state: str | None, limit: int, everything: bool
) -> None:
    """List broker groups.

    \b
    Examples:
      delaywheel admin broker-group list --state NRW
    """
    _list(
        session,
        "broker-groups",
        query={"kind": kind, "state": state},
        columns=_GROUP_COLUMNS,
        limit=limit,
        everything=everything,
    )


@broker_group.command("show", short_help="Show a broker group.")
@click.argument("name")
@_json_option
def show_group(session: Session, *, name: str) -> None:
    """Show a broker group.

    \b
    Examples:
      delaywheel admin broker-group show broker1
    """
    _show(session, session.ask("GET", "broker-groups", name))


@broker_group.command("add", short_help="Add a broker group.")
@click.argument("name")
@click.option("--address", default="", metavar="HOST:PORT", help="Where its master is.")
@click.option(
    "--kind",
    type=click.Choice(["normal", "delay", "receiver"]),
    default="normal",
    show_default=True,
)
@click.option(
    "--static/--no-static",
    default=None,
    help="Its silence says nothing, until it registers; the default with an address.",
)
@click.option("--tag", default="", help="Subjects with this tag are routed to it.")
@click.option("--weight", type=click.IntRange(min=0), default=100, show_default=True)
@click.option("--ext", type=PAIR, multiple=True, metavar="KEY=VALUE", help="Repeatable.")
@_json_option
def add_group(session: Session, *, ext: Sequence[tuple[str, str]], **fields: object) -> None:
    """Add a broker group.

    With an address the group takes messages at once. Its master need not register, and is not
    timed out until it does. --no-static gives it one time-out to register.

    \b
    Examples:
      delaywheel admin broker-group add broker1 --address 127.0.0.1:20881
    """
    _show(session, session.ask("POST", "broker-groups", body={**fields, "ext": dict(ext)}))


@broker_group.command("change", short_help="Change weight, tag, address, attributes.")
@click.argument("name")
@click.option("--address", metavar="HOST:PORT", help="Where its master is.")
@click.option("--state", type=click.Choice(["RW", "R", "W", "NRW"]), help="Of a static group.")
@click.option("--static/--no-static", default=None, help="Whether its silence says nothing.")
@click.option("--tag", help="Subjects with this tag are routed to it.")
@click.option("--weight", type=click.IntRange(min=0), help="Its share of subjects; 0: no new ones.")
@click.option(
    "--ext", type=PAIR, multiple=True, metavar="KEY=VALUE", help="In place of all. Repeatable."
)
@click.option("--no-ext", is_flag=True, help="Take all further attributes away.")
@_version
@_json_option
def change_group(
    session: Session, *, name: str, ext: Sequence[tuple[str, str]], no_ext: bool, **fields: object
) -> None:
    """Change a broker group; options that are not given stay as they are.

    \b
    Examples:
      delaywheel admin broker-group change broker1 --weight 50
    """
    body = {**fields, "ext": dict(ext) if ext or no_ext else None}
    _show(session, session.ask("PATCH", "broker-groups", name, body=body))


@broker_group.command("replace", short_help="Give a broker group another master.")
@click.argument("name")
@click.option("--address", required=True, metavar="HOST:PORT", help="Where its new master is.")
@click.option(
    "--version",
    type=click.IntRange(min=0),
    metavar="N",
    help="Only if it has this version; without it, the one that it has when the command begins.",
)
@_json_option
def replace_group(session: Session, *, name: str, address: str, version: int | None) -> None:
    """Send clients of a broker group to another address.

    Refused if somebody else changes the group while the command runs; with --version, if it was
    changed since that version. A broker that still speaks from the old address takes the group back
    one time-out after the new one spoke last, or should have; the audit says so.

    \b
    Examples:
      delaywheel admin broker-group replace broker1 --address 127.0.0.1:20891
    """
    if version is None:
        version = session.ask("GET", "broker-groups", name)["version"]
    body = {"address": address, "version": version}
    _show(session, session.ask("PATCH", "broker-groups", name, body=body))


@broker_group.command("approve", short_help="Approve a broker group that waits.")
@click.argument("name")
@click.option("--address", metavar="HOST:PORT", help="Only if this is where its master is.")
@_json_option
def approve_group(session: Session, *, name: str, **body: object) -> None:
    """Approve a broker group that waits; `delaywheel topology` shows which do.

    A group that is known already counts as entered from then on: it may be added to existing routes
    and is not removed after a long silence.

    \b
    Examples:
      delaywheel admin broker-group approve broker1 --address 10.0.0.1:20881
    """
    _show(session, session.ask("POST", "broker-groups", name, "approve", body=body))


@admin.group("receiver", short_help="Receivers: approve.")
def receiver() -> None:
    """Let in receivers; `broker-group` lists and changes their groups like all others."""


@receiver.command("approve", short_help="Approve a receiver that waits.")
@click.argument("name")
@_json_option
def approve_receiver(session: Session, *, name: str) -> None:
    """Approve a receiver that waits; `delaywheel topology` shows which do.

    The subjects that it asks for are routed to it, unless they have a route that was set.

    \b
    Examples:
      delaywheel admin receiver approve reminders
    """
    # A receiver is the only one without an address.
    body = {"address": ""}
    _show(session, session.ask("POST", "broker-groups", name, "approve", body=body))


@broker_group.command("remove", short_help="Remove one that is not in use.")
@click.argument("name")
@click.option("--lose-messages", is_flag=True, help="Even if messages in it are never consumed.")
@_version
@_json_option
def remove_group(session: Session, *, name: str, **query: object) -> None:
    """Remove a broker group that is off-line or retired, and silent; its name becomes free.

    The group leaves the routes that the meta server chose. Routes of an operator to it, brokers
    entered for it, and its delay servers have to be removed first.

    \b
    Examples:
      delaywheel admin broker-group remove broker1
    """
    _show(session, session.ask("DELETE", "broker-groups", name, query=query))


@broker_group.command("retire", short_help="Retire a broker group.")
@click.argument("name")
@click.option("--lose-messages", is_flag=True, help="Even if messages in it are never consumed.")
@_version
@_json_option
def retire_group(session: Session, *, name: str, **body: object) -> None:
    """Retire a broker group: no route leads to it; its name stays taken.

    Set it read-only first, and wait until consumers have read what is in it.

    \b
    Examples:
      delaywheel admin broker-group retire broker1
    """
    _show(session, session.ask("POST", "broker-groups", name, "retire", body=body))


@broker_group.command("restore", short_help="Use a retired broker group again.")
@click.argument("name")
@_version
@_json_option
def restore_group(session: Session, *, name: str, version: int | None) -> None:
    """Use a retired broker group again.

    \b
    Examples:
      delaywheel admin broker-group restore broker1
    """
    body = {"version": version}
    _show(session, session.ask("POST", "broker-groups", name, "restore", body=body))


@broker_group.command("read-only", short_help="Send no new messages into a group.")
@click.argument("name")
@click.argument("value", type=click.Choice(["on", "off"]))
@_json_option
def read_only(session: Session, *, name: str, value: str) -> None:
    """Send no new messages into a broker group (on), or send them again (off).

    \b
    Examples:
      delaywheel admin broker-group read-only broker1 on
    """
    body = {"read_only": value == "on"}
    _show(session, session.ask("PUT", "broker-groups", name, "read-only", body=body))


# Brokers


@admin.group(short_help="Brokers that ask for their role: list, add, replace, remove.")
def broker() -> None:
    """Entered brokers: QMQ's brokers ask for their group and role when they start."""


@broker.command("list", short_help="List brokers.")
@click.option("--group", help="Only of this broker group.")
@_paged
@_json_option
def list_brokers(session: Session, *, group: str | None, limit: int, everything: bool) -> None:
    """List brokers that are entered.

    \b
    Examples:
      delaywheel admin broker list --group broker1
    """
    _list(
        session,
        "brokers",
        query={"group": group},
        columns=("group", "role", "hostname", "serve_port", "ip", "sync_port", "version"),
        limit=limit,
        everything=everything,
    )


def _place(command: Command) -> Command:
    for option in (
        click.option("--hostname", required=True, help="As it calls itself."),
        click.option("--ip", required=True, help="IPv4 address that others reach it by."),
        click.option("--serve-port", type=click.IntRange(1, 65535), required=True),
        click.option(
            "--sync-port",
            type=click.IntRange(0, 65535),
            default=0,
            help="Where its slaves fetch from; not of backups.",
        ),
    ):
        command = option(command)
    return command


@broker.command("add", short_help="Enter a broker.")
@click.argument("group")
@click.argument("role", type=_ROLES, metavar="ROLE")
@_place
@_json_option
def add_broker(session: Session, **body: object) -> None:
    """Enter a broker with its group and role, for which it asks when it starts.

    ROLE is MASTER, SLAVE or BACKUP; of QMQ's delay servers DELAY_MASTER, DELAY_SLAVE, DELAY_BACKUP.

    \b
    Examples:
      delaywheel admin broker add broker1 MASTER --hostname b1 --ip 10.0.0.1 \\
          --serve-port 20881 --sync-port 20882
    """
    _show(session, session.ask("POST", "brokers", body=body))


@broker.command("replace", short_help="Replace a broker.")
@click.argument("group")
@click.argument("role", type=_ROLES, metavar="ROLE")
@_place
@_version
@_json_option
def replace_broker(session: Session, *, group: str, role: str, **body: object) -> None:
    """Replace a broker: clients follow when the new one goes on-line.

    \b
    Examples:
      delaywheel admin broker replace broker1 MASTER --hostname b2 --ip 10.0.0.2 \\
          --serve-port 20881 --sync-port 20882
    """
    _show(session, session.ask("PUT", "brokers", group, role, body=body))


@broker.command("remove", short_help="Remove a broker.")
@click.argument("group")
@click.argument("role", type=_ROLES, metavar="ROLE")
@_version
@_json_option
def remove_broker(session: Session, *, group: str, role: str, version: int | None) -> None:
    """Remove a broker.

    \b
    Examples:
      delaywheel admin broker remove broker1 SLAVE
    """
    _show(session, session.ask("DELETE", "brokers", group, role, query={"version": version}))


# Routes


@admin.group(short_help="Routes: list, show, set, remove, extend, reduce.")
def route() -> None:
    """Routes: the broker groups of a subject, or of every subject with a prefix."""


_ROUTE_COLUMNS = ("name", "groups", "chosen", "version")


@route.command("list", short_help="List routes.")
@click.option("--prefixes", is_flag=True, help="Of prefixes, not of subjects.")
@click.option("--group", help="Only those that lead to this broker group.")
@click.option("--prefix", help="Only names that begin with this.")
@_paged
@_json_option
def list_routes(
    session: Session,
    *,
    prefixes: bool,
    group: str | None,
    prefix: str | None,
    limit: int,
    everything: bool,
) -> None:
    """List routes of subjects, or of prefixes.

    \b
    Examples:
      delaywheel admin route list --group broker1 --all
      delaywheel admin route list --prefixes
    """
    _list(
        session,
        "prefix-routes" if prefixes else "routes",
        query={"group": group, "prefix": prefix},
        columns=_ROUTE_COLUMNS,
        limit=limit,
        everything=everything,
    )


@route.command("summary", short_help="Count routes.")
@_json_option
def route_summary(session: Session) -> None:
    """Count routes: subjects of each broker group, subjects without a route.

    \b
    Examples:
      delaywheel admin route summary
    """
    _show(session, session.ask("GET", "route-summary"))


@route.command("show", short_help="Show the route of a subject.")
@click.argument("subject")
@_json_option
def show_route(session: Session, *, subject: str) -> None:
    """Show the route of a subject, and where it comes from.

    \b
    Examples:
      delaywheel admin route show orders.paid
    """
    _show(session, session.ask("GET", "routes", subject))


_is_prefix = click.option("--prefix", "is_prefix", is_flag=True, help="NAME is a prefix.")


@route.command("set", short_help="Set the route of a subject or prefix.")
@click.argument("name")
@click.option(
    "--group", "groups", multiple=True, required=True, help="Broker group, in order. Repeatable."
)
@_is_prefix
@click.option(
    "--also-existing",
    is_flag=True,
    help="Of a prefix: also subjects that have a route which the meta server chose.",
)
@click.option("--dry-run", is_flag=True, help="Change nothing; count what would be.")
@_version
@_json_option
def set_route(
    session: Session,
    *,
    name: str,
    groups: Sequence[str],
    is_prefix: bool,
    also_existing: bool,
    dry_run: bool,
    version: int | None,
) -> None:
    """Set the route of a subject, or of all subjects with a prefix: `orders.*`.

    \b
    Examples:
      delaywheel admin route set orders.paid --group broker1 --group broker2
      delaywheel admin route set 'orders.*' --group reminders --also-existing --dry-run
    """
    name, is_prefix = _name_of_route(name, is_prefix=is_prefix)
    own = list(_own_routes(session, name)) if is_prefix and (also_existing or dry_run) else []
    moved = [one["name"] for one in own if one["chosen"]] if also_existing else []
    if dry_run:
        for group in groups:
            session.ask("GET", "broker-groups", group)
        found: dict[str, Any] = {"route": name, "prefix": is_prefix, "groups": list(groups)}
        _show(session, found | {"moves": len(moved), "keeps": len(own) - len(moved)})
        return
    body = {"groups": list(groups), "version": version}
    found = session.ask("PUT", _routes(is_prefix), name, body=body)
    for subject in moved:
        session.ask("DELETE", _routes(False), subject)  # noqa: FBT003
    if moved:
        # What was moved does not keep its route: the first answer says that it does.
        found = session.ask("GET", _routes(is_prefix), name)
    _show(session, found | {"moved": moved} if also_existing else found)
    kept = found["kept"] if is_prefix else 0
    if kept and not session.as_json:
        from delay_protocol.basics.printable import printable

        click.echo(
            f"{kept:,} subjects that begin with {printable(name)} have routes of their "
            "own and keep them: `delaywheel admin route list --prefix "
            f"{shlex.quote(printable(name))}` names them, `delaywheel admin route remove SUBJECT` "
            "has one follow the prefix",
            err=True,
        )


def _own_routes(session: Session, prefix: str) -> Iterator[dict[str, Any]]:
    """Yield the routes of single subjects that begin with a prefix."""
    after: str | None = ""
    while after is not None:
        query = {"prefix": prefix} | ({"after": after} if after else {})
        page = session.ask("GET", "routes", query=query)
        yield from page["items"]
        after = page["next"]


@route.command("remove", short_help="Remove the route of a subject or prefix.")
@click.argument("name")
@_is_prefix
@_version
@_json_option
def remove_route(session: Session, *, name: str, is_prefix: bool, version: int | None) -> None:
    """Remove the route of a subject, or of a prefix: `orders.*`.

    A prefix route applies then, or the meta server chooses another one.

    \b
    Examples:
      delaywheel admin route remove orders.paid
      delaywheel admin route remove 'orders.*'
    """
    name, is_prefix = _name_of_route(name, is_prefix=is_prefix)
    query = {"version": version}
    _show(session, session.ask("DELETE", _routes(is_prefix), name, query=query))


def _name_of_route(name: str, *, is_prefix: bool) -> tuple[str, bool]:
    """Return the name, and whether it is a prefix; a pattern, `orders.*`, names one."""
    return (name[:-1], True) if name.endswith("*") else (name, is_prefix)


def _routes(is_prefix: bool) -> str:  # noqa: FBT001 (an option)
    return "prefix-routes" if is_prefix else "routes"


_SUBJECT = click.option(
    "--subject", default="*", show_default=True, help="Only of this one; * for all."
)


@route.command("extend", short_help="Add a broker group to the routes of another one.")
@click.argument("group")
@click.argument("new_group")
@_SUBJECT
@_json_option
def extend_routes(session: Session, **body: object) -> None:
    """Add NEW_GROUP to every route that has GROUP.

    \b
    Examples:
      delaywheel admin route extend broker1 broker2
    """
    _show(session, session.ask("POST", "route-extension", body=body))


@route.command("reduce", short_help="Remove a broker group from routes.")
@click.argument("group")
@_SUBJECT
@_json_option
def reduce_routes(session: Session, **body: object) -> None:
    """Remove GROUP from every route that has other groups.

    \b
    Examples:
      delaywheel admin route reduce broker1 --subject orders.paid
    """
    _show(session, session.ask("POST", "route-reduction", body=body))


# Subjects, consumers, clients


@admin.group(short_help="Subjects: list, show, set their tag, remove.")
def subject() -> None:
    """Subjects that were used, or entered."""


@subject.command("list", short_help="List subjects.")
@click.option("--prefix", help="Only names that begin with this.")
@click.option("--tag", help="Only those with this tag.")
@_paged
@_json_option
def list_subjects(
    session: Session, *, prefix: str | None, tag: str | None, limit: int, everything: bool
) -> None:
    """List subjects.

    \b
    Examples:
      delaywheel admin subject list --prefix orders.
    """
    _list(
        session,
        "subjects",
        query={"prefix": prefix, "tag": tag},
        columns=("name", "tag", "created_ms", "version"),
        limit=limit,
        everything=everything,
    )


@subject.command("show", short_help="Show a subject.")
@click.argument("name")
@_json_option
def show_subject(session: Session, *, name: str) -> None:
    """Show a subject.

    \b
    Examples:
      delaywheel admin subject show orders.paid
    """
    _show(session, session.ask("GET", "subjects", name))


@subject.command("set", short_help="Enter a subject, or change its tag.")
@click.argument("name")
@click.option("--tag", default="", help="Its tag; none for the default tag.")
@_version
@_json_option
def set_subject(session: Session, *, name: str, **body: object) -> None:
    """Enter a subject, or change its tag, which counts when its next route is chosen.

    \b
    Examples:
      delaywheel admin subject set orders.paid --tag payments
    """
    _show(session, session.ask("PUT", "subjects", name, body=body))


@subject.command("remove", short_help="Remove an unused subject.")
@click.argument("name")
@_version
@_json_option
def remove_subject(session: Session, *, name: str, version: int | None) -> None:
    """Remove a subject that no client uses.

    A subject of a connected client, or with a tag or a route of an operator, stays. Messages of a
    removed subject are safe: it is created again, with a route, when it is used again.

    \b
    Examples:
      delaywheel admin subject remove orders.piad
    """
    _show(session, session.ask("DELETE", "subjects", name, query={"version": version}))


# Delay servers, audit


@admin.group("delay-group", short_help="Groups of delay servers: masters, members.")
def delay_group() -> None:
    """Show groups of delay servers, change their masters, and give up dead nodes."""


@delay_group.command("list", short_help="List delay groups.")
@_paged
@_json_option
def list_delay_groups(session: Session, *, limit: int, everything: bool) -> None:
    """List delay groups.

    \b
    Examples:
      delaywheel admin delay-group list
    """
    columns = ("name", "cluster", "epoch", "version", "phase", "master", "in_sync", "min_isr")
    _list(session, "delay-groups", query={}, columns=columns, limit=limit, everything=everything)


@delay_group.command("show", short_help="Show a delay group and its nodes.")
@click.argument("name")
@click.option(
    "--history", is_flag=True, help=f"Its last {_HISTORY_MAX} elections and handovers in its place."
)
@_json_option
def show_delay_group(session: Session, *, name: str, history: bool) -> None:
    """Show a delay group and its nodes, or its elections and handovers, newest first.

    \b
    Examples:
      delaywheel admin delay-group show delay1
      delaywheel admin delay-group show delay1 --history
    """
    shown = session.ask("GET", "delay-groups", name)
    if history:
        _show_history(session, f"{shown['cluster']}/{name}")
    else:
        _show(session, shown)


def _show_history(session: Session, target: str) -> None:
    """Show the elections and handovers of a group, which are entries of the audit."""
    found = [
        row
        for action in ("delay-group.elect", "delay-group.hand-over")
        for row in _audit_rows(session, {"action": action, "target": target}, _HISTORY_MAX)
    ]
    found.sort(key=lambda row: row["number"], reverse=True)
    began = {
        row["after"]["record"]["epoch"]: row["at_ms"] for row in found if _event(row) == _BEGINS
    }
    rows = [_history_row(row, began) for row in found[:_HISTORY_MAX]]
    if session.as_json:
        for row in rows:
            click.echo(msgspec.json.encode(row))
    elif rows:
        wide_console().print(_table(rows))
    else:
        click.echo("none")


_BEGINS = "an election begins"


def _event(row: Json) -> str:
    """Return what an entry of the audit is in the history of a group."""
    before, after = row["before"], row["after"]
    if "record" not in after:
        return f"an operator wants {after['to']} as the master"
    if row["action"] == "delay-group.elect":
        return _BEGINS if after["record"]["master"] is None else "elected"
    masters = [one["record"]["master"]["node_id"] for one in (before, after)]
    return "could not hand over" if masters[0] == masters[1] else f"{masters[0]} hands over"


def _history_row(row: Json, began: Mapping[int, int]) -> Json:
    """Return an election or a handover; began: when the election of an epoch did."""
    event, after = _event(row), row["after"]
    record = after.get("record", row["before"])
    master, began_ms = record["master"], began.get(record["epoch"], row["at_ms"])
    votes = after.get("votes", {})
    return {
        "when_ms": row["at_ms"],
        "event": event,
        "epoch": record["epoch"],
        "master": None if master is None else master["node_id"],
        "after_seconds": (row["at_ms"] - began_ms) / 1000 if event == "elected" else None,
        "why": after.get("why") or f"by {row['actor']}",
        "votes": "; ".join(f"{node}: {said}" for node, said in votes.items()),
    }


@delay_group.command("remove", short_help="Remove a delay server that is stopped.")
@click.argument("name")
@click.argument("node_id")
@_json_option
def remove_node(session: Session, *, name: str, node_id: str) -> None:
    """Remove the delay server NODE_ID of the group NAME: it will not come back.

    Stop it first: the master of the group drops it within seconds, and then it can be removed. A
    master hands over before. A node that is started again later registers as a new one.

    \b
    Examples:
      delaywheel admin delay-group remove delay1 n2
    """
    _show(session, session.ask("DELETE", "delay-groups", name, "nodes", node_id))


@delay_group.command("give-up", short_help="Give up a disk in sync where there is no master.")
@click.argument("name")
@click.argument("node_id")
@click.option(
    "--lose-messages", is_flag=True, help="Although nobody else has the group's messages."
)
@_json_option
def give_up(session: Session, *, name: str, node_id: str, **body: object) -> None:
    """Give up the disk of the delay server NODE_ID of the group NAME: it is lost.

    It is one in sync, and no master is there who could drop it: an election waits for it in vain,
    or it is the last one. The last one has the only copy of the group's messages. It is given up
    only with --lose-messages; the group then begins again with the next node that registers.

    \b
    Examples:
      delaywheel admin delay-group give-up delay1 n2
    """
    path = ("delay-groups", name, "nodes", node_id, "give-up")
    _show(session, session.ask("POST", *path, body=body))


@delay_group.command("accept-older", short_help="Take an older directory of a delay server.")
@click.argument("name")
@click.argument("node_id")
@click.option("--lose-messages", is_flag=True, help="Give up what only the newer one has.")
@_json_option
def accept_older(session: Session, *, name: str, node_id: str, **body: object) -> None:
    """Let the delay server NODE_ID of the group NAME start on an older copy of its directory.

    Needs --lose-messages: messages that only the newer directory has are lost, and that directory
    is refused once the older one has started. The node must be stopped or dead.

    \b
    Examples:
      delaywheel admin delay-group accept-older delay1 n1 --lose-messages
    """
    path = ("delay-groups", name, "nodes", node_id, "accept-older")
    _show(session, session.ask("POST", *path, body=body))


@delay_group.command("recover", short_help="Go on with a group whose record was lost.")
@click.argument("name")
@click.option("--lose-messages", is_flag=True, help="Although nodes are missing.")
@_json_option
def recover(session: Session, *, name: str, **body: object) -> None:
    """Go on with the group NAME without the nodes that have not spoken.

    For a meta server whose store was set back or lost. It goes on by itself when the master says
    that it may send, or all nodes have spoken; `delaywheel topology` names who is missing. Messages
    that only those have are lost, so it needs --lose-messages. An election follows.

    \b
    Examples:
      delaywheel admin delay-group recover delay1 --lose-messages
    """
    _show(session, session.ask("POST", "delay-groups", name, "recover", body=body))


@delay_group.command("handover", short_help="Have another node become the master.")
@click.argument("name")
@click.option("--to", metavar="NODE", help="The next master; else the one with the longest log.")
@_json_option
def hand_over(session: Session, *, name: str, to: str | None) -> None:
    """Have the master of the group NAME hand it over to another member in sync.

    It stops, waits until that member has everything, and is a slave from then on: within a second,
    as a rule. If the member does not answer, or cannot take over, the master goes on; the exit code
    is 7 then.

    \b
    Examples:
      delaywheel admin delay-group handover delay1 --to n2
    """
    before = session.ask("POST", "delay-groups", name, "handover", body={"to": to})
    shown = _await_epoch(session, name, above=before["epoch"], seconds=_HANDOVER_S)
    if shown is None:
        raise Failure(
            f"{before['master']} has not handed {name} over within {_HANDOVER_S} s, and is not "
            "asked any more: its log and its status say why",
            ExitCode.REFUSED,
        )
    if shown["master"] == before["master"]:
        raise Failure(
            f"{before['master']} could not hand over, and goes on: its log says why",
            ExitCode.REFUSED,
        )
    _show(session, shown)


@delay_group.command("elect", short_help="Elect a master in place of one that is dead.")
@click.argument("name")
@click.option("--wait", is_flag=True, help="Wait for the new master, 30 s at the most.")
@_json_option
def elect(session: Session, *, name: str, wait: bool) -> None:
    """Elect a master of the group NAME, whose master is dead.

    A group does so by itself, unless the meta server has registration.elect=operator. Refused as
    long as the master may send, by its own word or that of a member that hears it. Of the members
    in sync that vote the one with the longest log becomes the master.

    \b
    Examples:
      delaywheel admin delay-group elect delay1 --wait
    """
    if wait:
        shown = _await_master(session, name, _elect_soon(session, name))
    else:
        shown = session.ask("POST", "delay-groups", name, "elect")
    _show(session, shown)


def _elect_soon(session: Session, name: str) -> Json:
    """Begin an election, also where the master died a moment ago; it may begin by itself."""
    before = session.ask("GET", "delay-groups", name)
    until = time.monotonic() + _SILENT_S_MAX
    while True:
        try:
            return session.ask("POST", "delay-groups", name, "elect")
        except Failure as error:
            shown = session.ask("GET", "delay-groups", name)
            if shown["epoch"] > before["epoch"]:
                return shown
            if error.exit_code != ExitCode.REFUSED or time.monotonic() > until:
                raise
            time.sleep(_LOOK_S)


def _await_master(session: Session, name: str, shown: Json) -> Json:
    """Wait until an election has ended; say what it waits for."""
    said, until = "", time.monotonic() + _ELECTED_S_MAX
    while shown["phase"] != "active":
        if time.monotonic() > until:
            raise Failure(
                f"no master after {_ELECTED_S_MAX:.0f} s: {said}. The election goes on",
                ExitCode.REFUSED,
            )
        if shown["election"] != said:
            said = shown["election"]
            click.echo(said, err=True)
        time.sleep(_LOOK_S)
        shown = session.ask("GET", "delay-groups", name)
    return shown


def _await_epoch(session: Session, name: str, *, above: int, seconds: float) -> Json | None:
    """Return a group once its epoch is another one; None: it is not within so many seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        shown = session.ask("GET", "delay-groups", name)
        if shown["epoch"] > above:
            return shown
        time.sleep(_LOOK_S)
    return None


@delay_group.command("set", short_help="Set how many disks have to be in sync.")
@click.argument("name")
@click.option("--min-isr", type=click.IntRange(min=1), metavar="N", required=True)
@_json_option
def set_delay_group(session: Session, *, name: str, min_isr: int) -> None:
    """Set how many disks at least have to be in sync in the group NAME.

    With fewer it accepts nothing. Every acknowledged message is on so many disks. Two nodes run
    with 1: 2 wants three nodes, or the group stands while one of them is away.

    \b
    Examples:
      delaywheel admin delay-group set delay1 --min-isr 2
    """
    body = {"min_isr": min_isr}
    _show(session, session.ask("POST", "delay-groups", name, "min-isr", body=body))


@admin.command(short_help="Show who changed what.")
@click.option("--actor", help="Only by this one.")
@click.option("--action", help="Only this action, or all of one kind: route.")
@click.option("--target", help="Only of this target.")
@click.option("--since", type=MOMENT, help="Only from then on; ISO 8601.")
@click.option("--until", type=MOMENT, help="Only before then; ISO 8601.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, metavar="ROWS")
@_json_option
def audit(session: Session, *, since: Any, until: Any, limit: int, **query: object) -> None:  # noqa: ANN401 (click makes datetimes)
    """Show who changed what, newest first, with the values before and after.

    \b
    Examples:
      delaywheel admin audit --action route --limit 100
      delaywheel admin audit --actor alice --since 2026-11-21T08:00
    """
    query |= {
        "since_ms": None if since is None else int(since.timestamp() * 1000),
        "until_ms": None if until is None else int(until.timestamp() * 1000),
    }
    rows = _audit_rows(session, query, limit)
    if session.as_json:
        for row in rows:
            click.echo(msgspec.json.encode(row))
        return
    if not rows:
        click.echo("none")
        return
    wide_console().print(
        _table(
            [
                {
                    "when_ms": row["at_ms"],
                    "actor": row["actor"],
                    "action": row["action"],
                    "target": row["target"],
                    "change": _difference(row["before"], row["after"]),
                }
                for row in rows
            ]
        )
    )


def _audit_rows(session: Session, query: Mapping[str, object], limit: int) -> list[Json]:
    """Return entries of the audit, newest first."""
    rows: list[Json] = []
    before: int | None = None
    while len(rows) < limit:
        size = min(1000, limit - len(rows))
        page = session.ask("GET", "audit", query={**query, "before": before, "limit": size})
        rows += page["items"]
        before = page["next"]
        if before is None:
            break
    return rows


def _difference(before: object, after: object) -> str:
    """Return what is another after a change, in short."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return f"{_compact(before)} -> {_compact(after)}"
    names = [
        name
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name) and name not in {"version", "updated_ms"}
    ]
    return ", ".join(
        f"{name} {_compact(before.get(name))} -> {_compact(after.get(name))}" for name in names
    )


def _compact(value: object) -> str:
    text = "-" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= 100 else f"{text[:100]}…"


admin.add_command(token)
