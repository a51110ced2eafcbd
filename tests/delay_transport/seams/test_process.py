"""What server processes have in common beside their loops."""

import gc

from delay_transport.seams.process import settle_memory


def test_what_stands_at_the_start_is_not_looked_through_again() -> None:
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    try:
        settle_memory()
        assert gc.get_freeze_count() > frozen
        looked_through = sum(len(gc.get_objects(generation=number)) for number in range(3))
        assert looked_through < gc.get_freeze_count() / 100
        youngest, younger, old = gc.get_threshold()
        assert youngest * younger * old >= 1_000_000
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
