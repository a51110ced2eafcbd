"""`delaywheel dead`: messages that brokers refused for good, looked at, requeued, dropped.

Everything goes over the node's HTTP port.
"""

import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import click

from delaywheel.cluster.masters import Masters, of_masters
from delaywheel.shared.admin_client import Json, Session
from delaywheel.shared.failures import ExitCode
from delaywheel.shared.options import option
from delaywheel.shared.parameters import MOMENT, POSITIVE, Parsed
from delaywheel.shared.tables import Columns, figures_table, rows_table, screen, title_of
from delaywheel.shared.terminal import print_json

Command = Callable[..., Any]

_DLQ: Final = "%DLQ%"
"""Before the name of a group: RocketMQ's name for its dead letters."""


class _DeadCommand(click.Command):
    """A command that takes `%DLQ%billing`, by itself or as an option, for `--group billing`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what is given, with RocketMQ's names replaced."""
        words: list[str] = []
        for word in args:
            name = word.removeprefix("--group=").removeprefix("--subject=")
            if len(name) > len(_DLQ) and name.startswith(_DLQ):
                if words and words[-1] in {"--group", "--subject"}:
                    words.pop()
                words += ["--group", name.removeprefix(_DLQ)]
            else:
                words.append(word)
        return super().parse_args(ctx, words)


def _letter(text: str) -> tuple[str, int]:
    """Return delay group and sequence of a dead letter; the group is empty if it is not named."""
    group, _, number = text.rpartition("/")
    if not (number.isascii() and number.isdigit() and 0 < int(number) < 2**63):
        raise ValueError(f"{text!r} is no dead letter; write 184467, or d1/184467 with --meta")
    return group, int(number)


_LETTER: Final = Parsed("letter", _letter)


def _named(group: str, sequence: int) -> int | str:
    """Return the name of a dead letter: where all masters are asked, with its delay group."""
    return f"{group}/{sequence}" if group else sequence


@click.group(short_help="List, requeue and drop messages that were refused for good.")
def dead() -> None:
    """List, requeue and drop dead letters: messages that were refused for good.

    A message becomes a dead letter after sender.dead_letter_tries refusals of brokers, when a
    receiver refuses it, or when as many receivers ended with it as their policy says (8). It stays
    until it is requeued, which sends it once more under the same id, or dropped.

    With --meta the masters of all delay groups are asked, and a dead letter is named by its delay
    group and its sequence, such as d1/184467. A group that has no master or does not answer is
    named on standard error, and the exit code is not 0; what the others answer is shown.
    RocketMQ's %DLQ%billing is taken for --group billing.

    \b
    Examples:
      delaywheel dead list --subject orders.eu
      delaywheel dead list --meta 127.0.0.1:8080 --group billing
      delaywheel dead show 184467
      delaywheel dead requeue 184467 184470
      delaywheel dead requeue --group g1
      delaywheel dead drop --subject orders.eu --yes
    """


def _chosen(command: Command) -> Command:
    """Add the options by which dead letters are chosen."""
    command = option("--group GROUP", "All that this broker group refused last.")(command)
    return option("--subject SUBJECT", "All of this subject.")(command)


@dead.command("list", cls=_DeadCommand)
@_chosen
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1))
@of_masters
def list_letters(*, limit: int, masters: Masters, **query: Any) -> None:  # noqa: ANN401 (click's)
    """List dead letters, the oldest first.

    \b
    Examples:
      delaywheel dead list
      delaywheel dead list --subject orders.eu --json
      delaywheel dead list --meta 127.0.0.1:8080 %DLQ%billing
    """
    rows = masters.rows("dead", query, by="dead_ms", most=limit + 1)
    rows, more = rows[:limit], len(rows) > limit
    if masters.as_json:
        print_json({"items": rows} | masters.said_of_unanswered)
    else:
        _print_table(rows)
    if more:
        click.echo("there are more: give --limit", err=True)


_FIELDS: Final = ("subject", "message_id", "due_ms", "code_name", "group")
_COLUMNS: Final[Columns] = {
    "sequence": lambda row: _named(row.get("delay_group", ""), row["sequence"]),
    **{title_of(name): name for name in _FIELDS},
}


def _print_table(rows: list[Json]) -> None:
    if rows:
        screen().print(rows_table("dead letters", _COLUMNS, rows, most=len(rows)))
    else:
        click.echo("no dead letters")


