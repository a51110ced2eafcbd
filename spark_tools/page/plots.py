"""The plots of a page: shapes as inline SVG, words as HTML beside them.

A plot is as wide as its place, so its shapes are stretched; words are not, and never shrink with
it. Of the labels of an axis every other one has the class `wide` and is left out on a phone.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

import numpy as np

from spark_tools.files.markup import Html, element, joined, shown
from spark_tools.judge.lateness import buckets_of, quantile_ms
from spark_tools.page.figures import SETTLED, Times, done, due, origins_text, rows

_PLOT_PX: Final = 210
"""Height of a plot."""
_WIDTH: Final = 1000
"""The width of a plot in its own coordinates."""
_BAR_MAX: Final = 90
"""The widest bar, in these."""
_LABELS_MAX: Final = 8
"""Labels of an axis of time."""
_LEAST_PX: Final = 3
"""The least height of a part that shows something wrong."""

STACK: Final = (
    ("done", "delivered", ("delivered",)),
    ("settled", "ended otherwise", SETTLED),
    ("repaired", "repaired", ("repaired",)),
    ("waiting", "waiting", ("waiting",)),
    ("unknown", "unknown", ("unknown",)),
    ("overdue", "overdue", ("overdue",)),
    ("lost", "lost", ("lost",)),
)
"""The parts of a bar, from the bottom: fill, name, and states."""
_WRONG: Final = frozenset({"unknown", "overdue", "lost"})

_SHARES: Final = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999))

NOTHING: Final = "\u2013"
"""The text in place of a missing figure."""

_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms"))


def count_text(count: int) -> str:
    """Return a count for people."""
    return f"{count:,}"


def short_count(count: float) -> str:
    """Return a count as an axis shows it."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.3g}"


def ms_text(ms: int | None) -> str:
    """Return a length of time for people."""
    if ms is None:
        return NOTHING
    for size, unit in _UNITS:
        if ms >= size:
            return f"{ms / size:.3g} {unit}"
    return f"{ms} ms"


def share_text(part: int, whole: int) -> str:
    """Return a share in percent; 100 % only where nothing is missing."""
    if not whole:
        return NOTHING
    if part == whole:
        return "100 %"
    return f"{min(math.floor(part / whole * 10_000) / 100, 99.99):.2f} %"


def time_text(minute: int) -> str:
    """Return a minute since 1970."""
    return f"{datetime.fromtimestamp(minute * 60, UTC):%Y-%m-%d %H:%M}"


def legend(parts: Iterable[tuple[str, str]]) -> Html:
    """Return a legend of (class of the fill, what it stands for)."""
    return element(
        "div",
        *(element("span", element("i", class_=fill), text) for fill, text in parts),
        class_="legend",
    )


# -- accepted and delivered by hour -----------------------------------------------------------


def by_hour(found: Times) -> Html:
    """Return the plot of messages and their outcomes over time."""
    columns = found.columns
    most = max((rows(column.counts) for column in columns), default=0)
    top, ticks = _linear_ticks(most)
    slot = _WIDTH / max(len(columns), 1)
    shapes = [_grid(tick / top) for tick in ticks if tick]
    for place, column in enumerate(columns):
        shapes += _stack(column.counts, place * slot, slot, top, _when(found, place))
    totals: Counter[str] = Counter()
    for column in columns:
        totals.update(column.counts)
    shapes.append(_outline([rows(column.counts) / top for column in columns], slot))
    parts = [("edge fill-ink", origins_text(totals))]
    for fill, name, states in STACK:
        count = sum(totals[state] for state in states)
        if count or fill == "done":
            parts.append((f"fill-{fill}", f"{name} {count:,}"))
    labels = [(tick / top, short_count(tick)) for tick in ticks]
    return joined(
        legend(parts),
        _plot(shapes, ordinate=labels, abscissa=_time_labels(found)),
    )


def _bar(slot: float) -> float:
    return min(slot * (0.86 if slot > 6 else 1.0), _BAR_MAX)


def _stack(counts: Counter[str], left: float, slot: float, top: float, when: str) -> list[Html]:
    """Return the bar of a column; what is wrong is drawn last, so that it is seen."""
    if not rows(counts):
        return []
    width = _bar(slot)
    left += (slot - width) / 2
    foot = 0.0
    calm: list[Html] = []
    wrong: list[Html] = []
    for fill, name, states in STACK:
        count = sum(counts[state] for state in states)
        if not count:
            continue
        height = count / top * _PLOT_PX
        seen = max(height, _LEAST_PX) if fill in _WRONG else height
        rect = element(
            "rect",
            element("title", f"{when}: {name} {count:,} of {rows(counts):,}"),
            x=_px(left),
            y=_px(max(_PLOT_PX - foot - seen, 0)),
            width=_px(width),
            height=_px(seen),
            class_=f"fill-{fill}",
        )
        (wrong if fill in _WRONG else calm).append(rect)
        foot += height
    return [*calm, *wrong]


