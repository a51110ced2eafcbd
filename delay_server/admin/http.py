"""The HTTP application of a delay server: Starlette on Hypercorn's trio worker.

Health needs no token. All other endpoints, `/metrics` too, which names subjects, are for callers
with a token, or, without a token file, for callers on this machine that are no page in a browser
(`delay_transport/http/access.py`). The operations are in `delay_server/admin/api.py`.
"""

from starlette.applications import Starlette

from delay_server.admin.api import API
from delay_server.admin.metrics import take
from delay_server.admin.parts import Administered
from delay_server.admin.status import failing_checks, status_of
from delay_transport.http.application import Health, make_server_application


def application(administered: Administered) -> Starlette:
    """Return the ASGI application of one server."""
    observe = administered.observe
    health = Health(
        failing=lambda: failing_checks(observe()),
        status=lambda: status_of(observe()),
        metrics=lambda: take(observe()),
        are_metrics_open=False,
    )
    return make_server_application(API, administered.access, lambda: administered, health)
