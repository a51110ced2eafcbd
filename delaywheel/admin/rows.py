"""The commands of `delaywheel admin` for each kind of row and each action, made from their structs.

    get | set | remove KIND    the rows of a kind
    ACTION                     elect, approve and so on: what is more than another row

The help of a command is the docstring of the rule that it asks for.
"""

import contextlib
import functools
import inspect
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import click

from delaywheel.admin.fields import Fields, Option, given
from delaywheel.admin.showing import show, show_rows
from delaywheel.admin.waiting import elect_and_wait, hand_over
from delaywheel.shared.admin_client import Conflict, Missing, Session
from delaywheel.shared.options import option
from meta_server.admin.admin_types import AuditQuery, RouteExtension
from meta_server.admin.administration import extend_routes
from meta_server.admin.kinds import BROKER_GROUPS, KINDS, REMOVE, SET, Action, ResourceKind

_EXAMPLES: Final[Mapping[str, str]] = {
    "broker-group": "broker1 address=127.0.0.1:20881 weight=50",
    "broker": "broker1/MASTER hostname=b1 ip=10.0.0.1 serve_port=20881 sync_port=20882",
    "subject": "orders.paid",
    "route": "'orders.*' groups=broker1,broker2",
    "receiver": "billing 'patterns=orders.*,paid'",
    "webhook": "shop url=https://shop.example.com/hook 'subjects=orders.*' \"secrets=$SECRET\"",
    "delay-group": "delay1",
    "delay-node": "delay1/n2",
    "subject-rule": "'cluster1/orders.*' paused=true",
    "group-rule": "cluster1/broker1 rate_per_s=100",
    "cluster": "cluster1",
    "disable": "shop --reason moved",
    "approve": "broker1 --address 10.0.0.1:20881",
    "extend": "broker1 broker2",
    "elect": "delay1 --wait",
    "handover": "delay1 --to n2",
    "min-isr": "delay1 2",
    "recover": "delay1 --lose-messages",
    "give-up": "delay1 n2",
}
"""The words after the name of a kind, as `set` has it, or of an action."""

_ALL: Final = option("--all", "Show all rows (but --limit), and all columns.", to="everything")
_LIMIT: Final = option("--limit ROWS>=1", "How many rows are shown.  [default: 100]")
_LIMIT_DEFAULT: Final = 100
_VERSION: Final = option(
    "--version N",
    "Only if it has this version, 0: only if it is new. Without it any is changed.",
)
_WAIT: Final = option("--wait", "Wait for the new master, 30 s at the most.")


def commands_of(verb: str) -> dict[str, click.Command]:
    """Return the commands of get, set or remove by their kinds, or of all actions by their names.

    verb: empty for the actions
    """
    if verb == "get":
        return {kind.name: _getter(kind) for kind in KINDS} | {"audit": _audit()}
    actions = [(kind, action) for kind in KINDS for action in kind.actions]
    if verb in _MAKERS:
        make = _MAKERS[verb]
        return {kind.name: make(kind, one) for kind, one in actions if one.name == verb}
    forms: dict[str, list[_Form]] = {}
    for kind, one in actions:
        if one.name not in _MAKERS:
            forms.setdefault(one.name, []).append((kind, Fields(one.wanted), one.rule))
    forms["extend"] = [(BROKER_GROUPS, Fields(RouteExtension), extend_routes)]
    return {name: _action(name, found) for name, found in forms.items()}


