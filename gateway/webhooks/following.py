"""The webhooks of a gateway, as an operator changes them at the meta server.

It asks for all of them every few seconds. Each that is not disabled has an endpoint, which receives
under its name: so several gateways share its messages.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec
import structlog

from delay_client import Receiver, ReceiverConfig
from delay_transport.http.problems import RequestError
from gateway.cluster import Cluster
from gateway.webhooks.endpoint import Endpoint
from gateway.webhooks.settings import Revealed, Webhook

FOLLOW_S: Final = 3.0
"""Seconds between two questions."""
CREDIT_BYTES: Final = 4 * 1024 * 1024
"""Bytes of messages that are here for each webhook and delay server: the least that may be."""
STOP_S: Final = 20.0
"""Seconds that requests under way have at the end."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


class _Running(NamedTuple):
    webhook: Webhook
    endpoint: Endpoint
    task: asyncio.Task[None]


class Webhooks:
    """Runs an endpoint for each webhook, while `run()` runs."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        receiver: Callable[[Webhook], Receiver] | None = None,
    ) -> None:
        """`cluster`: with a token of an administrator's at the meta servers.

        receiver: makes the receiver of a webhook, where it is not that of the meta servers
        """
        self._cluster = cluster
        self._receiver = receiver or self._attached
        self._known: Sequence[Webhook] | None = None
        self._running: dict[str, _Running] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._gone: dict[str, tuple[Webhook, str]] = {}
        """Webhooks that are to be disabled at the meta server, by name, and why."""
        self._trouble = ""
        self.answered: Counter[str] = Counter()
        """Answers of endpoints by their status; `none`: there was none."""

    async def run(self) -> None:
        """Follow the webhooks until it is cancelled; then bring to its end what is under way."""
        try:
            while True:
                await self._follow()
                await asyncio.sleep(FOLLOW_S)
        finally:
            self.apply([])
            if self._ending:
                await asyncio.wait(self._ending, timeout=STOP_S)
            for task in self._ending:
                task.cancel()

    def check_url(self, subject: str, url: str) -> None:
        """Raise RequestError unless a webhook of a subject posts to this URL."""
        if self._known is None:
            raise RequestError(
                503,
                "webhooks",
                "this gateway has not heard of its webhooks yet, which say what a URL may be: "
                f"{self._trouble or 'it has just started'}",
                retry_after_s=1,
            )
        why = f"no webhook without a URL of its own has the subject {subject[:100]!a}"
        for webhook in self._known:
            if webhook.hosts and webhook.takes(subject):
                try:
                    webhook.allowed_url(url)
                except ValueError as error:
                    why = str(error)
                else:
                    return
        raise RequestError(422, "url", f"Delaywheel-Url: {url[:100]!a} is not allowed: {why}")

    def apply(self, webhooks: Sequence[Webhook]) -> None:
        """Start and stop endpoints so that they are those of these webhooks."""
        self._known = webhooks
        wanted = {one.name: one for one in webhooks if not one.disabled}
        for name, running in list(self._running.items()):
            if running.task.done():
                _tell_end(running)
            elif wanted.get(name) == running.webhook:
                continue
            running.endpoint.stop()
            self._ending.add(running.task)
            running.task.add_done_callback(self._ending.discard)
            del self._running[name]
        for name, webhook in wanted.items():
            if name not in self._running:
                endpoint = Endpoint(
                    webhook,
                    self._receiver(webhook),
                    disable=self._disable,
                    answered=self.answered,
                )
                task = asyncio.create_task(endpoint.run())
                self._running[name] = _Running(webhook, endpoint, task)
        self._gone = {
            name: gone for name, gone in self._gone.items() if wanted.get(name) == gone[0]
        }

    async def _follow(self) -> None:
        """Ask once, and tell the meta server which endpoints are gone."""
        trouble = ""
        try:
            for webhook, reason in list(self._gone.values()):
                await self._disable_at_meta(webhook, reason)
            answer = await self._cluster.ask_meta("POST", "webhooks", "reveal")
            self.apply(msgspec.convert(answer, Revealed).webhooks)
        except (RequestError, msgspec.ValidationError) as error:
            trouble = str(error)
        if trouble and trouble != self._trouble:
            _log.warning("webhooks are as they were", reason=trouble)
        self._trouble = trouble

    async def _disable_at_meta(self, webhook: Webhook, reason: str) -> None:
        """Disable a webhook; raise RequestError. One that is another by now is left."""
        try:
            await self._cluster.ask_meta(
                *("POST", "webhook", webhook.name, "disable"),
                body={"reason": reason[:255]},
                headers={"If-Match": f'"{webhook.version}"'},
            )
        except RequestError as error:
            if error.code not in {404, 412}:
                raise

    def _disable(self, webhook: Webhook, reason: str) -> None:
        if webhook.name not in self._gone:
            _log.warning("webhook disabled", webhook=webhook.name, answer=reason)
            self._gone[webhook.name] = webhook, reason

    def _attached(self, webhook: Webhook) -> Receiver:
        return Receiver(
            webhook.name,
            meta=self._cluster.metas[:],
            token=webhook.receiver_token,
            config=ReceiverConfig(credit_bytes=CREDIT_BYTES),
        )


def _tell_end(running: _Running) -> None:
    """Log why an endpoint has ended that nobody stopped; it is started again."""
    error = None if running.task.cancelled() else running.task.exception()
    _log.error("webhook ended", webhook=running.webhook.name, reason=f"{error!r}")
