"""The configuration checks itself: what could not work is refused, with a sentence, at once."""

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

from delay_server.accepting.admission import AdmissionConfig
from delay_server.holding.wheel import WheelConfig
from delay_server.settings.config import (
    ClockConfig,
    DelayServerConfig,
    HttpConfig,
    ListenerConfig,
    MetaConfig,
    NodeConfig,
    RoutesConfig,
    StorageConfig,
)
from delay_transport.connections.limits import ConnectionLimits
from delay_transport.settings.settings_file import sections
from sender.settings.config import BrokerGroup

NODE = NodeConfig(data_dir=Path("data"))
BROKERS = {"g1": "127.0.0.1:20881"}


def test_a_directory_and_a_broker_are_all_that_has_to_be_said() -> None:
    config = DelayServerConfig(node=NODE, brokers=BROKERS)
    assert config.listener.address == "127.0.0.1:20801"
    assert config.admission.horizon_days == 730
    assert config.wheel.load_ahead_ms == 120_000
    assert config.broker_groups() == (BrokerGroup(name="g1", host="127.0.0.1", port=20881),)


def test_a_broker_may_have_a_weight() -> None:
    config = DelayServerConfig(node=NODE, brokers={"g1": "127.0.0.1:20881,weight=2.5"})
    (group,) = config.broker_groups()
    assert (group.host, group.port, group.weight) == ("127.0.0.1", 20881, 2.5)


def test_a_configuration_does_not_change() -> None:
    config = DelayServerConfig(node=NODE, brokers=BROKERS)
    with pytest.raises(AttributeError):
        config.node = NODE  # type: ignore[misc]
    for section, kind in sections(DelayServerConfig).items():
        first = dataclasses.fields(kind)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(getattr(config, section), first, 1)


def test_the_listeners_defaults_are_those_of_a_connection() -> None:
    listener, defaults = ListenerConfig(), ConnectionLimits()
    for field in dataclasses.fields(ConnectionLimits):
        assert getattr(listener, field.name) == getattr(defaults, field.name)


def test_the_store_takes_the_names_of_the_node_and_the_section_whole() -> None:
    node = NodeConfig(data_dir=Path("data"), cluster="c", group="g", node_id="n")
    config = DelayServerConfig(node=node, brokers=BROKERS, storage=StorageConfig())
    settings = config.store_settings()
    assert (settings.cluster, settings.group, settings.node_id) == ("c", "g", "n")
    assert settings.limits == config.storage


