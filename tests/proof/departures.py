"""The departures of a year, or of a day, as messages that are due within hours."""

import csv
import datetime as dt
import io
import lzma
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_EXAMPLES: Final = Path(__file__).parents[2] / "examples" / "departures"
DAY: Final = _EXAMPLES / "departures-2013-11-27.csv"
YEAR: Final = _EXAMPLES / "departures-2013.csv.xz"
DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Departure:
    """A scheduled departure; at_ms: since 1970."""

    flight: str
    origin: str
    destination: str
    scheduled: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Call:
    """A boarding call. due_ms, send_ms: after the begin of the play, by its clock."""

    message_id: str
    subject: str
    body: dict[str, str]
    due_ms: int
    send_ms: int


def read_departures(path: Path) -> list[Departure]:
    """Return the departures of a file, which may be compressed by xz."""
    data = path.read_bytes()
    text = (lzma.decompress(data) if path.suffix == ".xz" else data).decode()
    return [
        Departure(
            row["flight"],
            row["origin"],
            row["destination"],
            row["scheduled_departure"],
            round(dt.datetime.fromisoformat(row["scheduled_departure"]).timestamp() * 1000),
        )
        for row in csv.DictReader(io.StringIO(text))
    ]


def calls_of(
    departures: Sequence[Departure],
    *,
    lasts_ms: int,
    lead_days: tuple[float, float],
    chance: random.Random,
) -> list[Call]:
    """Return the calls, in the order of sending, played so fast that all takes `lasts_ms`.

    Each is asked for some days of the departures' own time ahead.
    """
    first = min(one.at_ms for one in departures)
    scale = lasts_ms / (max(one.at_ms for one in departures) - first + 1)
    calls = []
    for one in departures:
        due_ms = (one.at_ms - first) * scale
        send_ms = due_ms - chance.uniform(*lead_days) * DAY_MS * scale
        calls.append(
            Call(
                message_id=f"{one.flight}-{one.origin}-{one.scheduled}",
                subject=f"boarding.{one.origin}",
                body={"flight": one.flight, "destination": one.destination},
                due_ms=round(due_ms),
                send_ms=round(max(send_ms, 0)),
            )
        )
    return sorted(calls, key=lambda call: call.send_ms)
