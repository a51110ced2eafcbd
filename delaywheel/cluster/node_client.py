"""The options by which a command knows whom it asks: a delay server, or a meta server."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

import click

from delaywheel.cluster.rules import Rules
from delaywheel.shared.admin_client import Session
from delaywheel.shared.options import option, with_options, with_token_file

TIMEOUT_S: Final = 30.0
"""A change is answered when it holds, which takes longer the more is held for delivery."""

LONG_S: Final = 300.0
"""Millions of messages may have to be looked at for one id, thousands of dead letters changed."""

_NODE: Final = "127.0.0.1:20811"
"""The default HTTP address of a delay server."""

_SERVER: Final = option(
    "--server HOST:PORT", f"A delay server's HTTP address (http.address).  [default: {_NODE}]"
)
_CLUSTER: Final = option("--cluster NAME", "Which one, if the meta server has several.")
_JSON: Final = option("--json", "Print the answer as it came.", to="as_json")

Command = TypeVar("Command", bound=Callable[..., Any])


def asks(
    *whom: Literal["session", "rules"], timeout_s: float = TIMEOUT_S
) -> Callable[[Command], Command]:
    """Add `session`, of a delay server, or `rules`, of a cluster; of both one is None."""
    meta = option(
        "--meta HOST:PORT",
        "A meta server's HTTP address: for all delay servers of a cluster.",
        required="session" not in whom,
    )
    options = [
        *([_SERVER] if "session" in whom else ()),
        *([meta, _CLUSTER] if "rules" in whom else ()),
        with_token_file,
        _JSON,
    ]

    def add(command: Command) -> Command:
        @functools.wraps(command)
        def run(
            *,
            token_file: Path | None,
            as_json: bool,
            server: str | None = None,
            meta: str | None = None,
            cluster: str | None = None,
            **more: object,
        ) -> object:
            if meta is None and cluster is not None:
                raise click.UsageError("--cluster goes with --meta")
            if meta is not None and server is not None:
                raise click.UsageError(
                    "give --server or --meta: a node, or all nodes of a meta server"
                )
            asked = functools.partial(Session, token_file=token_file, as_json=as_json)
            found = dict.fromkeys(whom)
            if meta is not None:
                found["rules"] = Rules(asked(address=meta), cluster)
            else:
                found["session"] = asked(
                    address=server or _NODE, prefix="", what="delay server", timeout_s=timeout_s
                )
            return command(**found, **more)

        return with_options(cast("Command", run), options)

    return add


def on_one(command: Command) -> Command:
    """Add `subject` and `group`, of which one has to be given."""
    subject = option("--subject SUBJECT", "A subject, or a prefix with a * at its end (quote it).")
    group = option("--group NAME", "A broker group.")
    return with_options(command, (subject, group))
