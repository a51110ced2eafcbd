"""Every target by name, and the decoders that need none."""

from collections.abc import Mapping
from typing import Final

from tests.fuzz.controls_targets import CONTROLS_TARGETS
from tests.fuzz.dead_targets import DEAD_TARGETS
from tests.fuzz.disk_targets import DISK_TARGETS
from tests.fuzz.meta_server_targets import META_SERVER_TARGETS
from tests.fuzz.meta_targets import META_TARGETS
from tests.fuzz.target import Target
from tests.fuzz.text_targets import TEXT_TARGETS
from tests.fuzz.wire_targets import WIRE_TARGETS

TARGETS: Final[Mapping[str, Target]] = {
    target.name: target
    for target in (
        *(*WIRE_TARGETS, *META_TARGETS, *META_SERVER_TARGETS),
        *(*DISK_TARGETS, *DEAD_TARGETS, *CONTROLS_TARGETS, *TEXT_TARGETS),
    )
}
