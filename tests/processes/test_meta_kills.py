"""A meta server that is killed while operators change routes loses nothing that it answered.

Each change of a route here is one commit of several rows: the subject if it is new, the route, and
the entry of the audit. All of them are there afterwards, or none.
"""

import http.client
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.processes.real_processes import ServerProcess, meta_server, until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]

CHANGES = 2000
KILLS = 12
WRITERS = 4
CHANGES_OF_ONE = 3
"""The number of changes of the route of a subject."""


class Operators:
    """Write changes, each over a connection of its own, and count those that were answered."""

    def __init__(self) -> None:
        self.answered: Counter[str] = Counter()
        """By subject."""
        self.unknown: set[str] = set()
        """Subjects with a change that was not answered."""
        self._next = [f"writer{number}." for number in range(WRITERS)]

    def begin(self, meta: ServerProcess) -> list[threading.Thread]:
        """Write until the meta server is gone."""
        writers = [
            threading.Thread(target=self._write, args=(meta, prefix), daemon=True)
            for prefix in self._next
        ]
        for writer in writers:
            writer.start()
        return writers

    def _write(self, meta: ServerProcess, prefix: str) -> None:
        connection = http.client.HTTPConnection(meta.http, timeout=10)
        own = [name for name in self.answered if name.startswith(prefix)]
        subject = f"{prefix}{len(own)}"
        while True:
            if self.answered[subject] == CHANGES_OF_ONE:
                subject = f"{prefix}{int(subject.removeprefix(prefix)) + 1}"
            groups = ["g1", "g2"][: self.answered[subject] % 2 + 1]
            self.unknown.add(subject)
            try:
                change(connection, f"route/{subject}", {"groups": groups})
            except (OSError, http.client.HTTPException):
                connection.close()
                return
            self.answered[subject] += 1
            self.unknown.discard(subject)


def change(connection: http.client.HTTPConnection, path: str, body: object) -> None:
    """Change something; OSError, or an HTTPException, if it was not answered."""
    headers = {"Content-Type": "application/json"}
    connection.request("PUT", f"/api/v1/{path}", msgspec.json.encode(body), headers)
    answer = connection.getresponse()
    said = answer.read()
    assert answer.status in {200, 201}, said


def rows(meta: ServerProcess, kind: str, cursor: str = "after") -> Iterator[dict[str, Any]]:
    """Yield all rows of a kind, page by page."""
    at: object = None
    while True:
        more = "" if at is None else f"&{cursor}={at}"
        code, body = meta.get(f"/api/v1/{kind}?limit=1000{more}")
        assert code == 200, body
        page = msgspec.json.decode(body)
        yield from page["items"]
        at = page["next"]
        if at is None:
            return


def check(meta: ServerProcess, operators: Operators) -> None:
    """Compare what is there with what was answered; what was not answered counts as it is."""
    routes = {row["pattern"]: row for row in rows(meta, "route")}
    subjects = {row["name"] for row in rows(meta, "subject")}
    audited = Counter(row["target"] for row in rows(meta, "audit", "before"))
    assert subjects == routes.keys()
    for name in operators.answered.keys() | routes.keys():
        answered, version = operators.answered[name], routes.get(name, {"version": 0})["version"]
        assert version == audited[name], name
        assert answered <= version <= answered + (name in operators.unknown), name
        if version:
            assert routes[name]["groups"] == ["g1", "g2"][: (version - 1) % 2 + 1], name
        else:
            assert name not in subjects
        operators.answered[name] = version
    operators.unknown.clear()


def test_twelve_kills_in_two_thousand_changes_lose_none_that_was_answered(tmp_path: Path) -> None:
    operators, chance = Operators(), random.Random(12)
    lives = [*sorted(chance.sample(range(CHANGES // 40, CHANGES), KILLS)), CHANGES]
    for life, changes in enumerate(lives):
        with meta_server(tmp_path / "data") as meta:
            meta.wait_ready()
            if not life:
                add_groups(meta)
            check(meta, operators)
            writers = operators.begin(meta)
            assert until(lambda: operators.answered.total() >= changes, seconds=60)  # noqa: B023
            meta.kill()
            for writer in writers:
                writer.join(20)
                assert not writer.is_alive()
    with meta_server(tmp_path / "data") as meta:
        meta.wait_ready()
        check(meta, operators)
        assert operators.answered.total() >= CHANGES


def add_groups(meta: ServerProcess) -> None:
    """Add the groups that routes lead to."""
    connection = http.client.HTTPConnection(meta.http, timeout=10)
    for name in ("g1", "g2"):
        change(connection, f"broker-group/{name}", {"address": f"{name}:20881"})
    connection.close()
