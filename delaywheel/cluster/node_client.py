"""Shared parts of commands that use a delay server's HTTP API."""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import click
import msgspec

from delaywheel.shared.admin_client import PAGE, Session
from delaywheel.shared.failures import ExitCode, Failure
from delaywheel.shared.options import with_token_file

TIMEOUT_S: Final = 30.0
"""A change is answered when it holds, which takes longer the more is held for delivery."""

_LONG_S: Final = 300.0
"""Millions of messages may have to be looked at for one id, thousands of dead letters changed."""

_NODE: Final = "127.0.0.1:20811"
"""The default HTTP address of a delay server."""

_NODES_S: Final = 3.0
"""Seconds in which every node should go by what was changed at the meta server."""

_LOOK_S: Final = 0.1

_NAMED_MAX: Final = 5
"""Rules that are named where there are more."""

Command = TypeVar("Command", bound=Callable[..., Any])


def of_node(command: Command) -> Command:
    """Add `session`: which node is asked, what proves that one may, how the answer is shown."""

    @functools.wraps(command)
    def run(
        *args: object, server: str, token_file: Path | None, as_json: bool, **options: object
    ) -> object:
        session = session_of(server, token_file, as_json=as_json, timeout_s=_LONG_S)
        return command(*args, session=session, **options)

    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the answer as it came."),
        with_token_file,
        click.option(
            "--server",
            default=_NODE,
            show_default=True,
            metavar="HOST:PORT",
            help="The delay server's HTTP address (http.address).",
        ),
    ):
        run = option(run)
    return cast("Command", run)


def of_rules(command: Command) -> Command:
    """Add `rules`: those that a meta server keeps for all delay servers of a cluster."""

    @functools.wraps(command)
    def run(
        *args: object,
        meta: str,
        cluster: str | None,
        token_file: Path | None,
        as_json: bool,
        **options: object,
    ) -> object:
        rules = rules_of(meta, cluster, token_file, as_json=as_json)
        return command(*args, rules=rules, **options)

    shown = click.option("--json", "as_json", is_flag=True, help="Print the answer as it came.")
    return cast("Command", at_meta(with_token_file(shown(run)), required=True))


def of_node_or_rules(command: Command) -> Command:
    """Add `door`: where a node is asked, or the rules of all nodes of a meta server."""

    @functools.wraps(command)
    def run(
        *args: object,
        server: str | None,
        meta: str | None,
        cluster: str | None,
        token_file: Path | None,
        as_json: bool,
        **options: object,
    ) -> object:
        if meta is None:
            if cluster is not None:
                raise click.UsageError("--cluster goes with --meta")
            door: Session | Rules = session_of(server or _NODE, token_file, as_json=as_json)
        elif server is not None:
            raise click.UsageError("give --server or --meta: a node, or all nodes of a meta server")
        else:
            door = rules_of(meta, cluster, token_file, as_json=as_json)
        return command(*args, door=door, **options)

    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the answer as it came."),
        with_token_file,
        functools.partial(at_meta, required=False),
        click.option(
            "--server",
            metavar="HOST:PORT",
            help=f"A delay server's HTTP address. [default: {_NODE}]",
        ),
    ):
        run = option(run)
    return cast("Command", run)


def at_meta(command: Command, *, required: bool) -> Command:
    """Add `meta` and `cluster`: whose rules are meant."""
    for option in (
        click.option(
            "--cluster", metavar="NAME", help="Which one, if the meta server has several."
        ),
        click.option(
            "--meta",
            metavar="HOST:PORT",
            required=required,
            help="A meta server's HTTP address: for all delay servers of a cluster.",
        ),
    ):
        command = option(command)
    return command


def rules_of(meta: str, cluster: str | None, token_file: Path | None, *, as_json: bool) -> "Rules":
    """Return the rules that a meta server keeps."""
    address = meta.removeprefix("http://").rstrip("/")
    return Rules(Session(address=address, token_file=token_file, as_json=as_json), cluster)


