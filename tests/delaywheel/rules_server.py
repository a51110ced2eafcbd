"""A meta server that keeps the rules of one cluster, for commands that change them over HTTP."""

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

Row = dict[str, Any]


class RulesServer:
    """Answers what commands about rules ask; a subject's rule that says nothing is none."""

    def __init__(self, cluster: str = "c", nodes: Callable[[], Sequence[Row]] = tuple) -> None:
        self.cluster = cluster
        self.nodes = nodes
        self.rules: dict[str, dict[str, Row]] = {"subject": {}, "group": {}}
        self.known: set[str] = set()
        """Broker groups of the meta server."""
        self.version = 0
        self.changes: list[tuple[str, Row]] = []
        """Path and body of each change that was made."""
        self.is_fixed = False
        """True: changes are taken, and the rules are as they are."""
        self.conflicts = 0
        """Changes that come too late before one that does not."""

    def answer(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, bytes]:
        """Answer as the meta server would."""
        code, found = self._found(method, target, headers, body)
        return code, msgspec.json.encode(found)

    def _found(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, object]:
        url = urlsplit(target)
        kind, *key = (unquote(part) for part in url.path.removeprefix("/api/v1/").split("/"))
        if kind == "cluster":
            return 200, self._cluster() if key else {
                "items": [{"name": self.cluster}],
                "next": None,
            }
        kind = kind.removesuffix("-rule")
        rules = self.rules[kind]
        if not key:
            assert parse_qs(url.query)["prefix"] == [f"{self.cluster}/"]
            return 200, {
                "items": [{**row, kind: name} for name, row in rules.items()],
                "next": None,
            }
        assert key[0] == self.cluster
        if method == "PUT" and self._is_late(headers, is_there=key[1] in rules):
            return 412, {"status": 412, "code": "version", "detail": "changed meanwhile"}
        if self.is_fixed and method != "GET":
            return 200, {}
        if method == "PUT":
            rules[key[1]] = msgspec.json.decode(body)
        elif key[1] not in rules:
            return 404, {"status": 404, "code": "not-found", "detail": "there is no rule"}
        elif method == "DELETE":
            del rules[key[1]]
        if method != "GET":
            self.version += 1
            self.changes.append((f"{kind} {key[1]}", rules.get(key[1], {})))
        return 200, {**rules.get(key[1], {}), "version": self.version}

    def _is_late(self, headers: dict[str, str], *, is_there: bool) -> bool:
        if self.conflicts:
            self.conflicts -= 1
            self.version += 1
            return True
        return headers["if-match"] != f'"{self.version if is_there else 0}"'

    def _cluster(self) -> Row:
        return {
            "version": self.version,
            "unknown_groups": sorted(self.rules["group"].keys() - self.known),
            "nodes": list(self.nodes()),
        }