@dead.command("show")
@click.argument("letter", metavar="SEQUENCE", type=_LETTER)
@option("--payload", "With the item's bytes, in base64.")
@of_masters
def show(*, letter: tuple[str, int], payload: bool, masters: Masters) -> None:
    """Show one dead letter: its item, and which group refused it when.

    \b
    Examples:
      delaywheel dead show 184467 --payload
      delaywheel dead show d1/184467 --meta 127.0.0.1:8080
    """
    query = {"payload": 1 if payload else None}
    [(group, [sequence])] = _by_group([letter], masters).items()

    def asking(_: str, session: Session) -> Json:
        return session.ask("GET", "dead", str(sequence), query=query)

    for found in masters.answers(asking, [group]).values():
        _show(found, as_json=masters.as_json)


def _show(found: Json, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    console, refusals = screen(), found.pop("refusals", [])
    attributes = found.pop("attributes", {})
    console.print(figures_table("dead letter", found))
    if attributes:
        console.print(figures_table("attributes", attributes))
    if refusals:
        console.print(rows_table("refusals", list(refusals[0]), refusals, most=len(refusals)))


def _by_group(letters: Sequence[tuple[str, int]], masters: Masters) -> dict[str, list[int]]:
    """Return the sequences of dead letters by delay group; raise UsageError for another form."""
    named: dict[str, list[int]] = {}
    for group, sequence in letters:
        if bool(group) is not masters.is_cluster:
            raise click.UsageError(
                "with --meta a dead letter is GROUP/SEQUENCE, as `dead list --meta` names it, "
                "and of a node SEQUENCE alone"
            )
        named.setdefault(group, []).append(sequence)
    return named


def _changing(command: Command) -> Command:
    """Add what says which dead letters a command changes."""
    command = _chosen(of_masters(command))
    return click.argument("letters", metavar="[SEQUENCES]...", nargs=-1, type=_LETTER)(command)


@dead.command("requeue", cls=_DeadCommand)
@option("--at TIME", "When the first is due; else all are due at once.", type=MOMENT)
@option(
    "--rate N",
    "So many become due in a second, of each delay group.",
    type=POSITIVE,
)
@_changing
def requeue(*, at: datetime | None, rate: float | None, **options: Any) -> None:  # noqa: ANN401 (click's)
    """Send dead letters once more, under the same message ids.

    Name them by SEQUENCES, or all of a --subject or a --group. They are due at once, or as --at and
    --rate say, which spread them over the time after it.

    \b
    Examples:
      delaywheel dead requeue 184467 184470
      delaywheel dead requeue --group g1 --rate 50
      delaywheel dead requeue --meta 127.0.0.1:8080 %DLQ%billing --at 2026-12-24T18:00:00+01:00
    """
    due_ms = None if at is None else round(at.timestamp() * 1000)
    _change("requeue", **options, due_ms=due_ms, rate_per_s=rate)


@dead.command("drop", cls=_DeadCommand)
@option("--yes", "Needed to drop more than one.")
@_changing
def drop(*, yes: bool, **options: Any) -> None:  # noqa: ANN401 (click's)
    """Drop dead letters: they are never sent.

    Name them by SEQUENCES, or all of a --subject or a --group. This cannot be undone.

    \b
    Examples:
      delaywheel dead drop 184467
      delaywheel dead drop --subject orders.eu --yes
    """
    _change("drop", **options, is_meant=yes or len(options["letters"]) == 1)


def _change(
    verb: str,
    *,
    letters: Sequence[tuple[str, int]],
    masters: Masters,
    is_meant: bool = True,
    **asked: Any,  # noqa: ANN401 (click's)
) -> None:
    if [letters or None, asked["subject"], asked["group"]].count(None) != 2:
        raise click.UsageError("name dead letters by sequences, or by one of --subject and --group")
    named = _by_group(letters, masters)
    if not is_meant:
        raise click.UsageError(
            "this may drop many dead letters for good: nothing was dropped; look at them with "
            "`delaywheel dead list`, and add --yes to drop them"
        )
    changed: Json = {"done": 0, "damaged": [], "missing": []}

    def change(name: str, session: Session) -> Json:
        body = {**asked, "sequences": named.get(name)}
        return session.ask("POST", "dead", verb, body=body)

    for name, found in masters.answers(change, named).items():
        changed["done"] += found["done"]
        for kind in ("damaged", "missing"):
            changed[kind] += [_named(name, sequence) for sequence in found[kind]]
    damaged, missing = changed["damaged"], changed["missing"]
    if masters.as_json:
        print_json(changed | masters.said_of_unanswered)
    else:
        click.echo(f"{changed['done']} {'requeued' if verb == 'requeue' else 'dropped'}")
    if damaged:
        click.echo(f"damaged, and left: {' '.join(map(str, damaged))}", err=True)
    if missing:
        click.echo(f"no dead letters, or settled before: {' '.join(map(str, missing))}", err=True)
    if missing or damaged:
        sys.exit(ExitCode.REFUSED)
