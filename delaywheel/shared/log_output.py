"""Writes log events to standard error, as JSON lines or as readable lines on a terminal.

structlog's events and those of libraries that use the standard library's logging (Hypercorn) come
out alike.
"""

import logging
import sys
from typing import TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor

from delay_protocol.basics.printable import printable
from delaywheel.shared.background_output import write_in_background


def set_up_log(*, level: str, form: str, stream: TextIO | None = None) -> None:
    """Send every event of at least `level` to `stream`.

    Without one it is standard error, which is written in the background from then on, as standard
    output is. `form` is json, console or auto, which is console on a terminal.
    """
    if stream is None:
        write_in_background()
    out = stream or sys.stderr
    console = form == "console" or (form == "auto" and out.isatty())
    least = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, *_rendering(console=console, colors=out.isatty())],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_rendering(console=console, colors=out.isatty()),
            ],
        )
    )
    # A library's small talk is not ours: below warning it is dropped.
    logging.basicConfig(handlers=[handler], level=max(least, logging.WARNING), force=True)


def _rendering(*, console: bool, colors: bool) -> list[Processor]:
    if console:
        return [_escape, structlog.dev.ConsoleRenderer(colors=colors)]
    return [
        structlog.processors.dict_tracebacks,
        structlog.processors.JSONRenderer(serializer=_json),
    ]


def _escape(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Escape what a terminal would take for commands; tracebacks keep their lines."""
    for key, value in event.items():
        if isinstance(value, str) and key not in {"exception", "stack"}:
            event[key] = printable(value)
    return event


def _json(event: object, **_: object) -> str:
    # What JSON does not know (a path, an enum, an exception) is written as its text.
    return msgspec.json.encode(event, enc_hook=str).decode()
