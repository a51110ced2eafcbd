"""The routes that a meta server told, in a file: so a client that starts while it is away sends on.

    {"version": 1, "meta": ["meta1:8080"],
     "routes": {"boarding.call": [1700000000000, [["g1", "10.0.0.1:20801"]]]}}

Of each subject: when its route was last known to be right, in ms since 1970 UTC, and its groups
with their masters. The file is replaced as a whole and not synced: after a power failure it may be
gone. What cannot be read, is of other meta servers, or is too old, is ignored with a log line.
"""

import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from delay_client.exchange.kept_routes import Places
from delay_client.exchange.meta_link import meta_addresses
from delay_client.messages import clock

logger = logging.getLogger("delaywheel.client")

_VERSION: Final = 1
_BYTES_MAX: Final = 4 * 1024 * 1024
_SUBJECTS_MAX: Final = 10_000
_AGE_MS_MAX: Final = 7 * 86_400_000


class _Content(msgspec.Struct):
    version: int
    meta: list[str]
    routes: dict[str, tuple[int, Places]]


class RoutesFile:
    """What is known of routes, and the file that has it."""

    def __init__(self, path: str | os.PathLike[str], meta: str | Sequence[str]) -> None:
        """Keep the routes that these meta servers tell at `path`."""
        self._path = Path(path)
        self._meta = sorted(meta_addresses(meta))
        self._routes: dict[str, tuple[int, Places]] = {}
        self._fails = False

    def load(self) -> dict[str, Places]:
        """Return the groups of each subject that the file has, none if there is no such file."""
        try:
            self._routes = self._read()
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            logger.warning("routes are not taken from %s: %s", self._path, error)
            return {}
        return {subject: places for subject, (_, places) in self._routes.items()}

    def keep(self, routes: Mapping[str, Places]) -> None:
        """Write what is right now, and what was told before of other subjects."""
        now_ms = clock.wall_ms()
        known = self._routes | {subject: (now_ms, places) for subject, places in routes.items()}
        newest = sorted(known.items(), key=lambda one: one[1][0], reverse=True)
        self._routes = _not_old(dict(newest[:_SUBJECTS_MAX]))
        while len(data := self._encoded()) > _BYTES_MAX:
            self._routes = dict(list(self._routes.items())[: len(self._routes) // 2])
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        try:
            beside.write_bytes(data)
            beside.replace(self._path)
        except OSError as error:
            level = logging.DEBUG if self._fails else logging.WARNING
            logger.log(level, "routes cannot be kept in %s: %s", self._path, error)
            self._fails = True
            with contextlib.suppress(OSError):
                beside.unlink()
        else:
            self._fails = False

    def _encoded(self) -> bytes:
        return msgspec.json.encode(_Content(_VERSION, self._meta, self._routes))

    def _read(self) -> dict[str, tuple[int, Places]]:
        if self._path.exists() and not self._path.is_file():
            raise ValueError("it is no file")
        with self._path.open("rb") as file:
            data = file.read(_BYTES_MAX + 1)
        if len(data) > _BYTES_MAX:
            raise ValueError(f"it has more than {_BYTES_MAX} bytes")
        try:
            content = msgspec.json.decode(data, type=_Content)
        except msgspec.MsgspecError as error:
            raise ValueError(f"it is no file of routes: {error}") from error
        if content.version != _VERSION:
            raise ValueError(f"it is of version {content.version}, not {_VERSION}")
        if content.meta != self._meta:
            raise ValueError(f"it is of other meta servers: {', '.join(content.meta)[:200]}")
        routes = _not_old(content.routes)
        if content.routes and not routes:
            raise ValueError(f"it is older than {_AGE_MS_MAX // 86_400_000} days")
        return routes


def routes_keeper(
    path: str | os.PathLike[str] | None, meta: str | Sequence[str] | None
) -> RoutesFile | None:
    """Return the file of a client that was given these; raise ValueError if they do not fit."""
    if path is None:
        return None
    if meta is None:
        raise ValueError("routes_cache is for clients of a meta server: give meta= too")
    return RoutesFile(path, meta)


def _not_old(routes: dict[str, tuple[int, Places]]) -> dict[str, tuple[int, Places]]:
    """Return those that are worth a try, in order."""
    oldest_ms = clock.wall_ms() - _AGE_MS_MAX
    return {subject: route for subject, route in routes.items() if route[0] >= oldest_ms}
