"""Where a server is to die: named places in its code, and the launcher's end of hitting them.

A point is a set of functions. What happens within them is counted: their begin, each change of the
disk, their end. At the drawn event the process kills itself with SIGKILL; if that is a change of
the disk, before it, after it or, if it is a write, after half of its bytes. Nothing of this is in
the server: `arm` wraps its functions in the launcher's process.
"""

import functools
import importlib
import inspect
import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from storage.disk.disk import DirectoryDisk, DirectoryFile

DISK_OPERATIONS: Final[Mapping[type, tuple[str, ...]]] = MappingProxyType(
    {
        DirectoryFile: ("write_at", "truncate", "sync"),
        DirectoryDisk: (
            "open",
            "make_directory",
            "rename",
            "unlink",
            "sync_directory",
            "sync_files",
        ),
    }
)

STAGES: Final = ("before", "inside", "after")


@dataclass(frozen=True, slots=True)
class Point:
    """A place to die in."""

    functions: tuple[str, ...]
    """`module:Class.method` of the functions within which events count: in the thread that runs
    them; from the begin of a coroutine on in all threads, until the end of the process."""

    events: int
    """The event is drawn below this number, rather a low one. About what a life of two seconds
    has; with a larger one than there are, a life ends under load."""

    operations: tuple[str, ...] = ()
    """If given, only these disk operations count."""


POINTS: Final[Mapping[str, Point]] = MappingProxyType(
    {
        "recovery": Point(
            ("storage.node.store:Store.open", "storage.node.store:Store.apply_tail"), 200
        ),
        "commit": Point(
            (
                "storage.logs.message_log:MessageLog.write",
                "storage.logs.message_log:MessageLog.sync_written",
            ),
            400,
        ),
        "file roll": Point(
            ("storage.logs.log_tail:LogTail._make_file",),
            12,
            ("open", "sync_directory", "unlink", "write_at"),
        ),
        "durable end": Point(
            (
                "storage.state.durable_end:DurableEndFile.write",
                "storage.state.durable_end:DurableEndFile.sync",
            ),
            300,
        ),
        # Around the commits that have some, and while they are filed.
        "facts": Point(
            (
                "delay_server.sending.fact_recorder:Facts.drafts",
                "delay_server.sending.fact_recorder:FactRecorder._durable_to",
                "storage.schedule.schedule_log:ScheduleLog.file_facts",
            ),
            200,
        ),
        "filing": Point(
            (
                "storage.schedule.schedule_log:ScheduleLog.apply",
                "storage.schedule.schedule_log:ScheduleLog.flush",
            ),
            300,
        ),
        "loading": Point(
            (
                "storage.schedule.handout:Handout.begin_load",
                "storage.schedule.loading:Reading.step",
            ),
            12,
        ),
        "checkpoint": Point(
            (
                "storage.node.store:Store.prepare_checkpoint",
                "storage.node.store:CheckpointWork.write",
                "storage.node.store:Store.finish_checkpoint",
            ),
            60,
        ),
        "seal": Point(("storage.schedule.seals:SealsLog.append",), 6),
        "split": Point(("storage.schedule.splitting:SplitJob.step",), 40),
        # Whoever removes files once the server runs (its dispatch has begun).
        "retention": Point(
            ("delay_server.mastership:Mastership._run_dispatch",),
            12,
            ("unlink",),
        ),
        "clean stop": Point(("delay_server.server:DelayServer.stop",), 40),
    }
)
"""By name. Points in time (start-up, under load) need no wrapping and are not among them."""


@dataclass(frozen=True, slots=True)
class Target:
    """The event at which the process is to die."""

    point: str
    event: int
    stage: str
    report: Path
    """Where what was hit is written, just before."""


def arm(target: Target) -> None:
    """Wrap the functions of a point and the disk, so that this process dies at the target."""
    _Trap(target).install()


class _Trap:
    def __init__(self, target: Target) -> None:
        self._target = target
        self._point = POINTS[target.point]
        self._left = target.event
        self._lock = threading.Lock()
        self._within = threading.local()
        self._everywhere = False
        """Within a function that runs in the loop, events of all threads count."""

    def install(self) -> None:
        for place in self._point.functions:
            owner, name = _resolve(place)
            plain = vars(owner)[name]
            if isinstance(plain, classmethod):
                setattr(owner, name, classmethod(self._scoped(plain.__func__, name)))
            else:
                setattr(owner, name, self._scoped(plain, name))
        for owner, names in DISK_OPERATIONS.items():
            for name in names:
                setattr(owner, name, self._operation(getattr(owner, name), name))

    def _scoped(self, plain: Callable[..., Any], name: str) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(plain):

            @functools.wraps(plain)
            async def in_loop(*args: Any, **named: Any) -> Any:  # noqa: ANN401
                self._everywhere = True
                return await plain(*args, **named)

            return in_loop

        @functools.wraps(plain)
        def in_thread(*args: Any, **named: Any) -> Any:  # noqa: ANN401
            depth = getattr(self._within, "depth", 0)
            self._within.depth = depth + 1
            try:
                self._passes(f"the begin of {name}")
                result = plain(*args, **named)
                self._passes(f"the end of {name}")
                return result
            finally:
                self._within.depth = depth

        return in_thread

    def _operation(self, plain: Callable[..., Any], name: str) -> Callable[..., Any]:
        wanted = not self._point.operations or name in self._point.operations

        @functools.wraps(plain)
        def operation(*args: Any, **named: Any) -> Any:  # noqa: ANN401
            counts = wanted and (name != "open" or "create" in named)
            inside = self._everywhere or getattr(self._within, "depth", 0) > 0
            if not (counts and inside and self._is_next()):
                return plain(*args, **named)
            stage = self._target.stage
            if stage == "after":
                plain(*args, **named)
            elif stage == "inside" and name == "write_at":
                file, position, buffers = args
                data = b"".join(buffers)
                plain(file, position, [data[: len(data) // 2]])
            else:
                stage = "before"
            self._die(f"{name} ({stage})")
            raise AssertionError("SIGKILL does not return")

        return operation

    def _passes(self, where: str) -> None:
        if not self._point.operations and self._is_next():
            self._die(where)

    def _is_next(self) -> bool:
        with self._lock:
            self._left -= 1
            return self._left == -1

    def _die(self, what: str) -> None:
        self._target.report.write_text(what)
        os.kill(os.getpid(), signal.SIGKILL)


def _resolve(place: str) -> tuple[type, str]:
    module, _, path = place.partition(":")
    owner, _, name = path.partition(".")
    found: type = getattr(importlib.import_module(module), owner)
    return found, name
