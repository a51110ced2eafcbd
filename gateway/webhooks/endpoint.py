"""One webhook: a receiver whose messages are posted, and what becomes of each.

    answer                    the message                    the endpoint
    2xx                       is done                        gets more again
    410                       waits                          is disabled
    429, 502 to 504,          comes again                    gets less, or nothing for a while
    or no connection
    any other, or no answer   comes again                    goes on

A message comes again by the retry policy, or after what Retry-After says if that is longer.
After the last try a message is a dead letter, with the status and the beginning of the answer.
Where messages name their own URLs 410 is a dead letter, and nothing is slowed down: the endpoints
are many.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final, NamedTuple

import aiohttp
import structlog
from yarl import URL

from delay_client import ReceivedMessage, Receiver, RetryPolicy
from gateway.webhooks.addresses import CheckedSockets, OwnResolver
from gateway.webhooks.pace import Pace
from gateway.webhooks.settings import Webhook
from gateway.webhooks.signing import Signer, headers_of

ANSWER_BYTES_MAX: Final = 64 * 1024
"""Bytes that are read of an answer; of a longer one the connection is closed."""
SHOWN_BYTES: Final = 1024
"""Bytes of an answer that a dead letter may show."""
CONNECT_S: Final = 5.0
"""Seconds for a connection, its TLS included."""
RETRY_AFTER_MAX_S: Final = 3600.0
"""The longest wait that an endpoint may ask for, in seconds."""

_SLOW: Final = frozenset({429, 502, 503, 504})

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


class Answer(NamedTuple):
    """The answer of an endpoint."""

    status: int
    """0: nothing that could be read."""
    said: str
    """The status and the beginning of the body, or what went wrong."""
    retry_after_s: float = 0.0
    """Seconds that the endpoint asks to wait; 0: it asks for none."""
    is_unreachable: bool = False


class EndpointError(Exception):
    """An endpoint did not take a message."""


class Endpoint:
    """Posts the messages of one webhook while `run()` runs."""

    def __init__(
        self,
        webhook: Webhook,
        receiver: Receiver,
        *,
        disable: Callable[[Webhook, str], None],
        answered: Counter[str],
    ) -> None:
        """`disable` is told of an endpoint that is gone, and why; `answered` counts by status."""
        self._webhook = webhook
        self._receiver = receiver
        self._disable = disable
        self._answered = answered
        self._signer = Signer(webhook.secrets)
        self._pace = Pace(webhook.concurrency, webhook.rate_per_s)
        self._resuming: asyncio.TimerHandle | None = None
        self._session: aiohttp.ClientSession | None = None

    async def run(self) -> None:
        """Post what is due until stop(); what is under way then is brought to its end."""
        webhook = self._webhook
        connector = aiohttp.TCPConnector(
            limit=webhook.concurrency,
            resolver=OwnResolver(webhook.name),
            socket_factory=CheckedSockets(webhook.private),
        )
        try:
            async with (
                aiohttp.ClientSession(
                    connector=connector,
                    cookie_jar=aiohttp.DummyCookieJar(),
                    auto_decompress=False,
                    timeout=aiohttp.ClientTimeout(total=webhook.timeout_s, connect=CONNECT_S),
                    headers={"User-Agent": "delaywheel", "Accept-Encoding": "identity"},
                ) as self._session,
                self._receiver as receiver,
            ):
                await receiver.run(self._handle, concurrency=webhook.concurrency)
        finally:
            if self._resuming is not None:
                self._resuming.cancel()

    def stop(self) -> None:
        """Take no more messages."""
        self._pace.pause()
        self._receiver.stop()

    async def _handle(self, message: ReceivedMessage) -> None:
        """Post a message, and give its verdict."""
        try:
            url = self._webhook.url_for(message.headers)
        except ValueError as error:
            message.refuse(f"webhook {self._webhook.name}: {error}")
            return
        async with self._pace.turn() as is_given:
            if not is_given:
                await message.release()
                return
            began_at = asyncio.get_running_loop().time()
            answer = await self._post(url, message)
        self._answered[str(answer.status or "none")] += 1
        if 200 <= answer.status < 300:
            self._pace.go_on()
            await message.done()
        elif answer.status == HTTPStatus.GONE and self._webhook.url:
            self._gone(f"{answer.said[:100]}, to message {message.id[:100]}")
            await message.release()
        elif answer.status == HTTPStatus.GONE:
            message.refuse(answer.said)
        else:
            if self._webhook.url and (answer.status in _SLOW or answer.is_unreachable):
                self._pause(self._pace.slow_down(began_at, answer.retry_after_s), answer.said)
            _come_again(message, answer)

    async def _post(self, url: URL, message: ReceivedMessage) -> Answer:
        """Return what is answered, whatever it is."""
        assert self._session is not None
        try:
            async with self._session.post(
                url,
                data=message.data,
                headers=headers_of(message, self._signer),
                allow_redirects=False,
            ) as response:
                body = await _read(response)
                status, reason = response.status, response.reason or ""
                said = f"{status} {reason}: {body[:SHOWN_BYTES].decode(errors='replace')}"
                return Answer(status, said, _retry_after_s(response.headers, message))
        except aiohttp.ClientConnectorError as error:
            return Answer(0, f"no connection: {error}", is_unreachable=True)
        except aiohttp.ConnectionTimeoutError:
            return Answer(0, f"no connection within {CONNECT_S:g} s", is_unreachable=True)
        except TimeoutError:
            return Answer(0, f"no answer within {self._webhook.timeout_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Answer(0, f"no answer of HTTP: {type(error).__name__}: {error}")

    def _gone(self, reason: str) -> None:
        """Post nothing more: an operator has to enable the webhook."""
        if self._resuming is not None:
            self._resuming.cancel()
        self._pace.pause()
        self._receiver.pause(f"webhook disabled: {reason}"[:_REASON_MAX])
        self._disable(self._webhook, reason)

    def _pause(self, seconds: float, reason: str) -> None:
        """Post nothing for a while, which may be 0 s; a pause that there is goes on as it is."""
        if self._pace.is_paused or not seconds:
            return
        _log.warning(
            "webhook paused", webhook=self._webhook.name, seconds=seconds, answer=reason[:200]
        )
        self._pace.pause()
        self._receiver.pause(f"webhook paused for {seconds:g} s: {reason}"[:_REASON_MAX])
        self._resuming = asyncio.get_running_loop().call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._pace.resume()
        self._receiver.resume()


_REASON_MAX: Final = 300
"""Characters of the reason of a pause, as `explain` shows it."""


def _come_again(message: ReceivedMessage, answer: Answer) -> None:
    """Let a message come again by the retry policy, but not before its endpoint said."""
    policy = message.desk.retry.by_levels(message.desk.levels_ms)
    wait_s = policy.wait_s(message.attempt, message.desk.chance) or 0.0
    wait_s = max(wait_s, answer.retry_after_s)
    retry = RetryPolicy(tries=policy.tries, waits_s=(wait_s,), jitter=0)
    message.failed(EndpointError(answer.said), retry)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Return the beginning of a body; where that is not all of it the connection ends with it."""
    body = bytearray()
    # The status is what counts, and it has come.
    with suppress(aiohttp.ClientError, TimeoutError):
        async for part in response.content.iter_any():
            body += part
            if len(body) > ANSWER_BYTES_MAX:
                break
    return bytes(body[:ANSWER_BYTES_MAX])


def _retry_after_s(headers: Mapping[str, str], message: ReceivedMessage) -> float:
    """Return the seconds of Retry-After, an hour at the most; 0: there are none to be read."""
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        wait_s = float(text)
    else:
        try:
            moment = parsedate_to_datetime(text)
            # A date without a zone, which HTTP allows in an old form, is one of UTC.
            moment = moment.replace(tzinfo=moment.tzinfo or UTC)
            wait_s = moment.timestamp() - message.desk.now_ms() / 1000
        except (ValueError, OverflowError):
            return 0.0
    return min(max(wait_s, 0.0), RETRY_AFTER_MAX_S)
