"""The account of the demo, as it is printed."""

from rich.console import Console
from rich.table import Table

from examples.departures.account import RETURN_MS, Account, Phase, quantile


def group_table(account: Account) -> Table:
    """Return what each broker group got."""
    table = Table(title="What each broker group got")
    table.add_column("")
    for group in account.weights:
        table.add_column(group, justify="right")
    table.add_row(
        "weight",
        *(f"{weight}  {account.deserved(group):6.1%}" for group, weight in account.weights.items()),
    )
    back_s = f"{RETURN_MS / 1000:g} s"
    words = {
        Phase.BEFORE: "before",
        Phase.DOWN: f"{account.taken_down} down",
        Phase.RETURN: f"{account.taken_down} started, and {back_s} on",
        Phase.CHANGE: f"another master, and {back_s} on",
        Phase.AFTER: "after",
    }
    for phase, name in words.items():
        got = account.got(phase)
        total = max(sum(got.values()), 1)
        table.add_row(name, *(f"{count}  {count / total:6.1%}" for count in got.values()))
    table.add_section()
    table.add_row("distinct messages", *map(str, account.distinct().values()))
    table.add_row("delivered twice", *map(str, account.twice().values()))
    return table


def shown(duration_ms: int | None) -> str:
    """Return how long something took, for people."""
    return "never" if duration_ms is None else f"{duration_ms} ms"


def time_table(account: Account, start_ms: int) -> Table:
    """Return what happened to processes, in seconds of the played day."""
    table = Table(title="Time line", show_header=False)
    table.add_column("", justify="right")
    for moment_ms, what in account.time_line:
        table.add_row(f"{(moment_ms - start_ms) / 1000:.1f} s", what)
    return table


def pause_table(account: Account) -> Table:
    """Return how long nothing was answered and nothing delivered, while masters changed."""
    table = Table(title="While the master changed")
    for name in ("", "took", "pause of answers", "pause of deliveries"):
        table.add_column(name, justify="right" if name else "left")
    received_ms = [one.received_ms for one in account.receptions]
    for name, change in (("handover", account.handover), ("master killed", account.takeover)):
        pauses = (change.pause_ms(account.answered_ms), change.pause_ms(received_ms))
        table.add_row(name, shown(change.lasted_ms), *map(shown, pauses))
    return table


def disk_table(account: Account) -> Table:
    """Return what each delay server's directory has, all of them being dead."""
    table = Table(title="Each directory alone, after SIGKILL to all three")
    for name in ("node", "acknowledged messages in its log", "missing"):
        table.add_column(name, justify="right")
    for node in account.disks:
        missing = len(account.missing(node))
        table.add_row(node, str(len(account.acknowledged) - missing), str(missing))
    return table


def total_table(account: Account) -> Table:
    """Return what became of everything."""
    table = Table(title="Account", show_header=False)
    rows = {
        "sent": str(account.sent),
        "acknowledged": str(len(account.acknowledged)),
        "failed": str(len(account.failed)),
        "delivered": str(len(account.received)),
        "lost": str(len(account.lost)),
        "delivered twice": str(sum(account.twice().values())),
        "early": str(account.early),
        "delay server killed (SIGKILL), until in sync": shown(account.node_outage.lasted_ms),
        f"broker group {account.taken_down} down (SIGKILL)": shown(account.group_outage.lasted_ms),
    }
    if lateness := account.lateness_ms():
        rows["lateness p50"] = f"{quantile(lateness, 0.5)} ms"
        rows["lateness p99"] = f"{quantile(lateness, 0.99)} ms"
        rows["lateness max"] = f"{max(lateness)} ms"
    if lateness := account.lateness_ms(Phase.DOWN):
        rows[f"lateness max while {account.taken_down} was down"] = f"{max(lateness)} ms"
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def print_account(account: Account, console: Console, *, start_ms: int) -> bool:
    """Print the account of a day that began then; return whether the promises were kept."""
    console.print()
    console.print(time_table(account, start_ms))
    console.print(pause_table(account))
    console.print(disk_table(account))
    console.print(group_table(account))
    console.print(total_table(account))
    console.print(account.reconciliation, markup=False, soft_wrap=True)
    faults = account.broken()
    for fault in faults:
        console.print(fault, markup=False, soft_wrap=True)
    console.print("PROMISES BROKEN" if faults else "all promises kept")
    return not faults