def _outline(shares: Sequence[float], slot: float) -> Html:
    """Return the line over the tops of bars."""
    inset = (slot - _bar(slot)) / 2
    points: list[str] = []
    for place, share in enumerate(shares):
        height = _px(_PLOT_PX * (1 - share))
        left, right = place * slot + inset, (place + 1) * slot - inset
        start = "M" if inset > 2 or not points else "L"
        points.append(f"{start}{_px(left)} {height}L{_px(right)} {height}")
    return element("path", d=" ".join(points), class_="outline")


# -- completeness by group and hour -----------------------------------------------------------

_STEPS: Final = (
    ("done", "all of what was due has a fact, or was repaired"),
    ("most", "99.9 % and more"),
    ("some", "99 % and more"),
    ("few", "less"),
    ("unknown", "nobody can say of all"),
    ("nothing", "nothing was due"),
)


def completeness(found: Times, rows: Sequence[str]) -> Html:
    """Return the plot of the share of due messages that are done, with a row for each group."""
    cells: list[Html] = []
    for name in rows:
        counts = found.by_group[name]
        total: Counter[str] = Counter()
        for one in counts:
            total.update(one)
        cells += [
            element("div", shown(name), class_="name", title=shown(name)),
            element("div", _heat_row(found, name), class_="cells"),
            element("div", _share_of(total), class_="share"),
        ]
    axis = [
        element("div", class_="corner"),
        element("div", *_labels(_time_labels(found), "left"), class_="abscissa"),
    ]
    return joined(
        legend((f"{'empty ' * (fill == 'nothing')}fill-{fill}", text) for fill, text in _STEPS),
        element("div", *cells, *axis, class_="heat"),
    )


def _heat_row(found: Times, name: str) -> Html:
    shapes = []
    columns = found.by_group[name]
    gap = min(0.04, 0.002 * len(columns))
    for place, counts in enumerate(columns):
        text = f"{_when(found, place)}: {_share_of(counts)} of {due(counts):,} that were due"
        shapes.append(
            element(
                "rect",
                element("title", text),
                x=f"{place + gap:.3f}",
                y=0,
                width=f"{1 - 2 * gap:.3f}",
                height=1,
                class_=f"fill-{_step(counts)}",
            )
        )
    return _svg(shapes, max(len(shapes), 1), 1)


def _share_of(counts: Counter[str]) -> str:
    text = share_text(done(counts), due(counts))
    return f"≥ {text}" if counts["unknown"] else text


def _step(counts: Counter[str]) -> str:
    part, whole = done(counts), due(counts)
    if not whole:
        return "nothing"
    if part == whole:
        return "done"
    if part + counts["unknown"] == whole:
        return "unknown"
    return "most" if part >= 0.999 * whole else "some" if part >= 0.99 * whole else "few"


# -- lateness ---------------------------------------------------------------------------------


def quantiles(counts: Counter[int], latest_ms: int | None) -> list[tuple[str, int | None]]:
    """Return p50, p95, p99 and p99.9 of lateness, and `latest_ms`; counts: by its lower bound."""
    buckets = _buckets(counts)
    found = [(name, quantile_ms(buckets, share, latest_ms)) for name, share in _SHARES]
    return [*found, ("max", latest_ms)]


def _buckets(counts: Counter[int]) -> dict[int, int]:
    lower = list(counts)
    numbers = buckets_of(np.array(lower, np.int64)).tolist() if lower else []
    return {number: counts[from_ms] for number, from_ms in zip(numbers, lower, strict=True)}


