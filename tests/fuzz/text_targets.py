"""Targets for what people type: settings, addresses, delays, moments and attributes."""

import tempfile
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Final

import click

from delay_client.messages.config import parse_server
from delay_protocol.basics.addresses import host_fault, read_address
from delay_protocol.basics.levels import LEVEL_S_MAX, LEVELS_MAX, parse_levels
from delay_server.settings.config_file import load_config
from delay_transport.seams.errors import AddressError, ConfigError
from delay_transport.seams.runtime import format_address, parse_address, parse_peer_address
from delay_transport.settings.settings_file import SettingsReader
from delaywheel.shared.parameters import DELAY, MOMENT, PAIR
from meta_server.settings.config import MetaServerConfig
from storage.disk.errors import DamagedError, UnsupportedFormatError
from storage.readers.manifest import decode_manifest, encode_manifest
from tests.fuzz.target import attempt, byte_at, fault_of, target

_MEMORY: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - for speed only
load_meta_config: Final = SettingsReader(MetaServerConfig).load
_NEEDED: Final = ("node.data_dir=data", "brokers.g1=127.0.0.1:20881")


@cache
def _settings_file() -> Path:
    """Return a file to write settings into; it goes with the process."""
    folder = tempfile.TemporaryDirectory(prefix="fuzz-", dir=_MEMORY)
    _KEPT.append(folder)
    return Path(folder.name, "delay-server.toml")


_KEPT: Final[list[tempfile.TemporaryDirectory[str]]] = []


_SETTINGS_MEMORY: Final = 4 * 1024 * 1024
"""Types of all settings are looked up, patterns compiled: so much whatever the text is."""


@target(
    decoders=(load_config, load_meta_config),
    packages=(
        *(
            "delay_transport.settings.settings_file",
            "delay_server.settings.config",
            "meta_server.settings.config",
        ),
        "tomllib",
    ),
    memory_per_byte=2000,
    memory_base=_SETTINGS_MEMORY,
)
def config_file(data: bytes) -> None:
    """A file of settings is used or refused with a sentence that names it."""
    path = _settings_file()
    path.write_bytes(data)
    fault = fault_of(ConfigError, load_config, path)
    assert fault is None or (fault.source == str(path) and fault.reason)
    attempt(ConfigError, load_config, path, _NEEDED)
    meta_fault = fault_of(ConfigError, load_meta_config, path)
    assert meta_fault is None or (meta_fault.source == str(path) and meta_fault.reason)
    attempt(ConfigError, load_meta_config, path, _NEEDED[:1])


@target(
    decoders=(load_config,),
    packages=(
        "delay_transport.settings.settings_file",
        "delay_server.settings.config",
        "tomllib",
    ),
    size_max=512,
    memory_per_byte=2000,
    memory_base=_SETTINGS_MEMORY,
)
def overrides(data: bytes) -> None:
    """A `--set` is used or refused with a sentence that names it."""
    texts = data.decode(errors="surrogateescape").split("\0")[:4]
    fault = fault_of(ConfigError, load_config, None, [*_NEEDED, *texts])
    assert fault is None or fault.reason
    assert fault is None or fault.source in _sources(texts)


def _sources(texts: list[str]) -> set[str]:
    given = {f"--set {text}" for text in (*_NEEDED, *texts)}
    return {"settings", *(one.encode(errors="backslashreplace").decode() for one in given)}


@target(decoders=(parse_levels,), packages=("delay_protocol.basics.levels",), size_max=128)
def levels(data: bytes) -> None:
    """A table of levels is refused with a sentence, or has delays that a sender can add."""
    found = attempt(ValueError, parse_levels, data.decode("latin-1"))
    if found is not None:
        assert 1 <= len(found) <= LEVELS_MAX
        assert all(1000 <= delay_ms <= 1000 * LEVEL_S_MAX for delay_ms in found)


@target(
    decoders=(parse_address, parse_peer_address, parse_server, read_address, host_fault),
    packages=("delay_protocol.basics.addresses", "ipaddress"),
    size_max=128,
)
def addresses(data: bytes) -> None:
    """An address that is read is written as it was; client and server agree on what one is."""
    text = data.decode(errors="surrogateescape")
    address = attempt(AddressError, parse_address, text)
    server = attempt(ValueError, parse_server, text)
    assert attempt(AddressError, parse_peer_address, text) == server
    if address is not None:
        host, port = address
        assert host
        assert 0 <= port <= 65535
        assert host_fault(host) == ""
        # What a resolver does with it first.
        assert host.encode("idna") == host.encode("ascii")
        assert parse_address(format_address(address)) == address
        assert server == address or port == 0
    if server is not None:
        assert 0 < server[1] < 65536
        assert server == address


@target(
    decoders=(DELAY.convert, MOMENT.convert, PAIR.convert),
    packages=("delaywheel.shared.parameters",),
    size_max=128,
)
def parameters(data: bytes) -> None:
    """A delay, a moment, a pair: a value of its type, or a sentence for the user."""
    text = data[1:].decode(errors="surrogateescape")
    match byte_at(data, 0) % 3:
        case 0:
            delay = attempt(click.BadParameter, DELAY.convert, text, None, None)
            assert delay is None or delay >= timedelta(0)
        case 1:
            moment = attempt(click.BadParameter, MOMENT.convert, text, None, None)
            assert moment is None or moment.tzinfo is not None
        case _:
            pair = attempt(click.BadParameter, PAIR.convert, text, None, None)
            assert pair is None or ("=".join(pair) == text and pair[0] != "")


@target(decoders=(decode_manifest,), packages=("storage.readers.manifest",))
def manifest(data: bytes) -> None:
    """A manifest is what was written, or refused with a sentence that names its file."""
    faults = (DamagedError, UnsupportedFormatError)
    found = attempt(faults, decode_manifest, data, path="manifest.json")
    if found is not None:
        assert decode_manifest(encode_manifest(found), path="") == found
