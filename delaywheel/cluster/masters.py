"""The delay servers that one command asks the same: a single one, or the master of each group."""

import functools
import heapq
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import islice
from operator import itemgetter
from typing import Any, Final, TypeVar

import click

from delaywheel.cluster.node_client import LONG_S, asks
from delaywheel.cluster.rules import Rules
from delaywheel.cluster.topology import ask_nodes
from delaywheel.shared.admin_client import Json, Session
from delaywheel.shared.failures import ExitCode, Failure
from delaywheel.shared.tables import Columns, rows_table, screen

_Answer = TypeVar("_Answer")

_UNKNOWN: Final[Json] = {"nodes": (), "election": "there is no such group"}
"""The record of a group that the meta server does not know."""


class Masters:
    """The delay server that a command names, or all masters of a cluster.

    One that is named is asked alone, under the name "" of a group, and its failure ends the
    command. Of a cluster a group that gives no answer is noted, and the others are asked.
    """

    def __init__(self, session: Session | None, rules: Rules | None) -> None:
        asked = session if rules is None else rules.session
        assert asked is not None, "one of both is given"
        self._asked = asked
        self._rules = rules
        self.as_json = asked.as_json
        """True if answers are printed for programs."""
        self.is_cluster = rules is not None
        """True if all masters of a cluster are asked."""
        self.unanswered: dict[str, Failure] = {}
        """Failures of groups that gave no answer, by name; they are on standard error as well."""

    @property
    def said_of_unanswered(self) -> Json:
        """The part of an answer for programs that says of groups why they gave none."""
        why = {group: str(failure) for group, failure in self.unanswered.items()}
        return {"unanswered": why} if self.is_cluster else {}

    @property
    def cluster(self) -> str:
        """The name of the cluster; empty if one delay server is asked."""
        return "" if self._rules is None else self._rules.cluster

    def sessions(self, groups: Collection[str] = ()) -> dict[str, Session]:
        """Return whom to ask by delay group, of these groups or of all.

        A group without a master, or whose master does not answer, is noted. Raises Failure if the
        meta server does not answer.
        """
        if self._rules is None:
            return {"": self._asked}
        cluster, records = self._rules.cluster, self._asked.ask("GET", "topology")["delay_groups"]
        known = {one["name"]: one for one in records if one["cluster"] == cluster}
        masters = {
            name: node
            for name in groups or known
            for node in known.get(name, _UNKNOWN)["nodes"]
            if node["node_id"] == known[name]["master"]
        }
        for name in set(groups or known) - masters.keys():
            why = known.get(name, _UNKNOWN)["election"] or "one is elected"
            self._note(name, Failure(f"no master: {why}", ExitCode.NETWORK))
        # One that is silent takes some seconds here, and minutes if it is asked for its letters.
        answers = ask_nodes(list(masters.values()), lambda _: {}, self._asked)
        for name, answer in zip(list(masters), answers, strict=True):
            if "error" in answer:
                self._note(name, Failure(answer["error"], ExitCode.NETWORK))
                del masters[name]
        return {
            name: self._asked.at_node(node["http_address"], timeout_s=LONG_S)
            for name, node in masters.items()
        }

    def answers(
        self, ask: Callable[[str, Session], _Answer], groups: Collection[str] = ()
    ) -> dict[str, _Answer]:
        """Return what the masters of these groups, or of all, answer, by delay group."""
        found: dict[str, _Answer] = {}
        for group, session in self.sessions(groups).items():
            with self._answering(group):
                found[group] = ask(group, session)
        return found

    def rows(self, path: str, query: Json, *, by: str, most: int) -> list[Json]:
        """Return so many rows of a list at the most, the first by a field over all masters."""
        found = [self._rows_of(*asked, path, query, most) for asked in self.sessions().items()]
        # A page of each is in memory, and what is returned.
        return list(islice(heapq.merge(*found, key=itemgetter(by)), most))

    def _rows_of(
        self, group: str, session: Session, path: str, query: Json, most: int
    ) -> Iterator[Json]:
        with self._answering(group):
            for row in session.rows(path, query=query, limit=most):
                yield {"delay_group": group, **row} if group else row

    def print_rows(self, columns: Columns, rows: list[Json]) -> None:
        """Print a table, which begins with the delay groups of a cluster."""
        first: Columns = {"delay group": "delay_group"} if self.is_cluster else {}
        screen().print(rows_table("", {**first, **columns}, rows, most=len(rows)))

    def end(self) -> None:
        """End the command as the first group that gave no answer did; return if all gave one."""
        for failure in self.unanswered.values():
            sys.exit(failure.exit_code)

    def _note(self, group: str, failure: Failure) -> None:
        from delay_protocol.basics.printable import printable

        self.unanswered[group] = failure
        click.echo(printable(f"delay group {group}: {failure}"), err=True)

    @contextmanager
    def _answering(self, group: str) -> Iterator[None]:
        """Note a Failure of the block as that of a delay group, where a cluster is asked.

        What one of them refuses as wrongly asked would be refused by all: that ends the command.
        """
        try:
            yield
        except Failure as failure:
            if not self.is_cluster or failure.exit_code == ExitCode.USAGE:
                raise
            self._note(group, failure)


Command = Callable[..., Any]


def of_masters(command: Command) -> Command:
    """Add `masters`: the delay servers that are asked. Ends as the first did without an answer."""

    @functools.wraps(command)
    def run(*, session: Session | None, rules: Rules | None, **more: Any) -> None:  # noqa: ANN401 (click's)
        masters = Masters(session, rules)
        command(masters=masters, **more)
        masters.end()

    return asks("session", "rules", timeout_s=LONG_S)(run)
