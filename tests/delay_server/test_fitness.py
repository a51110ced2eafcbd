"""Why another node should be the master, and why others are chosen first."""

from typing import Any

import pytest

from delay_server.fitness import LASTS_S, UNFILED_MAX, Condition, why_behind, why_unfit

FULL = "free disk has been below its floor for 5 s"


@pytest.mark.parametrize(
    ("condition", "unfit", "behind"),
    [
        ({}, "", ""),
        ({"is_stopping": True}, "it is being stopped", ""),
        ({"damage": "a file is damaged"}, "a file is damaged", ""),
        ({"hangs": "its disk hangs"}, "its disk hangs", ""),
        ({"disk_full_s": 0.0}, "", "free disk is below its floor"),
        ({"disk_full_s": LASTS_S - 0.1}, "", "free disk is below its floor"),
        ({"disk_full_s": LASTS_S}, FULL, "free disk is below its floor"),
        ({"clock_wrong_s": LASTS_S - 0.1}, "", ""),
        ({"clock_wrong_s": LASTS_S}, "its clock has been wrong for 5 s", ""),
        ({"unfiled": UNFILED_MAX}, "", ""),
        (
            {"unfiled": UNFILED_MAX + 1},
            "",
            f"more than {UNFILED_MAX} committed records are not filed",
        ),
        ({"copied_s": 599.0, "duplicates_s": 600.0}, "", "its copy is younger than 10 minutes"),
        ({"copied_s": 600.0, "duplicates_s": 600.0}, "", ""),
        ({"copied_s": 0.0, "duplicates_s": 0.0}, "", ""),
        # A stop comes first: what else is wrong does not matter then.
        ({"is_stopping": True, "damage": "a file"}, "it is being stopped", ""),
    ],
)
def test_each_condition_has_its_sentence(
    condition: dict[str, Any], unfit: str, behind: str
) -> None:
    found = Condition(**condition)
    assert (why_unfit(found), why_behind(found)) == (unfit, behind)
