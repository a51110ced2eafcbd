"""A file is left out only if none of its rows is wanted, and many are."""

import operator
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from spark_tools.parts import bounds, plan_partitions
from spark_tools.pruning import may_match
from spark_tools.reading import read_partition
from spark_tools.source_options import read_options
from tests.spark_tools.worlds import FAULTS, world_of
from tests.storage.plain_logs import Row

COMPARING: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    In: lambda value, others: value in others,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    StringStartsWith: lambda value, other: str(value).startswith(other),
}


def wanted(one: Any, row: Row) -> bool:  # noqa: ANN401 (any filter: they have no common attributes)
    """Say what SQL says of a row; what is unknown counts as no."""
    if isinstance(one, Not):
        child: Any = one.child
        return row[child.attribute[0]] is not None and not wanted(child, row)
    value = row[one.attribute[0]]
    if isinstance(one, IsNull | IsNotNull):
        return (value is None) is isinstance(one, IsNull)
    if isinstance(one, EqualNullSafe):
        return bool(value == one.value)
    return value is not None and bool(COMPARING[type(one)](value, one.value))


def drawn(chance: random.Random, rows: list[Row]) -> Filter:
    """Return a filter on a value that some row has, or nearly."""
    row = chance.choice(rows)
    name = chance.choice([name for name in row if name != "damage"])
    value: Any = row[name]
    if isinstance(value, int) and not isinstance(value, bool):
        value += chance.choice([0, 0, 1, -1, 60, -60])
    if value is None or chance.random() < 0.1:
        return IsNull((name,)) if chance.random() < 0.5 else IsNotNull((name,))
    chosen: Any = chance.choice([*COMPARING, EqualNullSafe, Not])
    if chosen is In:
        return In((name,), (value, chance.choice(rows)[name]))
    if chosen is Not:
        return Not(EqualTo((name,), value))
    if chosen is StringStartsWith:
        return StringStartsWith((name,), str(value)[:3])
    found: Filter = chosen((name,), value)
    return found


@pytest.mark.parametrize("size", ["1", "100000000"])
@pytest.mark.parametrize("kind", ["schedule", "dispatch", "message"])
def test_what_is_left_out_has_no_row_that_is_wanted(kind: str, size: str, tmp_path: Path) -> None:
    chance = random.Random(7)
    left_out = 0
    for seed in range(4):
        source = world_of(seed, frozenset(FAULTS)).written(tmp_path / f"{seed}")
        options = read_options({"kind": kind, "roots": "a", "partition_bytes": size})
        parts = []
        for plan in plan_partitions([source], options):
            for part in plan.parts:
                one = type(plan)((part,))
                tables = list(read_partition(one, options))
                parts.append((part, [row for table in tables for row in table.to_pylist()]))
        everything = [row for _, rows in parts for row in rows]
        for _ in range(400):
            filters = [drawn(chance, everything) for _ in range(chance.choice([1, 1, 2]))]
            for part, rows in parts:
                if not may_match(filters, bounds(part)):
                    left_out += 1
                    assert not [row for row in rows if all(wanted(one, row) for one in filters)], (
                        filters
                    )
    assert left_out > 1000


def test_a_filter_on_what_nobody_knows_leaves_nothing_out() -> None:
    assert may_match([EqualTo(("x", "y"), 1), GreaterThan(("subject",), "a")], {})
    assert may_match([EqualTo(("sequence",), "text")], {"sequence": (1, 2)})
    assert not may_match([IsNull(("sequence",))], {"sequence": (1, 2)})
    assert not may_match([Not(EqualTo(("group",), "g"))], {"group": ("g", "g")})
    assert not may_match([GreaterThan(("sequence",), 2)], {"sequence": (1, 2)})
    assert not may_match([LessThan(("sequence",), 1)], {"sequence": (1, None)})
    assert may_match([LessThan(("sequence",), 1)], {"sequence": (None, 2)})
