"""A file and overrides become a configuration, or an error that says where, what and what to do."""

from pathlib import Path

import pytest

from delay_server.settings.config_file import load_config
from delay_transport.seams.errors import ConfigError

ENOUGH = ("node.data_dir=data", "brokers.g1=127.0.0.1:20881")


def write(folder: Path, text: str) -> Path:
    path = folder / "delay.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path | None, *overrides: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return caught.value


def test_a_file_is_read(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        [node]
        data_dir = "data"
        group = "delay1"
        [brokers]
        g1 = "127.0.0.1:20881"
        g2 = "[::1]:20881"
        [sender]
        request_timeout_s = 3
        [listener]
        idle_seconds_max = 60
        [log]
        level = "debug"
        """,
    )
    config = load_config(path)
    assert config.node.data_dir == Path("data")
    assert config.node.group == "delay1"
    assert [group.host for group in config.broker_groups()] == ["127.0.0.1", "::1"]
    assert config.sender.request_timeout_s == 3.0
    assert config.listener.idle_seconds_max == 60.0
    assert config.log.level == "debug"


def test_overrides_alone_are_enough() -> None:
    config = load_config(None, [*ENOUGH, "wheel.slot_ms=32", "storage.disk_free_share_min=0.1"])
    assert config.node.data_dir == Path("data")
    assert config.wheel.slot_ms == 32
    assert config.storage.disk_free_share_min == 0.1


def test_overrides_win_over_the_file_and_later_ones_over_earlier(tmp_path: Path) -> None:
    path = write(tmp_path, '[node]\ndata_dir = "a"\n[brokers]\ng1 = "h:1"\n[wheel]\nslot_ms = 1\n')
    config = load_config(path, ["wheel.slot_ms=2", "wheel.slot_ms=3", "brokers.g2=h:2"])
    assert config.wheel.slot_ms == 3
    assert config.brokers == {"g1": "h:1", "g2": "h:2"}


@pytest.mark.parametrize(
    ("text", "group"), [("7", "7"), ("true", "true"), ("a=b", "a=b"), (" x ", "x")]
)
def test_the_value_of_a_text_setting_is_taken_as_it_stands(text: str, group: str) -> None:
    assert load_config(None, [*ENOUGH, f"node.group={text}"]).node.group == group


def test_a_broker_name_may_have_dots() -> None:
    config = load_config(None, ["node.data_dir=d", "brokers.eu.west-1=broker.test:20881"])
    assert config.brokers == {"eu.west-1": "broker.test:20881"}


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("[sendr]\n", "sendr", ["no such section", "did you mean sender?"]),
        ("[sender]\nbatch_item = 1\n", "sender.batch_item", ["did you mean sender.batch_items?"]),
        ("[node]\nhorizon_days = 1\n", "node.horizon_days", ["did you mean admission.horizon"]),
        ("[clock]\nzzz = 1\n", "clock.zzz", ["no such setting", "there are step_forward_ms_max"]),
        ("[wheel]\nlanes_max = 3\n", "wheel.lanes_max", ["no such setting"]),
        ("[controls]\nburst_seconds = 1\n", "controls", ["no such section"]),
        ("wheel = 3\n", "wheel", ["is a section, not a setting", "[wheel]"]),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(
    tmp_path: Path, text: str, key: str, words: list[str]
) -> None:
    path = write(tmp_path, text)
    error = refusal(path, *ENOUGH)
    assert error.source == str(path)
    assert error.key == key
    assert all(word in str(error) for word in [str(path), key, *words])


def test_an_unknown_override_is_refused_with_the_nearest_name_and_the_option() -> None:
    error = refusal(None, *ENOUGH, "storage.fact_sync_ms=3")
    assert error.source == "--set storage.fact_sync_ms=3"
    assert "did you mean storage.fact_sync_ms_max?" in str(error)


@pytest.mark.parametrize(
    "override", ["wheel", "wheel=3", "wheel.=3", ".slot_ms=3", "wheel.slot_ms"]
)
def test_an_override_of_another_form_is_refused(override: str) -> None:
    assert override in str(refusal(None, *ENOUGH, override))


def test_a_value_of_the_wrong_type_names_the_setting_and_its_source(tmp_path: Path) -> None:
    path = write(tmp_path, '[wheel]\nslot_ms = "wide"\n')
    error = refusal(path, *ENOUGH)
    assert (error.source, error.key) == (str(path), "wheel.slot_ms")
    assert "Expected `int`, got `str`" in error.reason
    error = refusal(None, *ENOUGH, "wheel.slot_ms=wide")
    assert (error.source, error.key) == ("--set wheel.slot_ms=wide", "wheel.slot_ms")


def test_a_choice_that_does_not_exist_is_refused_with_those_that_do() -> None:
    error = refusal(None, *ENOUGH, "log.level=loud")
    assert (error.source, error.key) == ("--set log.level=loud", "log.level")
    assert error.remedy == "it is one of debug, info, warning, error"


def test_nonsense_is_blamed_on_the_option_that_asked_for_it(tmp_path: Path) -> None:
    path = write(tmp_path, "[admission]\nrequest_items_max = 100\n")
    error = refusal(path, *ENOUGH, "admission.hold_ms=5", "admission.horizon_days=0")
    assert error.source == "--set admission.horizon_days=0"
    assert str(error).endswith("admission: horizon_days must be at least 1, not 0")


def test_a_missing_directory_and_a_missing_broker_say_how_to_give_one() -> None:
    error = refusal(None, "brokers.g1=127.0.0.1:20881")
    assert error.key == "node.data_dir"
    assert "give --data DIR" in str(error)
    assert "give --broker NAME=HOST:PORT" in str(refusal(None, "node.data_dir=d"))


def test_an_empty_directory_name_is_refused() -> None:
    error = refusal(None, *ENOUGH, "node.data_dir=")
    assert error.key == "node.data_dir"


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    error = refusal(tmp_path / "missing.toml")
    assert "cannot be read" in str(error)
    assert "delaywheel settings" in str(error)


@pytest.mark.parametrize(
    "data",
    [b"[node\n", b"\xff\xfe", b"a = " + b"[" * 100_000, b"a = " + b"9" * 5000],
    ids=["no bracket", "no UTF-8", "nested too deeply", "a number of thousands of digits"],
)
def test_a_file_that_is_not_toml_says_so(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "delay.toml"
    path.write_bytes(data)
    assert "is not TOML" in str(refusal(path))


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 5000])
def test_an_override_that_no_reader_can_take_apart_is_refused(value: str) -> None:
    error = refusal(None, *ENOUGH, f"wheel.slot_ms={value}")
    assert (error.source, error.key) == (f"--set wheel.slot_ms={value}", "wheel.slot_ms")


@pytest.mark.parametrize("value", ["nan", "-nan", "inf", "-inf", "+inf"])
@pytest.mark.parametrize("name", ["meta.controls_seconds_max", "sender.retry_max_s"])
def test_a_number_that_is_none_is_refused(tmp_path: Path, name: str, value: str) -> None:
    error = refusal(None, *ENOUGH, f"{name}={value}")
    assert (error.source, error.key) == (f"--set {name}={value}", name)
    assert "is not a finite number" in str(error)
    section, _, setting = name.partition(".")
    path = write(tmp_path, f"[{section}]\n{setting} = {value}\n")
    assert refusal(path, *ENOUGH).source == str(path)
    assert "weight" in str(refusal(None, *ENOUGH, f"brokers.g2=127.0.0.1:1,weight={value}"))


def test_an_override_that_is_no_text_is_refused_with_its_bytes() -> None:
    error = refusal(None, *ENOUGH, "log.level=\udc98")
    assert str(error) == "--set log.level=\\udc98: is not UTF-8"
