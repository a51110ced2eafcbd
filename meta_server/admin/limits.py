"""Which limits are in force: what an operator set goes before the configuration file."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import msgspec
import structlog

from meta_server.admin.admin_types import LimitsChange
from meta_server.known.model import LimitSetting
from meta_server.settings.config import RegistrationConfig

LIMIT_NAMES: Final = LimitsChange.__struct_fields__
"""Limits that can be set while the server runs."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


def limits_in_force(
    configured: RegistrationConfig, stored: Mapping[str, LimitSetting]
) -> RegistrationConfig:
    """Return the limits of the file with those that are stored in their places.

    One that could not be set now (an older or newer meta server stored it) is left out, and named
    in the log: a server that did not start could not be told otherwise.
    """
    values: dict[str, float] = {}
    for name, setting in stored.items():
        if name in LIMIT_NAMES and _is_allowed(setting):
            values[name] = setting.value
        else:
            _log.warning(
                "a stored limit is invalid and ignored; reset or change it",
                limit=name,
                value=setting.value,
            )
    return replace(configured, **values)  # type: ignore[arg-type]


def _is_allowed(setting: LimitSetting) -> bool:
    try:
        msgspec.convert({setting.name: setting.value}, LimitsChange)
    except msgspec.ValidationError:
        return False
    return True
