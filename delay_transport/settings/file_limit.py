"""Settings that are lowered where the system lets a process open fewer files than they want."""

import dataclasses
from operator import attrgetter
from typing import Final, TypeVar

import msgspec
import structlog

from delay_transport.seams.process import allow_open_files

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

Config = TypeVar("Config", bound=msgspec.Struct)

OTHER_FILES: Final = 256
"""Files open at a time that no setting counts: logs, mappings being made, libraries."""


def within_file_limit(config: Config, *settings: str) -> Config:
    """Allow as many open files as settings want; return lower ones if the system allows fewer.

    settings: each a number of open files, as section.field; all are lowered in proportion
    """
    wanted: dict[str, int] = {name: attrgetter(name)(config) for name in settings}
    needed = sum(wanted.values()) + OTHER_FILES
    limit = allow_open_files(needed)
    if limit >= needed:
        return config
    share = (limit - OTHER_FILES) / sum(wanted.values())
    lowered = {name: max(int(value * share), 2) for name, value in wanted.items()}
    _log.warning(
        "the limit of open files is too low for the settings; raise it (ulimit -n)",
        limit=limit,
        needed=needed,
        **lowered,
    )
    for name, value in lowered.items():
        section, _, field = name.partition(".")
        changed = dataclasses.replace(getattr(config, section), **{field: value})
        config = msgspec.structs.replace(config, **{section: changed})
    return config
