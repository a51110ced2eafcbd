"""The picture of a campaign: a panel for each kind, all its failovers in the order of their length.

From the quickest on the left to the slowest on the right; a line each for answers (blue),
deliveries to brokers (orange) and receptions by receivers (green). All panels have one scale, up to
8 s; what took longer is at the top, and the title says how long.
"""

from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.pictures import Chart, Colour
from tests.failover_campaign.campaign_round import Outcome
from tests.failover_campaign.summary import COLUMNS, by_kind

_COLOURS: Final[list[Colour]] = [(30, 90, 200), (220, 120, 20), (40, 150, 70)]
_WIDTH: Final = 900
_PANEL: Final = 80
_MOST_MS: Final = 8000


def draw(outcomes: list[Outcome], path: Path) -> None:
    """Write the picture as a PNG file."""
    kinds = by_kind(outcomes)
    chart = Chart(_WIDTH, len(kinds), _PANEL)
    for panel, (kind, ones) in enumerate(kinds.items()):
        columns = [sorted(getattr(one, name) for one in ones) for name in COLUMNS.values()]
        longest = ", ".join(
            f"{name} {column[-1] / 1000:.1f}" for name, column in zip(COLUMNS, columns, strict=True)
        )
        chart.title(panel, f"{kind}: {len(ones)}, longest {longest} s")
        chart.lines(panel, np.array(columns, np.float64).T, _COLOURS, _MOST_MS)
    path.parent.mkdir(exist_ok=True)
    chart.write(path)
