"""Webhooks at the meta server: what may be set, and that secrets are shown to gateways alone."""

import json
from typing import Any

import pytest

from meta_server.server import MetaServer
from tests.kit.operator import Operator, refusal_of
from tests.meta_server.meta_rig import World

SECRET = "whsec_" + "A" * 32
OTHER = "whsec_" + "B" * 32
GOOD: dict[str, Any] = {
    "url": "https://shop.example.com/hook",
    "subjects": ["orders.*"],
    "secrets": [SECRET],
}


async def test_a_webhook_is_set_with_its_subjects_and_its_policy(
    server: MetaServer, operator: Operator
) -> None:
    shown = await operator.put("webhook", "shop", **GOOD, tries=3, waits="5s 5m")
    assert (shown["url"], shown["subjects"]) == (GOOD["url"], ["orders.*"])
    assert (shown["secret_count"], shown["version"], shown["tries"]) == (1, 1, 3)
    assert (shown["concurrency"], shown["rate_per_s"], shown["timeout_s"]) == (10, None, 15.0)
    receiver = server.registry.receivers["shop"]
    assert (receiver.patterns, receiver.tries, receiver.waits) == (("orders.*",), 3, "5s 5m")
    assert receiver.is_entered
    # The policy alone changes; what receivers brought themselves stays.
    await operator.put("receiver", "shop", patterns=["orders.*"], unsettled_tries=4)
    changed = await operator.put("webhook", "shop", **GOOD, tries=5)
    assert (changed["tries"], changed["waits"], changed["version"]) == (5, "", 1)
    assert server.registry.receivers["shop"].unsettled_tries == 4


async def test_secrets_are_shown_to_gateways_alone(world: World, operator: Operator) -> None:
    await operator.put("webhook", "shop", **GOOD)
    await operator.put("webhook", "shop", **GOOD | {"secrets": [OTHER, SECRET]})
    # What is not named stays.
    shown = await operator.put("webhook", "shop", **GOOD | {"secrets": [], "concurrency": 3})
    assert (shown["secret_count"], shown["concurrency"], shown["version"]) == (2, 3, 3)
    listed = await operator.rows("webhook")
    told = json.dumps([shown, listed, [str(row.entry) for row in world.medium.audit]])
    assert "shop" in told
    assert SECRET not in told
    assert OTHER not in told
    [one] = (await operator.ask("POST", "/api/v1/webhooks/reveal")).json["webhooks"]
    assert (one["name"], one["secrets"], one["receiver_token"]) == ("shop", [OTHER, SECRET], "")
    assert one["concurrency"] == 3


async def test_a_webhook_that_is_removed_leaves_its_name_so_that_messages_wait(
    world: World, server: MetaServer, operator: Operator
) -> None:
    await operator.put("webhook", "shop", **GOOD)
    code, error = await refusal_of(operator.remove("receiver", "shop"))
    assert code == 409
    assert "delaywheel admin remove webhook shop" in error["message"]
    await operator.remove("webhook", "shop")
    assert not server.registry.webhooks
    assert server.registry.receivers["shop"].patterns == ("orders.*",)
    assert SECRET not in str(world.medium.audit)
    await operator.remove("receiver", "shop")


async def test_one_that_is_disabled_waits_for_an_operator_who_is_told_what_enables_it(
    operator: Operator,
) -> None:
    await operator.put("webhook", "shop", **GOOD)
    await operator.ask("POST", "/api/v1/webhook/shop/disable", {"reason": "410 Gone"})
    [step] = (await operator.topology())["next_steps"]
    assert step["group"] == "shop"
    assert "'410 Gone'" in step["step"]
    assert step["step"].endswith("`delaywheel admin set webhook shop disabled=`")
    await operator.put("webhook", "shop", **GOOD, disabled="")
    [step] = (await operator.topology())["next_steps"]
    assert "nobody receives" in step["step"]


@pytest.mark.parametrize(
    ("changed", "field", "said"),
    [
        ({"url": ""}, "url", "a URL, or none and `hosts`"),
        ({"hosts": ["a.example"]}, "url", "a URL, or none and `hosts`"),
        ({"url": "ftp://a.example/"}, "url", "http:// or https://"),
        ({"url": "https:///path"}, "url", "http:// or https://"),
        ({"url": "https://a.example:x/"}, "url", "a URL"),
        ({"url": "https://a.example/ b"}, "url", "http:// or https://"),
        ({"url": "https://u:p@a.example/"}, "url", "without a user"),
        ({"url": "https://a.example/#part"}, "url", "without a user and without #"),
        ({"url": "", "hosts": ["*.*.example"]}, "hosts", "*.example.com"),
        ({"url": "", "hosts": ["https://a.example"]}, "hosts", "*.example.com"),
        ({"url": "", "hosts": ["A.example"]}, "hosts", "*.example.com"),
        ({"private": ["10.0.0.1/8"]}, "private", "has host bits set"),
        ({"private": ["localhost"]}, "private", "does not appear to be"),
        ({"secrets": []}, "secrets", "openssl rand -base64 32"),
        ({"secrets": ["A" * 32]}, "secrets", "whsec_"),
        ({"secrets": ["whsec_" + "A" * 28]}, "secrets", "24 to 64 random bytes"),
        ({"secrets": ["whsec_" + "A" * 88]}, "secrets", "24 to 64 random bytes"),
        ({"secrets": ["whsec_!" + "A" * 32]}, "secrets", "24 to 64 random bytes"),
        ({"subjects": ["a*b"]}, "subjects", "the beginning of subjects"),
        ({"waits": "soon"}, "waits", "soon"),
    ],
)
async def test_what_no_gateway_could_use_is_refused_by_its_field(
    server: MetaServer, operator: Operator, changed: dict[str, Any], field: str, said: str
) -> None:
    code, error = await refusal_of(operator.put("webhook", "shop", **GOOD | changed))
    assert (code, error["field"]) == (400, field)
    assert said in error["message"]
    assert SECRET not in str(error)
    assert not server.registry.webhooks
    assert not server.registry.receivers
