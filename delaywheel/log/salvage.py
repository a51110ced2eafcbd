"""`delaywheel log salvage`: get messages out of damaged files, and send them once more.

Reads a data directory without writing to it. What it finds goes to a directory of its own:

    index.jsonl    a line for each message: what is known of it, and where its bytes are
    items.bin      the messages' bytes, one after another
    damage.jsonl   a line for each place that could not be read
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from delaywheel.shared.failures import ExitCode, Failure
from delaywheel.shared.options import option
from delaywheel.shared.sending import client_of, fail_if_any, send_at_rate

if TYPE_CHECKING:
    from delay_client import DelaywheelError, OutgoingItem, Receipt
    from storage.tools.salvage import Salvage, SalvagedItem

_INDEX, _ITEMS, _DAMAGE = "index.jsonl", "items.bin", "damage.jsonl"
_GAPS_SHOWN = 20


class Entry(msgspec.Struct, kw_only=True):
    """A line of the index.

    served: whether the node delivers it by itself; offset, size: where its bytes are in items.bin.
    """

    sequence: int
    due_ms: int
    subject: str
    message_id: str
    state: str
    file: str
    position: int
    served: bool
    offset: int | None
    size: int


@click.command()
@click.argument(
    "paths",
    nargs=-1,
    required=True,
    # What may not be read is named by those who read, with its owner and what to do.
    type=click.Path(exists=True, readable=False, path_type=Path),
    metavar="DATA_DIR|FILE...",
)
@option(
    "--out DIR", "Directory for the results; an earlier salvage there is replaced.", required=True
)
@option("--delivered", "Keep the bytes of messages that were delivered too.")
@option(
    "--undeliverable",
    "Only what this directory's node cannot deliver itself: to be sent to that very node.",
)
@option(
    "--send HOST:PORT",
    "Send what is pending to this delay server. It does not know what it gets twice: it "
    "delivers what each run with --yes sends.",
    to="server",
)
@option("--in-doubt", "With --send: send what is in doubt, too.")
@option("--yes", "With --send: send. Without it, only print what would be sent.")
@option("--rate N>=1", "With --send: messages a second.", default=1000)
def salvage(
    *,
    paths: tuple[Path, ...],
    out: Path,
    delivered: bool,
    undeliverable: bool,
    server: str | None,
    in_doubt: bool,
    yes: bool,
    rate: int,
) -> None:
    """Salvage every message whose CRC proves it whole from a data directory, or files of one.

    Tells of each message whether it was delivered, is pending, or in doubt. Never writes to the
    data directory; what a running server writes meanwhile may be missing, or be told as damage.
    Ends with exit code 0 when every whole message was written out, with or without
    damage; with 4 when there is damage, or no log, and no whole message.

    \b
    Examples:
      delaywheel log salvage data --out salvaged
      delaywheel log salvage data/schedule_log/20261121T1403Z.minute --out salvaged
      delaywheel log salvage data --out salvaged --undeliverable --send 127.0.0.1:20801
      delaywheel log salvage dead-node --out salvaged --send 127.0.0.1:20801 --yes
    """
    if server is None and (in_doubt or yes):
        raise click.UsageError("--in-doubt and --yes go with --send")
    if delivered and undeliverable:
        raise click.UsageError("give either --delivered or --undeliverable")
    from storage.disk.disk import full_or_fatal, permitted

    work = _open(paths, out)
    with full_or_fatal(f"{out} cannot be written"), permitted(str(out), "written"):
        _require_own(out)
        counts = _write_out(work, out, delivered=delivered, undeliverable=undeliverable)
    _tell(work, counts, out)
    if work.gaps and not counts:
        raise Failure("no message was found whole", ExitCode.LOGS)
    if server is not None:
        states = {"pending", "in doubt"} if in_doubt else {"pending"}
        _send(out, server, states, counts, rate=rate, really=yes)


def _open(paths: Sequence[Path], out: Path) -> "Salvage":
    """Return the salvage of a directory, or of files that all lie in one."""
    from storage.disk.disk import DirectoryDisk
    from storage.tools.inspect import data_directory_of, is_data_directory
    from storage.tools.salvage import Salvage

    now_ms = time.time_ns() // 1_000_000
    if any(path.is_dir() for path in paths):
        if len(paths) > 1:
            raise click.UsageError("give one data directory, or files of one")
        root, files = paths[0], None
        if not is_data_directory(root):
            raise click.UsageError(f"{root} is no data directory: no log is in it")
    else:
        found = [data_directory_of(path) for path in paths]
        root, files = found[0][0], [name for _, name in found]
        if any(other != root for other, _ in found):
            raise click.UsageError("all files must lie in one data directory")
    _require_elsewhere(root, out)
    return Salvage(DirectoryDisk(root), files, now_ms=now_ms)


def _require_elsewhere(root: Path, out: Path) -> None:
    if out.resolve().is_relative_to(root.resolve()):
        raise click.UsageError(f"{out} lies in {root}, to which nothing is written")


def _require_own(out: Path) -> None:
    if out.exists() and any(out.iterdir()) and not (out / _INDEX).exists():
        raise click.UsageError(f"{out} is not empty, and holds no earlier salvage")


def _write_out(work: "Salvage", out: Path, *, delivered: bool, undeliverable: bool) -> Counter[str]:
    """Write index, items and damage; return how many messages are in which state."""
    out.mkdir(parents=True, exist_ok=True)
    counts: Counter[str] = Counter()
    with (out / _INDEX).open("wb") as index, (out / _ITEMS).open("wb") as items:
        for item in work.items():
            if undeliverable and (item.is_served or not item.is_wanted):
                continue
            counts[item.state] += 1
            offset = None
            if item.is_wanted or delivered:
                offset = items.tell()
                items.write(item.data)
            index.write(msgspec.json.encode(_entry(item, offset)) + b"\n")
    with (out / _DAMAGE).open("wb") as damage:
        for gap in work.gaps:
            line = {"file": gap.path, "position": gap.position, "bytes": gap.size}
            damage.write(msgspec.json.encode(line | {"reason": gap.reason}) + b"\n")
    return counts


def _entry(item: "SalvagedItem", offset: int | None) -> Entry:
    return Entry(
        sequence=item.sequence,
        due_ms=item.due_ms,
        subject=item.subject.decode(errors="backslashreplace"),
        message_id=item.message_id.decode(errors="backslashreplace"),
        state=item.state,
        file=item.path,
        position=item.position,
        served=item.is_served,
        offset=offset,
        size=len(item.data),
    )


def _tell(work: "Salvage", counts: Counter[str], out: Path) -> None:
    from delay_protocol.basics.printable import printable

    parts = ", ".join(f"{count:,} {state}" for state, count in sorted(counts.items()))
    click.echo(f"{counts.total():,} messages found whole{': ' if parts else ''}{parts}")
    if counts["in doubt"]:
        click.echo(
            "facts are damaged or missing: if what is in doubt is sent, up to "
            f"{counts['in doubt']:,} messages may be sent again"
        )
    for gap in work.gaps[:_GAPS_SHOWN]:
        line = f"damaged: {gap.path} at {gap.position}, {gap.size} bytes: {gap.reason}"
        click.echo(printable(line))
    if len(work.gaps) > _GAPS_SHOWN:
        click.echo(f"and {len(work.gaps) - _GAPS_SHOWN:,} more damaged places")
    click.echo(f"written: {out / _INDEX}, {out / _ITEMS}, {out / _DAMAGE}")


def _send(
    out: Path, server: str, states: set[str], counts: Counter[str], *, rate: int, really: bool
) -> None:
    """Send what the index says is in one of these states, or say what that would be.

    counts: entries of the index, by state.
    """
    chosen = sum(counts[state] for state in states)
    now_ms = time.time_ns() // 1_000_000
    overdue = sum(1 for entry in _entries(out) if entry.state in states and entry.due_ms <= now_ms)
    what = f"{chosen:,} messages to {server}, {overdue:,} of them overdue and delivered at once"
    click.echo(
        "Each keeps its message id. What was delivered shortly before a crash has no record of it, "
        "and what is in doubt may have been delivered: consumers may get it twice.",
        err=True,
    )
    left = counts["in doubt"]
    if left and "in doubt" not in states:
        click.echo(f"{left:,} in doubt are left out; --in-doubt sends them, too", err=True)
    if not really:
        click.echo(f"would send {what}; nothing was sent, run it with --yes to send")
        return
    click.echo(f"sending {what}")
    failures = _send_all(out, server, states, rate)
    click.echo(f"{chosen - len(failures):,} of {chosen:,} messages accepted by {server}")
    fail_if_any(failures, chosen)


def _entries(out: Path) -> Iterator[Entry]:
    decode = msgspec.json.Decoder(Entry).decode
    with (out / _INDEX).open("rb") as index:
        for line in index:
            yield decode(line)


def _send_all(out: Path, server: str, states: set[str], rate: int) -> list[Exception]:
    """Send at most `rate` messages a second; return what failed."""
    from delay_client import Receipt

    client = client_of([server], (), hint="--send")
    failures: list[Exception] = []

    def on_answers(_: object, answers: "Sequence[Receipt | DelaywheelError]") -> bool:
        failures.extend(one for one in answers if not isinstance(one, Receipt))
        return True

    with client:
        send_at_rate(client, _items(out, states), lambda one: one, on_answers, rate=rate)
    return failures


def _items(out: Path, states: set[str]) -> Iterator["OutgoingItem"]:
    """Yield the items of messages in these states; they are sent again byte for byte."""
    from delay_client import OutgoingItem

    with (out / _ITEMS).open("rb") as items:
        for entry in _entries(out):
            if entry.state in states:
                assert entry.offset is not None, "what is sent was written"
                items.seek(entry.offset)
                yield OutgoingItem(entry.subject, items.read(entry.size))
