"""gateway.webhooks.addresses: what a webhook may connect to, by the address alone."""

import asyncio
import ipaddress
import socket
import threading

import pytest

from gateway.webhooks.addresses import AddressRefusedError, CheckedSockets, OwnResolver, refusal

PUBLIC = ("8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808")
REFUSED = (
    *("127.0.0.1", "127.255.255.254", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255"),  # noqa: S104
    *("192.168.1.1", "169.254.169.254", "169.254.0.1", "100.64.0.1", "100.100.100.200"),
    *("192.0.0.192", "168.63.129.16", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1"),
    *("224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "fe80::1", "fe80::1%1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1"),
    *("2001:db8::1", "100::1", "4000::1"),
    # IPv4 addresses in IPv6: mapped, compatible, 6to4, NAT64, Teredo.
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1"),
    *("2002:7f00:1::", "2002:a00:1::", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe"),
    "2001:0:4136:e378:8000:63bf:f5ff:fffe",
)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_connected_to(address: str) -> None:
    assert refusal(address, []) == ""


@pytest.mark.parametrize("address", REFUSED)
def test_others_are_refused_unless_they_are_allowed(address: str) -> None:
    assert "is no public address" in refusal(address, [])
    every = [ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0")]
    assert refusal(address, every) == ""


def test_only_what_is_allowed_is() -> None:
    allowed = [ipaddress.ip_network("10.1.0.0/16")]
    assert refusal("10.1.2.3", allowed) == ""
    assert refusal("::ffff:10.1.2.3", allowed) == ""
    assert refusal("10.2.0.1", allowed)
    assert refusal("127.0.0.1", allowed)


def test_the_socket_of_an_address_that_is_refused_is_not_made() -> None:
    place = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 80))
    with pytest.raises(AddressRefusedError, match="is no public address"):
        CheckedSockets([])(place)
    CheckedSockets(["127.0.0.0/8"])(place).close()


def test_names_are_looked_up_beside_those_of_other_webhooks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = socket.getaddrinfo

    def slow(host: str, *arguments: object, **named: object) -> object:
        if host == "silent.example":
            assert not held.wait(5)
        return real("127.0.0.1", *arguments, **named)  # type: ignore[arg-type]

    async def main() -> None:
        one, other = OwnResolver("one"), OwnResolver("other")
        lookups = [asyncio.create_task(one.resolve("silent.example")) for _ in range(50)]
        async with asyncio.timeout(1):
            [found] = await other.resolve("good.example", 80, socket.AF_INET)
        assert (found["host"], found["port"]) == ("127.0.0.1", 80)
        for lookup in lookups:
            lookup.cancel()
        await one.close()
        await other.close()

    held = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", slow)
    asyncio.run(main())
