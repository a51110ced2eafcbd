"""Reminders over HTTP: a service that sends them with a Client and gets them with a Receiver.

python -m hypercorn --bind 127.0.0.1:8000 examples.reminders.app:app
"""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from delay_client import (
    Client,
    FatalError,
    ReceivedMessage,
    Receiver,
    Reject,
    RetryableError,
)

SUBJECT = "reminders.due"


class Reminder(msgspec.Struct, frozen=True):
    """What travels in a message."""

    who: Annotated[str, msgspec.Meta(min_length=1)]
    text: str


class Order(Reminder, frozen=True):
    """What somebody asks for: a reminder, and when."""

    in_seconds: float | None = None
    at: datetime | None = None


class Reminders:
    """The service. What it was made with makes its Client and its Receiver, or fakes of a test."""

    def __init__(
        self, make_client: Callable[[], Client], make_receiver: Callable[[], Receiver]
    ) -> None:
        self._make_client = make_client
        self._make_receiver = make_receiver
        self._client: Client | None = None
        self.delivered: dict[str, dict[str, object]] = {}
        """By message id: a copy is not delivered again. A real service asks a database."""
        self.app: Starlette = Starlette(
            routes=[
                Route("/reminders", self.order, methods=["POST"]),
                Route("/reminders/delivered", self.show),
            ],
            lifespan=self._run,
        )

    async def order(self, request: Request) -> JSONResponse:
        """Send a message that comes when the reminder is due.

        Somebody who is answered 503 asks again with the id of the answer as Idempotency-Key, so
        that copies have one id.
        """
        assert self._client is not None
        try:
            order = msgspec.json.decode(await request.body(), type=Order)
            receipt = await self._client.send(
                SUBJECT,
                msgspec.json.encode(Reminder(order.who, order.text)),
                delay=order.in_seconds,
                at=order.at,
                message_id=request.headers.get("idempotency-key"),
                content_type="application/json",
                timeout=5,
            )
        except (msgspec.MsgspecError, FatalError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        except RetryableError as error:
            return JSONResponse({"error": str(error), "id": error.message_id}, status_code=503)
        answer = {"id": receipt.message_id, "due": receipt.due_at.isoformat()}
        return JSONResponse(answer, status_code=202)

    async def show(self, _request: Request) -> JSONResponse:
        """List what was delivered."""
        return JSONResponse(list(self.delivered.values()))

    async def deliver(self, message: ReceivedMessage) -> None:
        """Remind somebody. The message is done when this returns, and comes again if it raises."""
        if message.id in self.delivered:
            return
        try:
            reminder = msgspec.json.decode(message.data, type=Reminder)
        except msgspec.MsgspecError as error:
            raise Reject(f"no reminder: {error}") from error
        print(f"{reminder.who}: {reminder.text}", flush=True)
        self.delivered[message.id] = {
            "id": message.id,
            "who": reminder.who,
            "text": reminder.text,
            "due": message.due.isoformat(),
        }

    @asynccontextmanager
    async def _run(self, _app: Starlette) -> AsyncIterator[None]:
        """Send and receive as long as the service runs; at its end finish what is at work."""
        async with (
            self._make_client() as self._client,
            self._make_receiver() as receiver,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(receiver.run, self.deliver)
            yield
            receiver.stop()


META = os.environ.get("DELAYWHEEL_META", "127.0.0.1:8080")

app = Reminders(
    lambda: Client(meta=META, app_code="reminders"),
    lambda: Receiver("reminders", subjects=[SUBJECT], meta=META),
).app
