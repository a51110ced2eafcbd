"""gateway.webhooks.settings: which URL a message is posted to."""

from typing import Any

import pytest

from gateway.incoming import OWN_URL
from gateway.webhooks.settings import Webhook

FIELDS: dict[str, Any] = {
    "name": "hook",
    "version": 1,
    "url": "",
    "hosts": (),
    "private": ("127.0.0.1",),
    "concurrency": 10,
    "rate_per_s": None,
    "timeout_s": 1.0,
    "disabled": "",
    "secrets": ("whsec_" + "A" * 32,),
    "receiver_token": "",
    "subjects": ("hook.*",),
}


def webhook(**fields: object) -> Webhook:
    return Webhook(**FIELDS | fields)


HOSTS = webhook(hosts=("a.example", "*.b.example", "c.example:8443"))


@pytest.mark.parametrize(
    "url",
    [
        "https://a.example/",
        "http://a.example:80/p?q=1",
        "https://A.EXAMPLE:443/",
        "https://x.b.example/",
        "https://x.y.b.example/",
        "https://c.example:8443/",
    ],
)
def test_a_message_may_name_a_url_of_an_allowed_host(url: str) -> None:
    assert HOSTS.url_for({OWN_URL: url}).host in {"a.example", "c.example", *("x.b.example",)} | {
        "x.y.b.example"
    }


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "names no URL"),
        ("https://b.example/", "does not allow b.example"),
        ("https://ab.example/", "does not allow ab.example"),
        ("https://xb.example/", "does not allow"),
        ("https://a.example:8443/", "does not allow a.example:8443"),
        ("https://a.example.evil/", "does not allow"),
        ("https://evil/?a.example", "does not allow evil"),
        ("https://a.example@evil/", "no user"),
        ("https://evil\\@a.example/", "no URL"),
        ("https://a.example%2f@evil/", "no user"),
        ("https://evil#@a.example/", "does not allow evil"),
        ("https://c.example/", "does not allow c.example"),
        ("ftp://a.example/", "begins with http"),
        ("file:///etc/passwd", "begins with http"),
        ("//a.example/", "begins with http"),
        ("https://a.example:99999/", "no URL"),
        ("https://[::1/", "no URL"),
        ("https://127.0.0.1/", "does not allow"),
        ("https://a.example/" + "x" * 2000, "at most 2000"),
    ],
)
def test_others_are_refused(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        HOSTS.url_for({OWN_URL: url})


def test_a_webhook_with_a_url_posts_to_that_alone() -> None:
    one = webhook(url="https://a.example/hook")
    assert str(one.url_for({OWN_URL: "https://evil/"})) == "https://a.example/hook"
    assert one.takes("hook.x")
    assert not one.takes("other")
    assert webhook(subjects=("*",)).takes("other")
    assert webhook(subjects=("a",)).takes("a")
    assert not webhook(subjects=("a",)).takes("ab")