def _note_json(ctx: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 (click's)
    session = ctx.find_object(Session)
    assert session is not None
    session.as_json |= value


_JSON: Final = option(
    "--json", "Print the server's answer as JSON.", callback=_note_json, expose_value=False
)


def _command(
    words: str, act: Callable[..., None], *options: Option, about: str, example: str
) -> click.Command:
    """Return a command; words: its names; about: its help, whose first sentence stands for it."""
    command = click.Command(
        words.rpartition(" ")[2],
        callback=click.pass_obj(act),
        help=f"{about}\n\n\b\nExample:\n  delaywheel admin {words} {example}",
        short_help=about.partition("\n")[0].partition(". ")[0].removesuffix(".") + ".",
    )
    for add in (*options, _JSON):
        add(command)
    return command


def _text(documented: object) -> str:
    """Return the docstring of a struct or rule, which describes it here too."""
    return inspect.cleandoc(documented.__doc__ or "")


def _example(kind: ResourceKind) -> str:
    return _EXAMPLES[kind.name].partition(" ")[0]


def _names_of(kind: ResourceKind) -> list[str]:
    return [name.upper() for name in kind.key.__struct_fields__]


def _words(metavar: str, *, required: bool = True) -> Option:
    return click.argument("words", nargs=-1, required=required, metavar=metavar)


def _key_of(kind: ResourceKind, words: Sequence[str]) -> list[str]:
    """Return the parts of a key, `d1/n1` or `d1 n1`; raise UsageError if one is missing."""
    names = _names_of(kind)
    parts = "/".join(words).split("/", len(names) - 1)
    if len(parts) != len(names) or not all(parts):
        raise click.UsageError(f"the key of a {kind.name} is {'/'.join(names)}")
    return parts


@contextlib.contextmanager
def _hints(kind: ResourceKind, key: Sequence[str], *, is_new: bool = False) -> Iterator[None]:
    """Add to a refusal how to look at the row, or at all that there are.

    is_new: the row may be new, and something else is missing
    """
    try:
        yield
    except (Conflict, Missing) as error:
        if is_new and isinstance(error, Missing):
            raise
        look = f"{kind.name} {shlex.quote('/'.join(key))}"
        hint = f"look at it with `delaywheel admin get {look}`, and try again"
        if isinstance(error, Missing):
            hint = f"`delaywheel admin get {kind.name}` lists those that there are"
        raise type(error)(f"{error.message}: {hint}", error.exit_code) from error


# Rows


def _list(
    session: Session, *, name: str, limit: int | None, everything: bool, **options: object
) -> None:
    """Print the rows of a kind."""
    most = limit if limit is not None or everything else _LIMIT_DEFAULT
    rows = session.rows(
        name,
        query=given(options),
        limit=most and most + 1,
        after_name="before" if name == "audit" else "after",
    )
    show_rows(session, name, rows, most=most, all_columns=everything)


def _audit() -> click.Command:
    filters = Fields(AuditQuery).options(without=("before", "limit")).values()
    return _command(
        "get audit",
        functools.partial(_list, name="audit"),
        *(*filters, _LIMIT, _ALL),
        about="Show who changed what, newest first, with the values before and after.",
        example="--action route",
    )


def _getter(kind: ResourceKind) -> click.Command:
    def get(
        session: Session,
        *,
        words: Sequence[str],
        **options: Any,  # noqa: ANN401
    ) -> None:
        if not words:
            _list(session, name=kind.name, **options)
            return
        everything = options.pop("everything")
        del options["limit"]
        if given(options):
            raise click.UsageError("options that choose rows go with a list, not with one row")
        key = _key_of(kind, words)
        with _hints(kind, key):
            shown = session.ask("GET", kind.name, *key)
        show(session, shown, all_columns=everything)

    return _command(
        f"get {kind.name}",
        get,
        _words(f"[{'/'.join(_names_of(kind))}]", required=False),
        *Fields(kind.filters).options(without=("after", "limit")).values(),
        *(_LIMIT, _ALL),
        about=f"Show rows of the kind {kind.name}, or one.\n\n{_text(kind.shown)}",
        example=_example(kind),
    )


def _setter(kind: ResourceKind, action: Action) -> click.Command:
    fields = Fields(action.wanted)

    def set_row(
        session: Session,
        *,
        key: str,
        values: Sequence[str],
        version: str | None,
    ) -> None:
        parts, changes = _key_of(kind, [key]), fields.body_of(values)
        with _hints(kind, parts, is_new=True):
            answer = session.change(
                *(kind.name, *parts), fields=changes, names=fields.schemas, version=version or ""
            )
        show(session, answer)
        if kind.name == "route" and key.endswith("*") and not session.as_json:
            _note_kept(session, key.removesuffix("*"))

    return _command(
        f"set {kind.name}",
        set_row,
        click.argument("key", metavar="/".join(_names_of(kind))),
        click.argument("values", nargs=-1, metavar="FIELD=VALUE..."),
        _VERSION,
        about=f"{_text(action.rule)}\n\nFields that are not named stay; of a new row they have "
        f"their defaults. A list has commas.\n\n{fields.help()}",
        example=_EXAMPLES[kind.name],
    )


def _note_kept(session: Session, prefix: str) -> None:
    """Print that subjects of a prefix with routes of their own keep them, if there are any."""
    from delay_protocol.basics.printable import printable

    if session.ask("GET", "route", query={"prefix": prefix, "limit": 1})["next"] is None:
        return
    click.echo(
        f"subjects that begin with {printable(prefix)} have routes of their own and keep them: "
        f"`delaywheel admin get route --prefix {shlex.quote(prefix)}` names them, "
        "`delaywheel admin remove route SUBJECT` has one follow the prefix",
        err=True,
    )


def _remover(kind: ResourceKind, action: Action) -> click.Command:
    def remove(
        session: Session, *, words: Sequence[str], version: str | None, **query: object
    ) -> None:
        key = _key_of(kind, words)
        with _hints(kind, key):
            answer = session.ask("DELETE", kind.name, *key, query=query, if_match=version)
        if session.as_json:
            show(session, answer)
        else:
            click.echo(f"{kind.name} {'/'.join(key)} is removed")

    return _command(
        f"remove {kind.name}",
        remove,
        _words("/".join(_names_of(kind))),
        *(*Fields(action.wanted).options().values(), _VERSION),
        about=_text(action.rule) or f"Remove a {kind.what}.",
        example=_example(kind),
    )


_MAKERS: Final[Mapping[str, Callable[[ResourceKind, Action], click.Command]]] = {
    SET: _setter,
    REMOVE: _remover,
}
"""Make the commands of the actions that each kind has in a way of its own."""


# Actions

_Form = tuple[ResourceKind, Fields, Callable[..., Any]]
"""The kind of an action, the fields of its body, and its rule."""


def _action(name: str, forms: Sequence[_Form]) -> click.Command:
    """Return the command of an action, which may be one of several kinds with keys that differ."""
    by_parts = {len(kind.key.__struct_fields__): (kind, fields) for kind, fields, _ in forms}
    required = forms[0][1].required
    places = " | ".join(" ".join(_names_of(kind)) for kind, _, _ in forms)
    metavar = " ".join([places, *(field.upper() for field in required)])
    waits = {"elect": elect_and_wait, "handover": hand_over}.get(name)

    def act(
        session: Session,
        *,
        words: Sequence[str],
        version: str | None,
        wait: bool = name == "handover",
        **more: object,
    ) -> None:
        split = len(words) - len(required)
        if split < 1:
            raise click.UsageError(f"give {metavar}")
        parts = "/".join(words[:split]).count("/") + 1
        kind, fields = by_parts.get(parts, by_parts[min(by_parts)])
        key = _key_of(kind, words[:split])
        values = [f"{field}={text}" for field, text in zip(required, words[split:], strict=True)]
        body = fields.body_of(values) | given(more)
        with _hints(kind, key):
            if waits is not None and wait:
                answer = waits(session, key[0], body)
            else:
                answer = session.ask("POST", kind.name, *key, name, body=body, if_match=version)
        show(session, answer)

    options = {name: one for _, fields, _ in forms for name, one in fields.options().items()}
    return _command(
        name,
        act,
        _words(metavar),
        *(*options.values(), _VERSION, *([_WAIT] if name == "elect" else [])),
        about="\n\n".join(_text(rule) for rule in (*(rule for _, _, rule in forms), waits) if rule),
        example=_EXAMPLES.get(name, "broker1"),
    )