def on_one(command: Command) -> Command:
    """Add `subject` and `group`, of which one has to be given."""
    for option in (
        click.option("--group", metavar="NAME", help="A broker group."),
        click.option(
            "--subject",
            metavar="SUBJECT",
            help="A subject, or a prefix with a * at its end (quote it).",
        ),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """Messages in flight to a broker group."""

    messages: int
    """From the nodes that said it."""
    nodes: int
    """How many were asked."""
    is_known: bool
    """Whether any of them knows the group."""
    unknown: tuple[str, ...] = ()
    """Nodes that did not say it, and why."""

    @property
    def is_none(self) -> bool:
        """Whether it is known that nothing is."""
        return not self.messages and not self.unknown


class Rules:
    """The rules of a cluster, which a meta server keeps for all of its nodes."""

    def __init__(self, session: Session, cluster: str | None) -> None:
        self.session = session
        self._cluster = cluster

    def show(self) -> Mapping[str, Any]:
        """Return all rules, and which nodes go by them."""
        return self.session.ask("GET", "controls", self._name())

    def change(self, subject: str | None, group: str | None, body: Mapping[str, object]) -> None:
        """Change a rule, say what it is then, and wait until all nodes apply it.

        Raises Failure if one does not that may deliver; others are named.
        """
        kind, name = _one_of(subject, group)
        answer = self._store(kind, name, body)
        if not self.session.as_json:
            if kind == "subject":
                _say_subject(name, answer["subjects"])
            else:
                is_known = _is_known(answer, name)
                _say_group(name, answer["groups"].get(name), is_known=is_known)
        self._have_followed(answer)

    def remove(self, subject: str) -> None:
        """Take the rule of a subject, or prefix, away; else as `change`."""
        answer = self.session.ask(
            "DELETE", "controls", self._name(), "subjects", query={"subject": subject}
        )
        if not self.session.as_json:
            _say_subject(subject, answer["subjects"])
        self._have_followed(answer)

    def _have_followed(self, answer: Mapping[str, Any]) -> None:
        """Wait until all nodes go by what was stored, and say so; raise Failure if one does not."""
        answer = self._until_followed(answer)
        lacking, waiting = _lacking(answer), _waiting(answer)
        if self.session.as_json:
            print_json(answer)
        else:
            nodes = len(answer["nodes"]) - len(waiting)
            click.echo(
                f"version {answer['version']}: {nodes - len(lacking)} of {nodes} nodes apply it"
            )
            for node in waiting:
                click.echo(f"it delivers nothing and need not apply it yet: {_why_lacking(node)}")
        _check_followed(lacking)

    def pause_group(self, name: str, *, paused: bool) -> bool:
        """Pause a broker group, or have it go on, and wait until all nodes apply it.

        Return whether the meta server knows the group. Raises Failure if a node does not go by it
        that may deliver.
        """
        answer = self._until_followed(self._store("group", name, {"paused": paused}))
        _check_followed(_lacking(answer))
        return _is_known(answer, name)

    def in_flight_to(self, group: str) -> InFlight:
        """Return what is in flight to a broker group from the nodes of the cluster.

        They are asked at the HTTP addresses that they registered, but for those that deliver
        nothing.
        """
        from delaywheel.cluster.topology import ask_nodes

        cluster = self._name()
        groups = self.session.ask("GET", "topology")["delay_groups"]
        known = [node for one in groups if one["cluster"] == cluster for node in one["nodes"]]
        nodes = [node for node in known if _may_deliver(node)]
        token_file = self.session.node_token_file
        answers = ask_nodes(nodes, lambda status: _in_flight_of(status, group), token_file)
        return InFlight(
            messages=sum(answer.get("in_flight") or 0 for answer in answers),
            is_known=any(answer.get("in_flight") is not None for answer in answers),
            nodes=len(nodes),
            unknown=tuple(
                f"{node['node_id']}: {answer['error']}"
                for node, answer in zip(nodes, answers, strict=True)
                if "error" in answer
            ),
        )

    def _store(self, kind: str, name: str, body: Mapping[str, object]) -> Mapping[str, Any]:
        """Change a rule at the meta server; return all rules, and which nodes go by them."""
        return self.session.ask(
            "PATCH", "controls", self._name(), f"{kind}s", body={kind: name, **body}
        )

    def _until_followed(self, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """Wait a moment for all nodes to go by what was stored; return how it is then."""
        deadline = time.monotonic() + _NODES_S
        while _awaited(answer) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
            answer = self.session.ask("GET", "controls", self._name())
        return answer

    def _name(self) -> str:
        """Return which cluster is meant; raise UsageError if it has to be said."""
        if self._cluster is None:
            found = self.session.ask("GET", "controls", query={"limit": PAGE})["items"]
            if len(found) != 1:
                names = ", ".join(row["cluster"] for row in found)
                raise click.UsageError(
                    f"give --cluster NAME; there are: {names}"
                    if found
                    else "no delay server has registered at this meta server yet: there is no "
                    "cluster of which anything could be said"
                )
            self._cluster = str(found[0]["cluster"])
        return self._cluster


class _Broker(msgspec.Struct, frozen=True):
    in_flight: int


class _Status(msgspec.Struct, frozen=True):
    """The used part of a node's status."""

    failing: list[str]
    brokers: dict[str, _Broker] = {}
    """A node that has none delivers nothing: it is no master, or has only just been started."""


def _in_flight_of(status: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Return what is in flight to a group, None if the node does not know it.

    Raises ValidationError for what is no node's status.
    """
    broker = msgspec.convert(status, _Status).brokers.get(group)
    return {"in_flight": None if broker is None else broker.in_flight}


def _may_deliver(node: Mapping[str, Any]) -> bool:
    # A meta server of an older version does not say.
    return bool(node.get("may_deliver", True))


def _is_behind(node: Mapping[str, Any]) -> bool:
    """Say whether a node does not go by the present version, as far as is known."""
    return bool(node["note"]) or node["liveness"] == "none"


def _lacking(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the nodes that may deliver and do not go by the present version."""
    return [node for node in answer["nodes"] if _is_behind(node) and _may_deliver(node)]


def _waiting(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the nodes that do not apply it either, but deliver nothing.

    Such a node asks for the rules before it begins to deliver.
    """
    return [node for node in answer["nodes"] if _is_behind(node) and not _may_deliver(node)]


def _awaited(answer: Mapping[str, Any]) -> bool:
    """Say whether a node may go by the present version in a moment: those that wait do as well."""
    is_told = any(node["liveness"] == "heard" for node in _waiting(answer))
    return bool(_lacking(answer)) or is_told


def _check_followed(lacking: Sequence[Mapping[str, Any]]) -> None:
    """Raise Failure if there are nodes that do not go by what was stored."""
    if lacking:
        raise Failure(
            "stored, but not applied everywhere yet: " + "; ".join(map(_why_lacking, lacking)),
            ExitCode.REFUSED,
        )


def _why_lacking(node: Mapping[str, Any]) -> str:
    silent = "it is silent, and goes by what it heard last" if node["liveness"] == "none" else ""
    return f"{node['node_id']} of {node['group']}: {silent or node['note']}"


def _one_of(subject: str | None, group: str | None) -> tuple[str, str]:
    """Return of what kind the one rule is that is meant, and its name."""
    if subject is not None and group is not None:
        raise click.UsageError("give --subject or --group, not both: a rule is for one of them")
    if subject is None and group is None:
        raise click.UsageError("give --subject or --group")
    if subject is not None:
        return "subject", subject
    assert group is not None
    return "group", group


def session_of(
    server: str, token_file: Path | None, *, as_json: bool, timeout_s: float = TIMEOUT_S
) -> Session:
    """Return where a command asks; a URL does for host:port as well."""
    return Session(
        address=server.removeprefix("http://").rstrip("/"),
        token_file=token_file,
        as_json=as_json,
        prefix="",
        what="delay server",
        timeout_s=timeout_s,
    )


def print_json(answer: Mapping[str, Any]) -> None:
    """Print an answer for programs."""
    click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2))


def _is_known(answer: Mapping[str, Any], group: str) -> bool:
    return group not in answer.get("unknown_groups", ())


def _say_subject(name: str, rules: Mapping[str, Mapping[str, Any]]) -> None:
    """Print what holds for a subject or prefix after a change; `rules` are those of all."""
    from delay_protocol.basics.printable import printable

    others = {pattern: rule for pattern, rule in rules.items() if pattern != name}
    over = _pattern_over(name, others)
    if name in rules:
        text = text_of_rule(rules[name])
        if over is not None and others[over].get("paused") and not rules[name].get("paused"):
            text += f", an exception: {over} is paused"
    elif over is not None:
        text = f"{text_of_rule(others[over])}, by the rule of {over}"
    else:
        text = text_of_rule({})
    click.echo(printable(f"subject {name}: {text}"))
    if name.endswith("*"):
        found = sorted(pattern for pattern in others if pattern.startswith(name[:-1]))
        if found:
            more = f" and {len(found) - _NAMED_MAX} more" if len(found) > _NAMED_MAX else ""
            named = ", ".join(found[:_NAMED_MAX])
            click.echo(printable(f"but for those with a rule of their own: {named}{more}"))


def _pattern_over(name: str, rules: Mapping[str, Mapping[str, Any]]) -> str | None:
    from delay_protocol.nodes.controls import SubjectControl, SubjectRules

    # Only the names matter to it.
    return SubjectRules(dict.fromkeys(rules, SubjectControl())).pattern_over(name)


def _say_group(name: str, rule: Mapping[str, Any] | None, *, is_known: bool) -> None:
    """Print what holds for a broker group after a change; is_known: to the meta server."""
    from delay_protocol.basics.printable import printable

    click.echo(printable(f"group {name}: {text_of_rule(rule or {})}"))
    if rule and not is_known:
        note = f"the meta server knows no broker group {name} at present"
        click.echo(printable(f"{note}: it holds where there is one"))


def text_of_rule(rule: Mapping[str, Any]) -> str:
    """Return what a rule says, for people."""
    parts = []
    if rule.get("paused"):
        parts.append("paused")
    if rule.get("rate_per_s") is not None:
        parts.append(f"at most {rule['rate_per_s']:g} messages/s")
    if rule.get("weight") is not None:
        parts.append(f"weight {rule['weight']:g}")
    return ", ".join(parts) or "open"
