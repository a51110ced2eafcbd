"""Counts of several delay servers, added up: what the command and the gateway show of a cluster."""

from collections.abc import Iterable, Mapping
from typing import Any

Row = dict[str, Any]
"""A row of the answer to `GET /count`."""


def added_rows(answers: Iterable[Mapping[str, Any]]) -> dict[str, Row]:
    """Return the rows of answers to one `GET /count`, those of one name added; by name.

    The answers have the same columns.
    """
    rows: dict[str, Row] = {}
    for answer in answers:
        for name, row in answer["rows"].items():
            rows[name] = _added(rows[name], row) if name in rows else row
    return rows


def _added(one: Row, other: Row) -> Row:
    """Return a row with the numbers, and the rates, of another delay group added."""
    found: Row = {name: one[name] + other[name] for name in ("before", "later")}
    found["counts"] = [a + b for a, b in zip(one["counts"], other["counts"], strict=True)]
    if "rate_per_s" in one:
        found["rate_per_s"] = (one["rate_per_s"] or 0) + (other["rate_per_s"] or 0) or None
        found["rate_is_limit"] = one["rate_is_limit"] and other["rate_is_limit"]
    return found
