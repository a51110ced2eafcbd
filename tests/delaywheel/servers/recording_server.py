"""A stand-in for the process of a server, which remembers what it was to run with."""

import sys
import types
from typing import Any

import pytest

import delaywheel.shared.log_output


class RecordingServer(types.ModuleType):
    """Takes configurations, and raises `error` if there is one."""

    def __init__(self) -> None:
        super().__init__("process")
        self.configs: list[Any] = []
        self.error: Exception | None = None

    def run(self, config: object) -> None:
        self.configs.append(config)
        if self.error is not None:
            raise self.error


def recorded(monkeypatch: pytest.MonkeyPatch, module: str) -> RecordingServer:
    """Return what stands in for a module of a server; the log stays as it is."""
    server = RecordingServer()
    monkeypatch.setitem(sys.modules, module, server)
    monkeypatch.setattr(delaywheel.shared.log_output, "set_up_log", lambda **_: None)
    return server
