"""The page at /ui: static files, a client of the API as any other.

Nothing of it is secret, so it needs no token; what it shows does. The policy of its content lets a
browser run and load nothing that is not one of these files.
"""

from importlib import resources
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from delay_transport.http.problems import RequestError
from delay_transport.http.server import problem_of

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # A gateway of another version has other files of the same names.
    "Cache-Control": "no-cache",
}


class Page:
    """The files, read once."""

    def __init__(self) -> None:
        folder = resources.files("gateway") / "ui"
        self._files = {
            file.name: (file.read_bytes(), kind)
            for file in folder.iterdir()
            for ending, kind in _TYPES.items()
            if file.name.endswith(ending)
        }

    async def answer(self, request: Request) -> Response:
        """Return a file; without a name the page itself."""
        name = request.path_params.get("file", "index.html")
        if name not in self._files:
            return problem_of(RequestError(404, "not-found", "there is no such file: see /ui"))
        data, kind = self._files[name]
        return Response(data, media_type=kind, headers=_HEADERS)
