"""Which files cannot have a row that a query wants, by what it asks of columns.

A filter that is not understood excludes nothing: Spark looks at each row itself anyway.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from spark_tools.parts import Bounds

_Range = tuple[Any, Any, bool]
"""Values from the first to the second, None: no bound; whether the bound itself is not wanted."""

_RANGES: dict[type[Filter], Callable[[Any], _Range]] = {
    EqualTo: lambda value: (value, value, False),
    EqualNullSafe: lambda value: (value, value, False),
    In: lambda value: (value, value, False),
    GreaterThan: lambda value: (value, None, True),
    GreaterThanOrEqual: lambda value: (value, None, False),
    LessThan: lambda value: (None, value, True),
    LessThanOrEqual: lambda value: (None, value, False),
}


def may_match(filters: Sequence[Filter], bounds: Bounds) -> bool:
    """Say whether a row within these bounds may satisfy all filters."""
    return all(_may(one, bounds) for one in filters)


def _may(wanted: Filter, bounds: Bounds) -> bool:
    if isinstance(wanted, Not):
        child = wanted.child
        if not isinstance(child, EqualTo) or child.attribute[0] not in bounds:
            return True
        # Only where each row has this value none is left.
        return bounds[child.attribute[0]] != (child.value, child.value)
    limits = bounds.get(getattr(wanted, "attribute", ("",))[0])
    if limits is None:
        return True
    if isinstance(wanted, IsNull):
        return False
    range_of = _RANGES.get(type(wanted))
    if range_of is None:
        return True
    value = getattr(wanted, "value", None)
    values = value if isinstance(wanted, In) else (value,)
    return any(_overlap(range_of(one), limits) for one in values or ())


def _overlap(wanted: _Range, limits: tuple[object, object]) -> bool:
    """Say whether some value is wanted and within limits."""
    least, most, is_open = wanted
    low, high = limits
    if _is_less(most, low) or _is_less(high, least):
        return False
    return not is_open or (least != high if most is None else most != low)


def _is_less(one: Any, other: Any) -> bool:  # noqa: ANN401 (whatever a query compares with)
    """Say whether the first is less, as far as the two are of a kind."""
    if one is None or other is None:
        return False
    return type(one) is type(other) and bool(one < other)