def _edges(most: int) -> list[int]:
    """Return the edges of the bars: each doubling in two. Buckets have them too."""
    edges = [0, 1, 2]
    while edges[-1] <= most:
        edges += [edges[-1] * 3 // 2, edges[-1] * 2]
    return edges


def lateness(counts: Counter[int], latest_ms: int | None) -> Html:
    """Return a histogram of lateness; counts: deliveries by the lower bound of their bucket."""
    edges = _edges(max(counts, default=0))
    bars = [
        sum(count for from_ms, count in counts.items() if begin <= from_ms < end)
        for begin, end in pairwise(edges)
    ]
    filled = [place for place, count in enumerate(bars) if count]
    first, after = min(filled, default=0), max(filled, default=0) + 1
    first, after = max(min(first, after - 8), 0), min(max(after, first + 8), len(bars))
    bars, edges = bars[first:after], edges[first : after + 1]
    slot = _WIDTH / len(bars)
    top = math.log10(max(bars) or 1) * 1.08 + 0.3
    ticks = [power for power in range(int(top) + 1) if power <= top]
    shapes = [_grid(_log_height(10**power, top)) for power in ticks]
    for place, count in enumerate(bars):
        height = _log_height(count, top) * _PLOT_PX
        text = f"{ms_text(edges[place])} to {ms_text(edges[place + 1])}: {count:,}"
        width = _bar(slot)
        left = place * slot + (slot - width) / 2
        shapes.append(
            element(
                "rect",
                element("title", text),
                x=_px(left),
                y=_px(_PLOT_PX - height),
                width=_px(width),
                height=_px(height),
                class_="fill-done",
            )
        )
    marks = []
    for name, ms in quantiles(counts, latest_ms)[:-1]:
        share = _place(ms, edges)
        marks.append((share, f"{name} {ms_text(ms)}"))
        x = _px(share * _WIDTH)
        shapes.append(element("line", x1=x, x2=x, y1=0, y2=_PLOT_PX, class_="mark"))
    step = max(1, -(-len(bars) // 10))
    labels = [(place / len(bars), ms_text(edges[place])) for place in range(0, len(bars) + 1, step)]
    ordinate = [(_log_height(10**power, top), short_count(10**power)) for power in ticks]
    return _plot(shapes, ordinate=ordinate, abscissa=labels, marks=marks)


def _log_height(count: int, top: float) -> float:
    """Return how high a count is, 0 to 1: one is a little more than nothing."""
    return (math.log10(count) + 0.15) / (top + 0.15) if count else 0.0


def _place(ms: int | None, edges: Sequence[int]) -> float:
    """Return where a lateness lies between the first edge and the last, 0 to 1."""
    late = min(max(ms or 0, edges[0]), edges[-1])
    place = max(at for at, edge in enumerate(edges) if edge <= late)
    if place == len(edges) - 1:
        return 1.0
    part = (late - edges[place]) / (edges[place + 1] - edges[place])
    return (place + part) / (len(edges) - 1)


# -- axes -------------------------------------------------------------------------------------


def _linear_ticks(most: int) -> tuple[float, list[float]]:
    """Return the top of an axis, and round numbers from 0 up to it."""
    if most <= 0:
        return 1.0, [0.0]
    step = 10.0 ** math.floor(math.log10(most))
    step = next(step * part for part in (0.1, 0.2, 0.25, 0.5, 1, 2) if most / (step * part) <= 5)
    step = max(step, 1.0)
    count = math.ceil(most / step)
    return max(count * step, most * 1.02), [place * step for place in range(count + 1)]


def _time_labels(found: Times) -> list[tuple[float, str]]:
    """Return (share of the width, text) of moments; the date where it changes."""
    count = len(found.columns)
    step = max(1, -(-count // _LABELS_MAX))
    # Below the middle of a bar where there is much room between them.
    middle = 0.5 if _WIDTH / count > _BAR_MAX else 0.0
    labels, before = [], ""
    for place in range(0, count, step):
        date, _, clock = time_text(found.columns[place].minute).partition(" ")
        text = f"{clock}\n{date}" if date != before else clock
        labels.append(((place + middle) / count, text))
        before = date
    return labels


def _when(found: Times, place: int) -> str:
    """Return the text of a column's time range."""
    minute = found.columns[place].minute
    text = time_text(minute)
    return text if found.hours == 1 else f"{text} to {time_text(minute + found.hours * 60)}"


def _labels(labels: Sequence[tuple[float, str]], side: str) -> list[Html]:
    spans = []
    for place, (share, text) in enumerate(labels):
        classes = []
        if side == "left":
            classes += ["wide"] * (place % 2)
            classes += ["first"] * (share == 0) + ["last"] * (share == 1)
        lines = text.split("\n")
        spans.append(
            element(
                "span",
                lines[0],
                *(joined(element("br"), line) for line in lines[1:]),
                style=f"{side}: {share * 100:.2f}%",
                class_=" ".join(classes) or None,
            )
        )
    return spans


def _plot(
    shapes: Sequence[Html],
    *,
    ordinate: Sequence[tuple[float, str]],
    abscissa: Sequence[tuple[float, str]],
    marks: Sequence[tuple[float, str]] = (),
) -> Html:
    """Return shapes with the labels of their axes; marks: above, each in a line of its own."""
    above = None
    if marks:
        spans = [
            element(
                "span",
                text,
                style=f"left: {share * 100:.2f}%; top: {place * 16}px",
                class_="left" if share > 0.6 else None,
            )
            for place, (share, text) in enumerate(marks)
        ]
        above = element("div", *spans, class_="marks", style=f"height: {len(marks) * 16 + 2}px")
    return element(
        "div",
        above,
        element("div", *_labels(ordinate, "bottom"), class_="ordinate"),
        element(
            "div", _svg(shapes, _WIDTH, _PLOT_PX), class_="area", style=f"height: {_PLOT_PX}px"
        ),
        element("div", *_labels(abscissa, "left"), class_="abscissa"),
        class_="plot",
    )


def _svg(shapes: Sequence[Html], width: int, height: int) -> Html:
    return element(
        "svg", *shapes, viewBox=f"0 0 {width} {height}", preserveAspectRatio="none", role="img"
    )


def _grid(share: float) -> Html:
    y = _px(_PLOT_PX * (1 - share))
    return element("line", x1=0, x2=_WIDTH, y1=y, y2=y, class_="grid")


def _px(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
