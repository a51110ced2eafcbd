"""The rules of a cluster: what is paused and limited, kept by a meta server for all its nodes."""

import contextlib
import time
from collections.abc import Mapping
from typing import Any, Final

import click

from delaywheel.shared.admin_client import Conflict, Json, Session
from delaywheel.shared.failures import ExitCode, Failure
from delaywheel.shared.terminal import print_json

_NODES_S: Final = 3.0
"""Seconds in which every node should apply what was changed at the meta server."""

_LOOK_S: Final = 0.1

_TRIES: Final = 5
"""Times that a rule is read again where somebody changed another one meanwhile."""

_FIELDS: Final = ("paused", "rate_per_s", "weight")
"""The fields of rules that are set."""

_NAMED_MAX: Final = 5
"""Rules that are named where there are more."""


class Rules:
    """The rules of a cluster at its meta server."""

    def __init__(self, session: Session, cluster: str | None) -> None:
        self.session = session
        self._cluster = cluster

    @property
    def cluster(self) -> str:
        """The cluster that is meant; raises UsageError if it has to be said."""
        if self._cluster is None:
            names = [row["name"] for row in self.session.rows("cluster", query={}, limit=None)]
            if len(names) != 1:
                raise click.UsageError(
                    f"give --cluster NAME; there are: {', '.join(names)}"
                    if names
                    else "no delay server has registered at this meta server yet: there is no "
                    "cluster of which anything could be said"
                )
            self._cluster = str(names[0])
        return self._cluster

    def show(self) -> Json:
        """Return all rules, and the version that each node applies."""
        found, query = self._nodes(), {"prefix": f"{self.cluster}/"}
        for kind in ("subject", "group"):
            rows = self.session.rows(f"{kind}-rule", query=query, limit=None)
            found[f"{kind}s"] = {row[kind]: row for row in rows}
        return found

    def change(self, subject: str | None, group: str | None, **fields: object) -> None:
        """Change a rule, print what holds then, and wait until all nodes apply it.

        Raises Failure if one does not that may deliver; others are named.
        """
        if (subject is None) is (group is None):
            raise click.UsageError("give either --subject or --group")
        kind, name = ("group", group) if subject is None else ("subject", subject)
        assert name is not None
        self._store(kind, name, fields)
        self._report(kind, name)

    def pause_group(self, name: str) -> bool:
        """Pause a broker group; return True if the meta server knows it.

        Raises Failure if a node does not apply it that may deliver.
        """
        self._store("group", name, {"paused": True})
        nodes = self._until_applied()
        _check_applied(nodes)
        return name not in nodes["unknown_groups"]

    def _store(self, kind: str, name: str, fields: Mapping[str, object]) -> None:
        """Change fields of a rule; the others stay, also if somebody changes them meanwhile."""
        path = (f"{kind}-rule", self.cluster, name)
        for _ in range(_TRIES):
            with contextlib.suppress(Conflict):
                self.session.change(*path, fields=fields, names=_FIELDS)
                return
        raise Failure("others change the rules at the same time: try again", ExitCode.REFUSED)

    def _report(self, kind: str, name: str) -> None:
        """Wait until all nodes apply what was stored, and print what holds."""
        from delay_protocol.basics.printable import printable

        self._until_applied()
        answer = self.show()
        if self.session.as_json:
            print_json(answer)
        else:
            texts = _subject_texts if kind == "subject" else _group_texts
            for line in (*texts(name, answer), *_node_texts(answer)):
                click.echo(printable(line))
        _check_applied(answer)

    def _until_applied(self) -> Json:
        """Wait a moment for all nodes to apply what was stored; return how it is then."""
        deadline = time.monotonic() + _NODES_S
        while True:
            answer = self._nodes()
            # A node that is silent is not waited for if it delivers nothing.
            is_awaited = any(node["in_sync"] or not _is_silent(node) for node in _behind(answer))
            if not is_awaited or time.monotonic() >= deadline:
                return answer
            time.sleep(_LOOK_S)

    def _nodes(self) -> Json:
        """Return the version of the rules, and the one that each node applies."""
        return self.session.ask("GET", "cluster", self.cluster)


def _behind(answer: Json) -> list[Json]:
    """Return the nodes that do not apply the present version, as far as is known."""
    return [node for node in answer["nodes"] if node["controls_note"] or _is_silent(node)]


def _is_silent(node: Json) -> bool:
    return node["heard_seconds_ago"] is None


def _check_applied(answer: Json) -> None:
    """Raise Failure if there are nodes that may deliver and do not apply what was stored.

    Another node asks for the rules before it begins to deliver.
    """
    lacking = [_why_behind(node) for node in _behind(answer) if node["in_sync"]]
    if lacking:
        raise Failure(
            "stored, but not applied everywhere yet: " + "; ".join(lacking), ExitCode.REFUSED
        )


def _why_behind(node: Json) -> str:
    silent = "it is silent, and applies what it got last" if _is_silent(node) else ""
    return f"{node['node_id']} of {node['group']}: {silent or node['controls_note']}"


def _node_texts(answer: Json) -> list[str]:
    """Return how many nodes apply the present version, and who need not yet."""
    behind = _behind(answer)
    waiting = [node for node in behind if not node["in_sync"]]
    nodes = len(answer["nodes"]) - len(waiting)
    applying = len(answer["nodes"]) - len(behind)
    return [
        f"version {answer['version']}: {applying} of {nodes} nodes apply it",
        *(
            f"it delivers nothing and need not apply it yet: {_why_behind(node)}"
            for node in waiting
        ),
    ]


def _subject_texts(name: str, answer: Json) -> list[str]:
    """Return what holds for a subject or prefix after a change."""
    from delay_protocol.nodes.controls import SubjectControl, SubjectRules

    others = {pattern: rule for pattern, rule in answer["subjects"].items() if pattern != name}
    own = answer["subjects"].get(name)
    # Only the names matter to it.
    over = SubjectRules(dict.fromkeys(others, SubjectControl())).pattern_over(name)
    if own is not None:
        text = text_of_rule(own)
        if over is not None and others[over].get("paused") and not own.get("paused"):
            text += f", an exception: {over} is paused"
    elif over is not None:
        text = f"{text_of_rule(others[over])}, by the rule of {over}"
    else:
        text = text_of_rule({})
    texts = [f"subject {name}: {text}"]
    below = sorted(one for one in others if name.endswith("*") and one.startswith(name[:-1]))
    if below:
        more = f" and {len(below) - _NAMED_MAX} more" if len(below) > _NAMED_MAX else ""
        named = ", ".join(below[:_NAMED_MAX])
        texts.append(f"but for those with a rule of their own: {named}{more}")
    return texts


def _group_texts(name: str, answer: Json) -> list[str]:
    """Return what holds for a broker group after a change."""
    rule = answer["groups"].get(name)
    texts = [f"group {name}: {text_of_rule(rule or {})}"]
    if rule and name in answer["unknown_groups"]:
        note = f"the meta server knows no broker group {name} at present"
        texts.append(f"{note}: it holds where there is one")
    return texts


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
