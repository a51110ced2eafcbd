"""Pictures of how shares follow weights and faults: `python -m benchmarks.shares DIRECTORY`.

One picture for each fault of tests/delivery/shares_rig.py, in virtual time: what each of four
groups was given and confirmed, their effective weights, and what was queued for and in flight to
the ill one (dark orange), which is so between the dotted lines. The tests there hold
what can be said in numbers; whether a share swings, creeps or comes in bursts is seen at a glance.
"""

import argparse
import logging
from pathlib import Path

import numpy as np
import structlog

from benchmarks.pictures import Chart, Colour
from tests.delivery.shares_rig import FAULTS, STEP_S, Play, Story, told

COLOURS: list[Colour] = [(70, 110, 180), (220, 120, 30), (110, 170, 90), (190, 170, 210)]


def picture(story: Story, name: str) -> Chart:
    """Return the picture of a story."""
    play = story.play
    chart = Chart(900, 4)
    per_step = play.load_per_s * STEP_S
    colours = COLOURS[: len(play.weights)]
    chart.title(0, f"{name}: messages confirmed, by group; the full height is 1.5 times the load")
    chart.areas(0, story.delivered.astype(np.float64), colours, per_step * 1.5)
    chart.title(1, "messages that came to the groups, confirmed or not")
    chart.lines(1, story.received.astype(np.float64), colours, per_step)
    chart.title(2, "effective weights")
    chart.lines(2, story.effective, colours, max(play.weights) * 1.05)
    load = story.load[:, [play.ill]].astype(np.float64)
    chart.title(3, f"queued for and in flight to the ill one, up to {int(load.max())}")
    chart.lines(3, load, [COLOURS[1]], max(1.0, load.max()))
    if play.fault:
        for panel in range(4):
            chart.rule(panel, play.ill_from_s / play.until_s)
            chart.rule(panel, play.ill_until_s / play.until_s)
    return chart


def main() -> None:
    """Draw all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("directory", type=Path)
    directory: Path = parser.parse_args().directory
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    directory.mkdir(parents=True, exist_ok=True)
    for fault in ("", *FAULTS):
        name = fault or "all are well"
        path = directory / f"{name.replace(' ', '-')}.png"
        story = told(Play(fault=fault))
        picture(story, name).write(path)
        print(f"{path}: {story.late_share(0, story.play.until_s):.2%} later than 10 ms")


if __name__ == "__main__":
    main()
