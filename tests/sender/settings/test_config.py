"""A setting that cannot work is refused by name before anything starts."""

import pytest

from sender.settings.config import BrokerGroup, SenderConfig, check_groups
from sender.settings.errors import SettingError


def test_the_defaults_are_consistent() -> None:
    config = SenderConfig()
    assert config.in_flight_bytes_max >= config.batch_bytes
    assert config.queue_items_max >= config.batch_items


@pytest.mark.parametrize(
    ("setting", "value"),
    [("batch_items", 0), ("request_timeout_s", -1.0), ("trial_items", 0)],
)
def test_a_setting_that_is_not_positive_is_refused_by_name(setting: str, value: float) -> None:
    with pytest.raises(SettingError, match=f"sender.{setting}"):
        SenderConfig(**{setting: value})  # type: ignore[arg-type]


def test_a_first_wait_longer_than_the_longest_is_refused() -> None:
    with pytest.raises(SettingError, match=r"retry_base_s must not exceed sender\.retry_max_s"):
        SenderConfig(retry_base_s=50)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"quick_s": 0.2}, "sender.quick_s must not exceed sender.usual_s_max"),
        ({"usual_s_max": 3.0}, "sender.usual_s_max must not exceed sender.slow_s"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    setting: dict[str, float], sentence: str
) -> None:
    with pytest.raises(SettingError, match=sentence):
        SenderConfig(**setting)  # type: ignore[arg-type]


@pytest.mark.parametrize("weight", [0.0, -1.0, 1e-323, 0.0009, 1001.0, float("nan"), float("inf")])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    with pytest.raises(SettingError, match=r"g1. must be 0.001 to 1000"):
        BrokerGroup(name="g1", host="h", port=1, weight=weight)


def test_groups_need_a_name_each() -> None:
    one = BrokerGroup(name="g1", host="h", port=1)
    check_groups([one, BrokerGroup(name="g2", host="h", port=1)])
    for groups in ([], [one, one], [BrokerGroup(name="", host="h", port=1)]):
        with pytest.raises(SettingError):
            check_groups(groups)
