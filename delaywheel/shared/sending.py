"""Shared parts of commands that send messages."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from delaywheel.shared.failures import ExitCode, Failure, failure_of
from delaywheel.shared.options import Command, option, with_options

if TYPE_CHECKING:
    from delay_client import BlockingClient, DelaywheelError, OutgoingItem, Receipt

_FAILURES_SHOWN: Final = 10
_AT_ONCE: Final = 500
"""Messages that are sent, and not answered yet, at the most."""
_BYTES_AT_ONCE: Final = 4 * 1024 * 1024
"""Bytes of these, beyond which no further one is added."""
_Message = TypeVar("_Message")


def to_servers(command: Command) -> Command:
    """Add `metas` and `servers`: where messages go."""
    options = (
        option(
            "--meta HOST:PORT...",
            "The HTTP port of a meta server, which tells where the messages go. Repeatable: any "
            "that answers will do.",
            to="metas",
        ),
        option(
            "--server HOST:PORT...",
            "In place of --meta a delay server. Repeatable: each takes messages, one that fails "
            "is done without.",
            to="servers",
        ),
    )
    return with_options(command, options)


def client_of(
    servers: Sequence[str],
    metas: Sequence[str],
    *,
    hint: str = "",
    **options: Any,  # noqa: ANN401 (the client's)
) -> "BlockingClient":
    """Return a client of delay servers or meta servers; raise BadParameter for a wrong address.

    hint: the option that has the addresses, if it is not --server or --meta
    """
    from delay_client import BlockingClient
    from delay_protocol.basics.printable import printable

    try:
        return BlockingClient(servers or None, meta=metas or None, **options)
    except ValueError as error:
        raise click.BadParameter(
            printable(str(error)), param_hint=hint or ("--meta" if metas else "--server")
        ) from error


def fail_if_any(errors: Sequence[Exception], count: int) -> None:
    """Raise Failure with the reasons if there are errors; count: messages in all."""
    if not errors:
        return
    from delay_protocol.basics.printable import printable

    failure = failure_of(errors[0])
    code = failure.exit_code if failure and len(errors) == count else ExitCode.REFUSED
    reasons = list(dict.fromkeys(printable(str(error)) for error in errors))
    shown = "\n".join(reasons[:_FAILURES_SHOWN])
    if len(reasons) > _FAILURES_SHOWN:
        shown += f"\nand {len(reasons) - _FAILURES_SHOWN} more"
    raise Failure(shown, code)


def send_at_rate(
    client: "BlockingClient",
    messages: Iterator[_Message],
    item_of: "Callable[[_Message], OutgoingItem]",
    on_answers: "Callable[[Sequence[_Message], Sequence[Receipt | DelaywheelError]], bool]",
    *,
    rate: int,
    timeout_s: float | None = None,
) -> None:
    """Send messages, at most `rate` a second, some at a time.

    on_answers: is handed some messages and what became of each before the next are sent, and says
    whether to go on.
    """
    goes_on = True
    while goes_on:
        began, size = time.monotonic(), 0
        found: list[_Message] = []
        items: list[OutgoingItem] = []
        for one in messages:
            found.append(one)
            items.append(item_of(one))
            size += len(items[-1].data)
            if len(found) >= min(rate, _AT_ONCE) or size >= _BYTES_AT_ONCE:
                break
        if not found:
            return
        goes_on = on_answers(found, client.send_items(items, timeout=timeout_s))
        if goes_on:
            time.sleep(max(0.0, began + len(found) / rate - time.monotonic()))
