"""Makes a data directory to look at: a day of departures through a real delay server.

What left New York before two in the afternoon of 27 November 2013 is due within seconds, and is
delivered to two broker groups. What left later is as far ahead now as it was at two: nobody has
delivered it yet.
"""

import csv
import datetime as dt
import time
from pathlib import Path

from delay_client import BlockingClient, OutgoingMessage, Receipt
from examples.departures.demo import DATA
from examples.departures.processes import NotReadyError, process

NOON = dt.datetime.fromisoformat("2013-11-27T14:00-05:00")
"""When the day is interrupted."""
PLAYED_S = 6.0
"""How long the part before takes here."""
LEAD_S = 2.0
"""Until the first message is due: by then all have been sent."""
SETTLE_S = 2.0
"""For the last one to be delivered."""
_AT_ONCE = 200


def make_day(directory: Path) -> Path:
    """Play it; return the data directory, `data` below `directory`. Raises NotReadyError."""
    data = directory / "data"
    with (
        process(("broker", "--listen", "127.0.0.1:0", "--quiet"), directory / "gate.log") as gate,
        process(("broker", "--listen", "127.0.0.1:0", "--quiet"), directory / "app.log") as app,
        process(
            (
                *("delay-server", "--data", str(data), "--listen", "127.0.0.1:0"),
                *("--http", "127.0.0.1:0"),
                *("--broker", f"gate={_address(gate.ready)},weight=3"),
                *("--broker", f"app={_address(app.ready)}"),
            ),
            directory / "delay-server.log",
        ) as server,
    ):
        begin_s = time.time() + LEAD_S
        messages = _messages(begin_s)
        with BlockingClient([_address(server.ready)]) as client:
            for first in range(0, len(messages), _AT_ONCE):
                for outcome in client.send_many(messages[first : first + _AT_ONCE]):
                    if not isinstance(outcome, Receipt):
                        raise NotReadyError(f"a message was not accepted: {outcome}")
        time.sleep(max(begin_s + PLAYED_S + SETTLE_S - time.time(), 0))
    return data


def _address(ready: str) -> str:
    """Return where a process listens, by its ready line."""
    return ready.split()[1].removeprefix("listen=")


def _messages(begin_s: float) -> list[OutgoingMessage]:
    """Return a boarding call for each departure; begin_s: when the first is due, since 1970."""
    with DATA.open(newline="", encoding="utf-8") as file:
        flights = list(csv.DictReader(file))
    times = [dt.datetime.fromisoformat(row["scheduled_departure"]) for row in flights]
    before_s = (NOON - min(times)).total_seconds()
    messages = []
    for row, scheduled in zip(flights, times, strict=True):
        after_s = (scheduled - NOON).total_seconds()
        due_s = begin_s + PLAYED_S + (after_s if after_s > 0 else after_s * PLAYED_S / before_s)
        messages.append(
            OutgoingMessage(
                subject=f"boarding.{row['origin']}",
                body={"flight": row["flight"], "destination": row["destination"]},
                at=dt.datetime.fromtimestamp(due_s, dt.UTC),
                message_id=f"{row['flight']}-{row['origin']}-{row['scheduled_departure']}",
            )
        )
    return messages
