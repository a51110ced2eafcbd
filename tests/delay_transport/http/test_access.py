"""Who is let in: by token, by being on this machine, and never a page of another place."""

from pathlib import Path

import pytest
import trio
from starlette.requests import Request

from delay_transport.http.access import AccessPolicy, Caller, check_exposure, headers_of
from delay_transport.http.addresses import is_loopback
from delay_transport.http.problems import RequestError
from delay_transport.http.tokens import LOOPBACK, Role, Token, Tokens, digest_of
from delay_transport.seams.errors import ConfigError
from meta_server.settings.config import HttpConfig, ListenerConfig
from tests.meta_server.meta_rig import make_config

HOST = {"host": "127.0.0.1:8080"}


def tokens_of(**texts: Role) -> Tokens:
    """Return tokens in force, each called like its text."""
    tokens = Tokens(Path("file"))
    tokens.entries = tuple(
        Token(name=text, role=role, sha256=digest_of(text)) for text, role in texts.items()
    )
    return tokens


def gate(tokens: Tokens | None = None, *, own: str = "127.0.0.1:8080") -> AccessPolicy:
    return AccessPolicy(tokens or Tokens(None), own_address=own)


async def reason(
    at: AccessPolicy,
    headers: dict[str, str],
    *,
    peer: str = "127.0.0.1",
    needed: Role = Role.ADMIN,
    is_change: bool = True,
    reached_at: str = "",
) -> str:
    """Return why a request is turned away, or whom it is from."""
    await trio.lowlevel.checkpoint()
    try:
        caller = at.admit(headers, peer, needed=needed, is_change=is_change, reached_at=reached_at)
    except RequestError as error:
        return f"{error.code} {error.kind}"
    return caller.name


@pytest.mark.parametrize(
    ("host", "is_it"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("localhost", True),
        ("LocalHost", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),  # noqa: S104 (a name)
        ("::", False),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("", False),
    ],
)
def test_what_is_surely_this_machine(host: str, is_it: bool) -> None:
    assert is_loopback(host) is is_it


async def test_without_tokens_everybody_on_this_machine_is_an_administrator() -> None:
    assert gate().admit(HOST, "127.0.0.1", needed=Role.ADMIN, is_change=True) == Caller(
        name=LOOPBACK, role=Role.ADMIN
    )
    await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    "host", ["localhost:8080", "localhost", "[::1]:8080", "[::1]", "127.0.0.1", "LOCALHOST:1"]
)
async def test_this_machine_has_several_names(host: str) -> None:
    assert await reason(gate(), {"host": host}) == LOOPBACK


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "10.0.0.1", "", "[::2]:80"],
)
async def test_a_name_that_was_made_to_lead_here_is_turned_away_even_for_reading(host: str) -> None:
    assert await reason(gate(), {"host": host}, is_change=False) == "403 host"


async def test_the_name_that_is_listened_on_is_ones_own() -> None:
    assert await reason(gate(own="meta.local:8080"), {"host": "Meta.Local:8080"}) == LOOPBACK


async def test_the_address_that_was_connected_to_is_ones_own_and_so_is_a_peer_with_it() -> None:
    headers = {"host": "10.0.0.5:8080"}
    for peer, reached_at, expected in (
        ("10.0.0.5", "10.0.0.5", LOOPBACK),
        ("127.0.0.1", "10.0.0.5", LOOPBACK),
        ("10.0.0.9", "10.0.0.5", "403 peer"),
        ("127.0.0.1", "10.0.0.6", "403 host"),
        ("127.0.0.1", "", "403 host"),
    ):
        found = await reason(gate(), headers, peer=peer, reached_at=reached_at)
        assert found == expected


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": ""},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
async def test_a_page_of_another_place_changes_nothing(headers: dict[str, str]) -> None:
    assert await reason(gate(), HOST | headers) == "403 origin"
    with_token = {**HOST, **headers, "authorization": "Bearer alice"}
    assert await reason(gate(tokens_of(alice=Role.ADMIN)), with_token) == "403 origin"


