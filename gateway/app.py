"""A gateway as an ASGI application on asyncio: its API, its page, health and metrics."""

from typing import Final

from starlette.applications import Starlette
from starlette.routing import Route

from delay_transport.http.access import HttpAccess, HttpLimits
from delay_transport.http.application import Health, make_server_application
from delay_transport.http.metric_families import Exposition, build_info, counter, counters, gauge

# Each has operations of the API.
from gateway import changing, looking, operating, sending, timeline  # noqa: F401
from gateway.api import API, Parts
from gateway.page import Page

LIMITS: Final = HttpLimits(
    requests_max=2000,
    bodies_bytes_max=256 * 1024 * 1024,
    busy_code=429,
    body_bytes_max=2 * 1024 * 1024,
    body_s=30.0,
)
"""Bounds of requests, whose bodies are in memory. The cluster's own limit of a message is lower."""


def application(parts: Parts, access: HttpAccess) -> Starlette:
    """Return the ASGI application of a gateway."""

    def metrics() -> Exposition:
        return Exposition(
            [
                build_info(),
                counters("gateway_answers", "Answers, by status.", "status", dict(access.answered)),
                counter("gateway_messages", "Messages that the cluster keeps.", parts.accepted),
                counters(
                    "gateway_webhook_answers",
                    "Answers of endpoints, by status.",
                    "status",
                    dict(parts.webhooks.answered),
                ),
                gauge("gateway_requests", "Requests that are worked on.", access.busy),
            ]
        )

    page = Page()
    return make_server_application(
        API,
        access,
        lambda: parts,
        Health(
            failing=list,
            status=lambda: {"requests": access.busy, "messages": parts.accepted},
            metrics=metrics,
            are_metrics_open=False,
        ),
        more=[Route("/ui", page.answer), Route("/ui/{file}", page.answer)],
    )
