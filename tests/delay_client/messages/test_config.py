"""Promise: a setting or an address that cannot work is refused when it is given."""

from datetime import timedelta
from typing import Any

import pytest

from delay_client import Client, ClientConfig
from delay_client.messages.config import parse_server
from tests.odd_addresses import ODD_ADDRESSES


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:20801", ("127.0.0.1", 20801)),
        ("delay-1.example:1", ("delay-1.example", 1)),
        ("[::1]:20801", ("::1", 20801)),
    ],
)
def test_an_address_is_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert parse_server(text) == address


@pytest.mark.parametrize(
    "text",
    [
        *ODD_ADDRESSES,
        *("", "localhost", ":1", "h:", "h:x", "h:0", "h:65536", "::1:20801", "[]:1", "h:-1"),
        *("[x]:1", " :1", "a b:1", "user@h:1", "http://h:1", "[:1", "h:" + "9" * 5000),
    ],
    ids=lambda text: f"{len(text)} letters",
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an address"):
        parse_server(text)


@pytest.mark.parametrize("address", ["user:s3cret@h:1", "http://user:s3cret@h:1"])
def test_a_password_in_an_address_is_not_repeated(address: str) -> None:
    for fields in ({"meta": address}, {"servers": [address]}, {"servers": address}):
        with pytest.raises(ValueError, match="host:port") as caught:
            Client(**fields)
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("timeout_s", 0),
        ("timeout_s", float("nan")),
        ("try_timeout_s", -1),
        ("request_items_max", 0),
        ("linger_s", -0.1),
        ("backoff_max_s", 0.01),
        ("levels", "1s 1x"),
        ("levels", ""),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        ClientConfig(**{field: value})  # type: ignore[arg-type]


def test_no_linger_is_a_setting() -> None:
    assert ClientConfig(linger_s=0).linger_s == 0


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), True, "1", b"", timedelta(1)])
def test_a_call_cannot_ask_for_no_time(timeout: Any) -> None:  # noqa: ANN401 (of any type)
    with pytest.raises(ValueError, match="timeout"):
        ClientConfig().timeout(timeout)


def test_a_call_that_says_nothing_gets_the_default() -> None:
    assert ClientConfig(timeout_s=3).timeout(None) == 3
    assert ClientConfig(timeout_s=3).timeout(1) == 1
