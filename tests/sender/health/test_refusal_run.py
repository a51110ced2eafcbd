"""A group that refuses everything for good is known by a run of refusals, and tried seldom."""

from sender.health.refusal_run import RefusalRun


def test_a_run_is_long_after_some_items_and_ends_with_one_that_is_taken() -> None:
    run = RefusalRun(interval_s=2.0)
    found = []
    for items in (15, 1, 0, 15):
        if items:
            run.refused(items)
        else:
            run.taken()
        found.append(run.is_long)
    assert found == [False, True, False, False]


def test_an_item_may_be_tried_in_each_interval() -> None:
    run = RefusalRun(interval_s=2.0)
    assert run.may_try(10.0)
    run.tried(10.0)
    assert not run.may_try(11.9)
    assert run.may_try(12.0)