async def test_a_page_of_ones_own_may() -> None:
    own = {"origin": "http://127.0.0.1:8080", "sec-fetch-site": "same-origin"}
    assert await reason(gate(), HOST | own) == LOOPBACK


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer alice"},
        {"authorization": "bearer  alice"},
        {"x-api-token": "alice"},
    ],
)
async def test_a_token_says_who_asks(headers: dict[str, str]) -> None:
    at = gate(tokens_of(alice=Role.ADMIN, bob=Role.READ))
    assert await reason(at, {"host": "anything", **headers}, peer="10.0.0.9") == "alice"


async def test_with_tokens_being_on_this_machine_is_not_enough() -> None:
    at = gate(tokens_of(alice=Role.ADMIN, bob=Role.READ))
    assert await reason(at, HOST) == "401 token"
    assert await reason(at, HOST | {"authorization": "Basic alice"}) == "401 token"
    assert await reason(at, HOST | {"authorization": "Bearer alic"}) == "401 token"
    assert await reason(at, HOST | {"x-api-token": "bob"}) == "403 role"
    assert await reason(at, HOST | {"x-api-token": "bob"}, needed=Role.READ) == "bob"
    assert at.denied == {"token": 3, "role": 1}


async def test_too_many_wrong_tokens_are_not_looked_at_but_good_ones_are() -> None:
    at = gate(tokens_of(alice=Role.ADMIN))
    wrong = HOST | {"x-api-token": "wrong"}
    found = [await reason(at, wrong) for _ in range(40)]
    assert found[:30] == ["401 token"] * 30
    assert found[-1] == "429 denials"
    assert await reason(at, HOST | {"x-api-token": "alice"}) == "alice"
    await trio.sleep(5)
    assert await reason(at, wrong) == "401 token"


async def test_a_file_that_cannot_be_read_lets_nobody_in() -> None:
    tokens = tokens_of(alice=Role.ADMIN)
    tokens.fault = "/etc/delaywheel/tokens.json: cannot be read; chmod 600 /etc/delaywheel"
    with pytest.raises(RequestError) as refused:
        gate(tokens).admit(
            HOST | {"x-api-token": "alice"}, "127.0.0.1", needed=Role.READ, is_change=False
        )
    assert (refused.value.code, refused.value.kind) == (503, "tokens")
    # Where the file lies is for the log: nobody has proved who he is.
    assert "/" not in str(refused.value)


@pytest.mark.parametrize(
    ("http", "listener", "key"),
    [
        (HttpConfig(address="0.0.0.0:8080"), ListenerConfig(), "http.address"),
        (HttpConfig(address="[::]:8080"), ListenerConfig(), "http.address"),
        (HttpConfig(address="meta.example:8080"), ListenerConfig(), "http.address"),
        (HttpConfig(), ListenerConfig(advertised="10.0.0.1:20880"), "listener.advertised"),
    ],
)
def test_others_are_listened_to_only_with_a_token(
    http: HttpConfig, listener: ListenerConfig, key: str
) -> None:
    config = make_config(http=http, listener=listener)
    for tokens in (Tokens(None), tokens_of()):
        with pytest.raises(ConfigError, match="token add") as caught:
            check_exposure(config.exposures, tokens)
        assert caught.value.key == key
    check_exposure(config.exposures, tokens_of(alice=Role.READ))


def test_this_machine_alone_and_no_http_at_all_need_no_token() -> None:
    check_exposure(make_config().exposures, Tokens(None))
    listener = ListenerConfig(advertised="10.0.0.1:20880")
    config = make_config(http=HttpConfig(address=""), listener=listener)
    check_exposure(config.exposures, Tokens(None))


def test_a_file_of_tokens_that_is_damaged_is_said_at_the_start(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "missing")
    tokens.read()
    with pytest.raises(ConfigError, match="cannot be read"):
        check_exposure(make_config().exposures, tokens)


def test_the_first_header_of_a_name_counts() -> None:
    given = [(b"host", b"localhost"), (b"x", b"1"), (b"host", b"evil.example")]
    request = Request({"type": "http", "headers": given})
    assert headers_of(request) == {"host": "localhost", "x": "1"}
