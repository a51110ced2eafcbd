"""Promise: what is read as an address can be given to a resolver; all else is refused, with why."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol.basics.addresses import AddressFaultError, host_fault, read_address
from tests.odd_addresses import ODD_ADDRESSES, ODD_HOSTS


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "a", "broker-1.example.org", "my_service", "x" * 63, "3com.example", "-"),
        *("127.0.0.1", "::1", "fe80::1%eth0", "1234567890ab", "host.example."),
        *(".".join(["x" * 49] * 5), "xn--gre-6ka8i.example"),
    ],
)
def test_hosts_that_people_have_are_hosts(host: str) -> None:
    assert host_fault(host) == ""
    text = f"[{host}]:5" if ":" in host else f"{host}:5"
    assert read_address(text) == (host, 5)


@pytest.mark.parametrize("host", ODD_HOSTS, ids=range(len(ODD_HOSTS)))
def test_what_no_resolver_may_be_asked_for_is_no_host(host: str) -> None:
    reason = host_fault(host)
    assert reason
    assert len(reason) < 300
    # It goes into logs and answers.
    assert reason.isprintable()


def test_a_name_in_other_letters_is_refused_with_the_form_that_is_taken() -> None:
    reason = host_fault("grüße.example")
    assert "'grüße.example' is not a host name: write it in ASCII, xn--" in reason
    assert host_fault(reason.rpartition(" ")[2]) == ""


@pytest.mark.parametrize("text", ODD_ADDRESSES, ids=range(len(ODD_ADDRESSES)))
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(AddressFaultError):
        read_address(text, port_min=1)


@given(st.text(st.characters(), max_size=80) | st.from_regex(r"[a-z0-9._-]{1,90}:[0-9]{1,6}"))
def test_any_text_is_an_address_that_a_resolver_takes_or_a_fault(text: str) -> None:
    try:
        host, port = read_address(text, port_min=1)
    except AddressFaultError:
        return
    # What the socket module does with it first.
    assert host.encode("idna") == host.encode("ascii")
    assert "\0" not in host
    assert 0 < port < 65536
