"""Rules and views of webhooks. Pure.

A webhook is two rows: where and how gateways post, and the name of receivers of the same name,
which has its subjects and its retry policy. Both are set in one commit, by the rules of receivers.
Secrets are in the one row and in what gateways ask for. Lists and the audit do not show them.
"""

import base64
import binascii
import ipaddress
import re
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec.structs import asdict, replace

from delay_transport.http.operations import Request
from meta_server.admin.admin_types import (
    Disabling,
    NameKey,
    ReceiverSet,
    WebhookRevealed,
    WebhookSet,
    WebhookShown,
    WebhooksRevealed,
)
from meta_server.admin.parts import Parts, Planned
from meta_server.admin.rules import put, set_receiver
from meta_server.groups.broker_groups import check_room
from meta_server.known.errors import BadValueError
from meta_server.known.model import Receiver, Remove, Webhook, WebhookSettings

WEBHOOKS_MAX: Final = 1000
"""Webhooks that there may be: a gateway asks for all of them every few seconds."""

_SECRET_PREFIX: Final = "whsec_"  # noqa: S105 (what secrets begin with)
_SECRET_BYTES: Final = range(24, 65)
_HOST: Final = re.compile(r"(\*\.)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?")


def set_webhook(parts: Parts, key: NameKey, known: Webhook | None, wanted: WebhookSet) -> Planned:
    """Enter a webhook, or change it: what gateways post its messages to, and which it gets."""
    name, registry = key.name, parts.registry
    _check(wanted, is_new=known is None)
    if known is None:
        check_room("webhooks", registry.webhooks, WEBHOOKS_MAX, [name])
    own = {field: getattr(wanted, field) for field in _OWN}
    secrets = wanted.secrets or (() if known is None else known.secrets)
    changed = put(known, Webhook(name=name, secrets=secrets, **own))
    receiver = registry.receivers.get(name)
    policy = {field: getattr(wanted, field) for field in _POLICY}
    lasting = None if receiver is None else receiver.unsettled_tries
    received = set_receiver(
        parts,
        key,
        receiver,
        ReceiverSet(patterns=wanted.subjects, unsettled_tries=lasting, **policy),
        patterns_are="subjects",
    )
    return Planned(
        [*changed.changes, *received.changes],
        _shown(changed.after or known, received.after or receiver),
        None if known is None else _shown(known, receiver),
        received.stored,
    )


def disable_webhook(parts: Parts, _key: NameKey, known: Webhook, wanted: Disabling) -> Planned:
    """Post nothing more of a webhook: its messages wait until `disabled=` is set empty again."""
    planned = put(known, replace(known, disabled=known.disabled or wanted.reason))
    if not planned.changes:
        return planned
    receiver = parts.registry.receivers.get(known.name)
    return planned._replace(after=_shown(planned.after, receiver), before=_shown(known, receiver))


def remove_webhook(parts: Parts, _key: NameKey, known: Webhook, _body: Request) -> Planned:
    """Remove a webhook. Its name of receivers stays, so that its messages wait.

    `delaywheel receiver remove` ends that.
    """
    return Planned([Remove(known)], before=show_webhook(parts, known))


def show_webhook(parts: Parts, webhook: Webhook) -> WebhookShown:
    """Return a webhook without its secrets."""
    return _shown(webhook, parts.registry.receivers.get(webhook.name))


def reveal_all(parts: Parts) -> WebhooksRevealed:
    """Return all webhooks with their secrets."""
    return WebhooksRevealed(
        webhooks=[
            WebhookRevealed(
                **asdict(one),
                subjects=show_webhook(parts, one).subjects,
                receiver_token=parts.credentials.token_of_receiver(one.name),
            )
            for one in parts.registry.webhooks.values()
        ]
    )


_POLICY: Final = ("tries", "waits", "first_level")
_OWN: Final = tuple(
    name for name in WebhookSettings.__struct_fields__ if name not in {"name", "version"}
)


def _shown(webhook: Any, receiver: Any) -> WebhookShown:  # noqa: ANN401 (Planned has objects)
    receiver = receiver or Receiver(name=webhook.name)
    return WebhookShown(
        **{name: getattr(webhook, name) for name in WebhookSettings.__struct_fields__},
        **{name: getattr(receiver, name) for name in _POLICY},
        secret_count=len(webhook.secrets),
        subjects=receiver.patterns,
    )


def _check(wanted: WebhookSet, *, is_new: bool) -> None:
    """Raise BadValueError for what no gateway could use."""
    if bool(wanted.url) == bool(wanted.hosts):
        raise BadValueError(
            field="url",
            value=wanted.url,
            allowed="a URL, or none and `hosts` that the URLs of messages may have",
        )
    if wanted.url and (fault := _fault_of(wanted.url)):
        raise BadValueError(field="url", value=wanted.url, allowed=fault)
    for host in wanted.hosts:
        if not _HOST.fullmatch(host):
            raise BadValueError(
                field="hosts", value=host, allowed="api.example.com, *.example.com or host:port"
            )
    for network in wanted.private:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise BadValueError(field="private", value=network, allowed=str(error)) from error
    if (is_new and not wanted.secrets) or not all(map(_is_secret, wanted.secrets)):
        raise BadValueError(
            field="secrets",
            value="…",
            allowed="one or two, each whsec_ and base64 of 24 to 64 random bytes: "
            '"whsec_$(openssl rand -base64 32)"',
        )


def _fault_of(url: str) -> str:
    """Return what a URL must have that this one has not; empty if it may be."""
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError as error:
        return f"a URL ({error})"
    if not is_whole or not url.isascii() or not url.isprintable() or " " in url:
        return "http:// or https://, a host, and ASCII characters alone"
    if parts.username is not None or parts.fragment:
        return "a URL without a user and without #"
    return ""


def _is_secret(text: str) -> bool:
    try:
        data = base64.b64decode(text.removeprefix(_SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return False
    return text.startswith(_SECRET_PREFIX) and len(data) in _SECRET_BYTES
