"""Reads the rules of a node without a meta server from the file that an operator writes.

It has JSON with the fields of `delay_protocol/nodes/controls.py::Controls`:

    {"subjects": {"order.*": {"paused": true}}, "groups": {"g1": {"rate_per_s": 5}}}

What it says is the next version of the controls that the node has.
"""

from pathlib import Path

from delay_protocol.nodes.controls import Controls, ControlsError, decode_controls
from delay_transport.seams.errors import ConfigError


def read_rules(path: Path, present: Controls) -> Controls:
    """Return the controls by the file, or those that are present if it says the same.

    Raises ConfigError.
    """
    # Whoever opens a FIFO waits for somebody who writes.
    if path.exists() and not path.is_file():
        raise ConfigError(source=str(path), key="", reason="is no regular file")
    try:
        told = decode_controls(path.read_bytes())
    except (OSError, ControlsError) as error:
        raise ConfigError(
            source=str(path), key="", reason=f"has no rules that can be read: {error}"
        ) from error
    if (told.subjects, told.groups) == (present.subjects, present.groups):
        return present
    return Controls(version=present.version + 1, subjects=told.subjects, groups=told.groups)
