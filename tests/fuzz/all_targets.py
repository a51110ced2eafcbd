"""Every target by name: all that the modules of targets have."""

from collections.abc import Mapping
from typing import Final

from tests.fuzz import (
    controls_targets,
    dead_targets,
    disk_targets,
    meta_server_targets,
    meta_targets,
    node_targets,
    receiver_targets,
    snapshot_targets,
    text_targets,
    wire_targets,
)
from tests.fuzz.target import Target

_MODULES: Final = (
    *(wire_targets, meta_targets, meta_server_targets, node_targets, receiver_targets),
    *(disk_targets, dead_targets, controls_targets, snapshot_targets, text_targets),
)

TARGETS: Final[Mapping[str, Target]] = {
    found.name: found
    for module in _MODULES
    for found in vars(module).values()
    if isinstance(found, Target)
}
