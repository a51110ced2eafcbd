"""Documents of runs that never were, for what shows them."""

from datetime import UTC, datetime
from typing import Any

from spark_tools.judge.account import FACT_CLASSES, STATES
from spark_tools.run.reconcile import FINDING_CLASSES

BASE = 27_999_360
"""A midnight, minutes since 1970."""


def hour(number: int) -> str:
    return f"{datetime.fromtimestamp((BASE + number * 60) * 60, UTC):%Y-%m-%dT%H:%M}Z"


def subject_row(number: int, subject: str | None, **counts: int) -> dict[str, Any]:
    late = {"p50": 5, "p95": 9, "p99": 40, "p999": 90, "max": 100}
    return {"hour": hour(number), "subject": subject, **counts, "lateness_ms": late}


def group(
    name: str = "g",
    rows: list[dict[str, Any]] | None = None,
    targets: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return what was found of a group whose subjects these rows are."""
    rows = [subject_row(0, "a", accepted=3, delivered=3)] if rows is None else rows
    if targets is None:
        late = {"p50": 5, "p95": 9, "p99": 40, "p999": 90, "max": 100}
        targets = [{"hour": hour(0), "target": "t", "facts": 3, "first": 3, "lateness_ms": late}]
    states = {one: sum(row.get(one, 0) for row in rows) for one in STATES}
    delivered = states["delivered"]
    return {
        "cluster": "c",
        "group": name,
        "accepted": sum(states.values()),
        "bytes": 100,
        "states": states,
        "facts": delivered,
        "fact_classes": {**dict.fromkeys(FACT_CLASSES, 0), "first": delivered},
        "early": 0,
        "misfiled": 0,
        "doubled": 0,
        "log": {"records": 3},
        "repairs": {"given": 0},
        "books": [{"what": "accepted by hour", "found": 3, "must_be": 3}],
        "lateness_ms": {
            "max": 5 if delivered else None,
            "buckets": [{"from_ms": 5, "count": delivered}] if delivered else [],
        },
        "by_subject": rows,
        "by_target": targets,
    }


def example(kind: str = "lost", **fields: Any) -> dict[str, Any]:  # noqa: ANN401 (of many types)
    return {
        "class": kind,
        "cluster": "c",
        "group": "g",
        "node": "n",
        "sequence": 7,
        "message_id": "id-7",
        "subject": "a",
        "due_ms": BASE * 60_000,
        "file": "schedule_log/x.minute",
        "position": 64,
        **fields,
    }


def document(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 (of many types)
    """Return a clean run's, but for what is changed."""
    return {
        "schema": 1,
        "verdict": "clean",
        "exit_code": 0,
        "complete": True,
        "parameters": {"from": None, "to": None, "final": False, "expected_groups": ["g"]},
        "watermark": "2023-03-28T00:00:00.000Z",
        "watermark_ms": 0,
        "manifests": [
            {
                "cluster": "c",
                "group": "g",
                "node": "n",
                "role": "authority",
                "root": "data",
                "made": "2023-03-28T00:01:00.000Z",
                "sequence": 9,
                "first_sequence": 1,
                "log_next_sequence": 10,
                "segments": 1,
                "sealed": 2,
            }
        ],
        "findings": dict.fromkeys(FINDING_CLASSES, 0),
        "problems": [],
        "groups": [group()],
        "examples": [],
        **changes,
    }
