"""Promise: what is read as an address can be given to a resolver; all else is refused, with why."""

import pytest

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
