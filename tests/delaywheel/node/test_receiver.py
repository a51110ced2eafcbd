"""`delaywheel receiver show`: a name, and what it has at each delay group."""

import json
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

from click.testing import CliRunner

from delaywheel.main import main
from tests.delaywheel.json_servers import answering
from tests.delaywheel.node.test_dead import group

Answer = tuple[int, bytes]

ROW = {
    "name": "billing",
    "patterns": ["orders.*", "paid"],
    "tries": 16,
    "waits": "10s 1m",
    "first_level": None,
    "entered": True,
    "since_ms": 1,
    "connected": 3,
    "version": 4,
}
AT_MASTER = {
    "address": "2 attached",
    "waiting": 5,
    "in_flight": 7,
    "delivered": 100,
    "later": 3,
    "refused": 1,
    "why_none": "",
}


def node(brokers: dict[str, Any], dead: int) -> Any:  # noqa: ANN401 (a server's answers)
    """Return what a delay server answers."""

    def answer(_method: str, target: str, _headers: dict[str, str], _body: bytes) -> Answer:
        if urlsplit(target).path == "/status":
            return 200, json.dumps({"brokers": brokers}).encode()
        assert "group=billing" in target
        return 200, json.dumps({"items": [], "next": None, "matched": dead}).encode()

    return answer


def meta(*addresses: str) -> Any:  # noqa: ANN401 (as above)
    """Return what a meta server answers, with masters at these addresses."""
    groups = [group(f"d{number}", address) for number, address in enumerate(addresses, 1)]

    def answer(_method: str, target: str, _headers: dict[str, str], _body: bytes) -> Answer:
        path = urlsplit(target).path
        if path == "/api/v1/receiver/billing":
            return 200, json.dumps(ROW).encode()
        assert path == "/api/v1/topology", path
        return 200, json.dumps({"delay_groups": groups}).encode()

    return answer


def test_a_name_is_shown_with_what_it_has_at_each_delay_group() -> None:
    with ExitStack() as stack:
        nodes = (node({"billing": AT_MASTER, "g1": {}}, 2), node({}, 0))
        addresses = [stack.enter_context(answering(one)) for one in nodes]
        where = stack.enter_context(answering(meta(*addresses, "127.0.0.1:1")))
        words = ["receiver", "show", "billing", "--meta", where, "--cluster", "c"]
        result = CliRunner().invoke(main, [*words, "--json"])
        shown = json.loads(result.stdout)
        assert result.exit_code == 6
        assert shown["patterns"] == ["orders.*", "paid"]
        assert shown["delay_groups"] == [
            {
                "delay_group": "d1",
                "attached": 2,
                "waiting": 5,
                "with_receivers": 7,
                "done": 100,
                "later": 3,
                "refused": 1,
                "dead": 2,
                "trouble": "",
            },
            dict.fromkeys(("waiting", "with_receivers", "done", "later", "refused", "dead"), 0)
            | {"delay_group": "d2", "attached": 0, "trouble": "nothing leads to it here"},
        ]
        assert list(shown["unanswered"]) == ["d3"]
        text = CliRunner().invoke(main, words).stdout
    assert "orders.*, paid" in text
    assert "10s 1m" in text
    assert "nothing leads" in text
