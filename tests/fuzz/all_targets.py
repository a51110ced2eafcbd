"""Every target by name: all that the modules of targets have."""

from collections.abc import Mapping
from typing import Final

from tests.fuzz import (
    body_targets,
    controls_targets,
    dead_targets,
    disk_targets,
    meta_server_targets,
    text_targets,
    wire_targets,
)
from tests.fuzz.target import Target

_MODULES: Final = (
    *(wire_targets, body_targets, meta_server_targets, disk_targets),
    *(dead_targets, controls_targets, text_targets),
)

TARGETS: Final[Mapping[str, Target]] = {
    found.name: found
    for module in _MODULES
    for found in vars(module).values()
    if isinstance(found, Target)
}
