"""A group that takes nothing of anything is told from one that is given poison."""

import pytest

from sender.health.refused_subjects import RefusedSubjects


def subjects() -> RefusedSubjects:
    return RefusedSubjects(subjects_min=3, span_s=10.0)


def test_several_subjects_refused_for_a_while_are_the_groups_fault_and_said_once() -> None:
    refused = subjects()
    assert not refused
    assert not refused.refused([1, 2, 3, 4], 5.0)
    assert refused
    assert not refused.refused([1], 14.9)
    assert refused.refused([1], 15.0)
    assert not refused.refused([1, 2, 3], 15.1)
    assert refused.refused([1], 25.1)


@pytest.mark.parametrize("few", [[1], [1, 2]])
def test_a_few_poisonous_subjects_are_never_the_groups_fault(few: list[int]) -> None:
    refused = subjects()
    assert not any(refused.refused(few, float(now)) for now in range(1000))


def test_an_item_that_is_taken_clears_the_group() -> None:
    refused = subjects()
    for now in range(100):
        assert not refused.refused([1, 2, 3], float(now))
        if now % 9 == 8:
            refused.taken()
            assert not refused