@pytest.mark.parametrize(
    ("section", "values", "sentence"),
    [
        (NodeConfig, {"data_dir": Path("d"), "group": ""}, "group must have 1 to 255 bytes"),
        (NodeConfig, {"data_dir": Path("d"), "node_id": "a b"}, "node_id must have no blanks"),
        (NodeConfig, {"data_dir": Path("d"), "cluster": "a/b"}, "cluster must have no blanks, sl"),
        (NodeConfig, {"data_dir": Path("d"), "cluster": "ä" * 128}, "cluster must have 1 to 255"),
        (NodeConfig, {"data_dir": Path("d"), "stop_ms_max": -1}, "stop_ms_max must be at least 0"),
        (ListenerConfig, {"address": "nowhere"}, "the port is missing"),
        (ListenerConfig, {"connections_max": 0}, "connections_max must be more than 0"),
        (HttpConfig, {"address": "127.0.0.1:http"}, "is not a number from 0 to 65535"),
        (AdmissionConfig, {"horizon_days": 0}, "horizon_days must be at least 1"),
        (AdmissionConfig, {"request_items_max": 0}, "request_items_max must be at least 1"),
        (AdmissionConfig, {"hold_ms": -1}, "hold_ms must be at least 0"),
        (AdmissionConfig, {"item_bytes_max": 5 * 2**20}, "item_bytes_max must be"),
        (StorageConfig, {"checkpoint_interval_ms": 0}, "checkpoint_interval_ms must be at least"),
        (StorageConfig, {"disk_free_share_min": 5.0}, "disk_free_share_min must be below 1"),
        (StorageConfig, {"disk_free_share_min": float("nan")}, "disk_free_share_min must be at"),
        (StorageConfig, {"subjects_bytes_max": 5}, "subjects_bytes_max must be at least 1048576,"),
        (StorageConfig, {"segments_keep_ms": -1}, "segments_keep_ms must be at least 0"),
        (WheelConfig, {"load_ahead_ms": 1}, "load_ahead_ms must be at least 1000"),
        (WheelConfig, {"slot_ms": 0}, "slot_ms must be at least 1"),
        (WheelConfig, {"slot_ms": 200_000}, "slot_ms must be at most load_ahead_ms"),
        (ClockConfig, {"step_forward_ms_max": 5}, "step_forward_ms_max must be at least 1000"),
        (MetaConfig, {"addresses": "127.0.0.1:8080,nowhere"}, "addresses: 'nowhere' is not an"),
        (MetaConfig, {"advertised": "nowhere"}, "the port is missing"),
        (MetaConfig, {"advertised": "n1.test:0"}, "advertised must have a port"),
        (MetaConfig, {"reconnect_seconds_max": float("nan")}, "reconnect_seconds_max must be at"),
        (MetaConfig, {"controls_seconds_max": -1}, "controls_seconds_max must be at least 0"),
    ],
)
def test_nonsense_is_refused_with_a_sentence(
    section: type, values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        section(**values)


@pytest.mark.parametrize(
    ("own", "broker"),
    [
        ({"listener": "127.0.0.1:20801"}, "127.0.0.1:20801"),
        ({"listener": "127.0.0.1:20801"}, "localhost:20801"),
        ({"listener": "0.0.0.0:20801"}, "127.0.0.1:20801"),
        ({"listener": "[::]:20801"}, "[::1]:20801"),
        ({"listener": "0.0.0.0:20801", "advertised": "n1.test:20801"}, "N1.test:20801"),
        ({"listener": "10.0.0.5:20801"}, "10.0.0.5:20801,weight=2"),
        ({"http": "127.0.0.1:20811"}, "127.0.0.1:20811"),
    ],
)
def test_a_broker_group_at_an_own_address_is_refused(own: dict[str, str], broker: str) -> None:
    with pytest.raises(ValueError, match="messages would come back"):
        DelayServerConfig(
            node=NODE,
            brokers={"g1": broker},
            listener=ListenerConfig(address=own.get("listener", "127.0.0.1:20801")),
            http=HttpConfig(address=own.get("http", "")),
            meta=MetaConfig(advertised=own.get("advertised", "")),
        )
    DelayServerConfig(
        node=NODE,
        brokers={"g1": "10.0.0.9:20801", "g2": "127.0.0.1:20881", "g3": "127.0.0.2:20801"},
        listener=ListenerConfig(address="127.0.0.1:20801"),
    )


@pytest.mark.parametrize(
    ("brokers", "sentence"),
    [
        ({}, "brokers must name at least one"),
        ({"g1": "127.0.0.1"}, "the port is missing"),
        ({"g 1": "127.0.0.1:1"}, "the name of a broker group must have no blanks"),
        ({"g1": "127.0.0.1:1,weight=0"}, "the weight of broker group 'g1' must be 0.001 to 1000"),
        ({"g1": "127.0.0.1:1,weight=nan"}, "the weight of broker group 'g1' must be 0.001 to 1000"),
        ({"g1": "127.0.0.1:1,weight=-3"}, "the weight of broker group 'g1' must be 0.001 to 1000"),
        ({"g1": "127.0.0.1:1,weight=much"}, "the weight of broker 'g1' is not a number: 'much'"),
        ({"g1": "127.0.0.1:1,wait=3"}, "after host:port there may be ,weight=NUMBER"),
        ({"g1": "127.0.0.1:1,weight=3,4"}, "after host:port there may be ,weight=NUMBER"),
        ({"g1": "127.0.0.1:1,"}, "after host:port there may be ,weight=NUMBER"),
    ],
)
def test_brokers_that_cannot_be_reached_are_refused(brokers: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        DelayServerConfig(node=NODE, brokers=brokers)


def test_sections_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="load_ahead_ms must be at most half"):
        DelayServerConfig(
            node=NODE, brokers=BROKERS, storage=StorageConfig(minute_horizon_minutes=3)
        )
    with pytest.raises(ValueError, match="frame_bytes_max must be at least 64 KiB above"):
        DelayServerConfig(
            node=NODE, brokers=BROKERS, listener=ListenerConfig(frame_bytes_max=2**21)
        )


def test_the_http_port_can_be_left_out() -> None:
    assert HttpConfig(address="").address == ""


def test_the_smaller_floor_counts_and_it_is_never_less_than_a_start_needs() -> None:
    config = DelayServerConfig(node=NODE, brokers=BROKERS)
    assert config.disk_floor_bytes(10 * 2**30) == 2**29
    assert config.disk_floor_bytes(10 * 2**40) == 2 * 2**30
    none = DelayServerConfig(
        node=NODE, brokers=BROKERS, storage=StorageConfig(disk_free_bytes_min=0)
    )
    assert none.disk_floor_bytes(10 * 2**30) == 2**20


def test_every_field_of_the_whole_is_a_section_or_the_brokers() -> None:
    names = {field.name for field in msgspec.structs.fields(DelayServerConfig)}
    assert names == {*sections(DelayServerConfig), "brokers"}


@pytest.mark.parametrize(
    ("addresses", "found"),
    [
        ("", ()),
        (" , ", ()),
        ("127.0.0.1:8080", (("127.0.0.1", 8080),)),
        ("m1.test:8080, [::1]:8081,", (("m1.test", 8080), ("::1", 8081))),
    ],
)
def test_meta_servers_are_asked_in_the_order_given(
    addresses: str, found: tuple[tuple[str, int], ...]
) -> None:
    config = DelayServerConfig(node=NODE, brokers=BROKERS, meta=MetaConfig(addresses=addresses))
    assert config.meta.http_addresses() == found
    assert config.has_meta == bool(found)
    assert config.store_settings().begins_new_log == (not found)


def test_with_a_meta_server_no_broker_has_to_be_named() -> None:
    config = DelayServerConfig(node=NODE, meta=MetaConfig(addresses="127.0.0.1:8080"))
    assert config.broker_groups() == ()


@pytest.mark.parametrize(
    ("listening", "advertised", "told", "http"),
    [
        (("10.0.0.5", 20801), "", "10.0.0.5:20801", "10.0.0.5:1"),
        (("127.0.0.1", 40001), "n1.test:20801", "n1.test:20801", "127.0.0.1:1"),
        (("0.0.0.0", 20801), "10.0.0.5:1000", "10.0.0.5:1000", "10.0.0.5:1"),  # noqa: S104
        (("::", 20801), "n1.test:20801", "n1.test:20801", "n1.test:1"),
        (("::1", 20801), "n1.test:20801", "n1.test:20801", ""),
    ],
)
def test_clients_are_told_an_address_that_they_can_use(
    listening: tuple[str, int], advertised: str, told: str, http: str
) -> None:
    meta = MetaConfig(advertised=advertised)
    assert meta.told(listening) == told
    assert meta.told_http((listening[0], 1)) == http


@pytest.mark.parametrize("listening", ["0.0.0.0:20801", "[::]:20801", "[::1]:20801"])
@pytest.mark.parametrize("advertised", ["", "0.0.0.0:1", "[::1]:20801"])
def test_an_address_that_clients_could_not_use_is_refused(listening: str, advertised: str) -> None:
    meta = MetaConfig(addresses="127.0.0.1:8080", advertised=advertised)
    listener = ListenerConfig(address=listening)
    with pytest.raises(ValueError, match=r"meta\.advertised must be set to an IPv4 address"):
        DelayServerConfig(node=NODE, meta=meta, listener=listener)
    # Nobody is told where there is no meta server.
    DelayServerConfig(node=NODE, brokers=BROKERS, listener=listener)


def test_a_meta_server_takes_the_place_of_brokers_unless_they_are_given() -> None:
    meta = MetaConfig(addresses="127.0.0.1:8080, meta.example:8081")
    config = DelayServerConfig(node=NODE, meta=meta)
    assert config.has_routes
    assert config.meta.http_addresses() == (("127.0.0.1", 8080), ("meta.example", 8081))
    assert not DelayServerConfig(node=NODE, meta=meta, brokers=BROKERS).has_routes
    assert not DelayServerConfig(node=NODE, brokers=BROKERS).has_routes
    with pytest.raises(ValueError, match="at least one broker group"):
        DelayServerConfig(node=NODE)
    with pytest.raises(ValueError, match="addresses"):
        MetaConfig(addresses="nowhere")


def test_what_waits_for_a_route_can_fill_neither_the_session_nor_the_names() -> None:
    config = DelayServerConfig(node=NODE, brokers=BROKERS)
    assert config.unrouted_max == 100_000
    small = DelayServerConfig(
        node=NODE, brokers=BROKERS, storage=StorageConfig(subjects_bytes_max=2**20)
    )
    assert small.unrouted_max == 2**20 // (523 + 256)
    few = DelayServerConfig(node=NODE, brokers=BROKERS, routes=RoutesConfig(subjects_max=1))
    assert few.unrouted_max == 1


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(RoutesConfig)])
def test_settings_of_routes_that_make_no_sense_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        RoutesConfig(**{name: -1})
