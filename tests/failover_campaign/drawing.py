"""The picture of a campaign: a panel for each kind, all its failovers in the order of their length.

From the quickest on the left to the slowest on the right; a line each for answers (blue),
deliveries to brokers (orange) and receptions by receivers (green). All panels have one scale, up to
8 s; what took longer is at the top, and the title says how long.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.failover_campaign.campaign_round import Outcome
from tests.failover_campaign.summary import COLUMNS, by_kind

_COLOURS: Final = ("#1e5ac8", "#dc7814", "#289646")
_WIDTH: Final = 900
_PANEL: Final = 80
_MARGIN: Final = 20
_MOST_MS: Final = 8000


def draw(outcomes: list[Outcome], path: Path) -> None:
    """Write the picture as an SVG file."""
    panels = list(by_kind(outcomes).items())
    height = len(panels) * (_PANEL + _MARGIN) + _MARGIN
    size = f'width="{_WIDTH + 2 * _MARGIN}" height="{height}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">']
    parts += ['<rect width="100%" height="100%" fill="white"/>']
    for number, (kind, ones) in enumerate(panels):
        parts += _panel(kind, ones, _MARGIN + number * (_PANEL + _MARGIN))
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([*parts, "</svg>\n"]), encoding="utf-8")


def _panel(kind: str, ones: list[Outcome], top: int) -> Iterator[str]:
    columns = {name: sorted(getattr(one, key) for one in ones) for name, key in COLUMNS.items()}
    longest = ", ".join(f"{name} {column[-1] / 1000:.1f}" for name, column in columns.items())
    title = f"{kind}: {len(ones)}, longest {longest} s"
    yield f'<text x="{_MARGIN}" y="{top - 4}" font-size="11">{title}</text>'
    frame = f'x="{_MARGIN}" y="{top}" width="{_WIDTH}" height="{_PANEL}"'
    yield f'<rect {frame} fill="none" stroke="#888"/>'
    for colour, column in zip(_COLOURS, columns.values(), strict=True):
        step = _WIDTH / max(len(column) - 1, 1)
        points = " ".join(
            f"{_MARGIN + at * step:.0f},{top + _PANEL * (1 - min(ms / _MOST_MS, 1)):.0f}"
            for at, ms in enumerate(column)
        )
        yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
