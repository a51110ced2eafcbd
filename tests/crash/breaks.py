"""Servers with one rule taken out, to show that the harnesses notice."""

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import trio

from delay_server.accepting.commits import Committer, Work
from delay_server.sending.fact_recorder import FactRecorder
from storage.disk.disk import DirectoryDisk, DirectoryFile, File
from tests.crash.patching import put_in

_LATER_S: Final = 0.05
_FACTS_LATER_S: Final = 3.0
"""By the machine's clock; longer than most lives."""


def _no_fsync() -> None:
    def sync(_self: DirectoryFile) -> None:
        return

    def sync_directory(_self: DirectoryDisk, _path: str) -> None:
        return

    def sync_files(_self: DirectoryDisk, _files: Sequence[File]) -> None:
        return

    put_in(DirectoryFile, sync=sync)
    put_in(DirectoryDisk, sync_directory=sync_directory, sync_files=sync_files)


def _no_directory_fsync() -> None:
    def sync_directory(_self: DirectoryDisk, _path: str) -> None:
        return

    put_in(DirectoryDisk, sync_directory=sync_directory)


def _answer_first() -> None:
    write = Committer.submit

    async def write_later(committer: Committer, work: Work) -> None:
        await trio.sleep(_LATER_S)
        write(committer, lambda: work, lambda _: None)

    def submit(
        self: Committer,
        take: Callable[[], Work],
        on_end: Callable[[bool], None],
        *,
        has_items: bool = True,
        on_durable: Callable[[int], None] = lambda _: None,
        linger_s: float = 0.0,
    ) -> None:
        if not has_items:
            write(self, take, on_end, has_items=False, on_durable=on_durable, linger_s=linger_s)
            return
        trio.lowlevel.spawn_system_task(write_later, self, take())
        on_end(True)

    put_in(Committer, submit=submit)


def _facts_later() -> None:
    offer = FactRecorder._offer

    async def offer_later(recorder: FactRecorder) -> None:
        await trio.to_thread.run_sync(time.sleep, _FACTS_LATER_S, abandon_on_cancel=True)
        recorder._is_submitted = False
        offer(recorder, 0.0)

    def offer_nothing_yet(self: FactRecorder, _linger_s: float) -> None:
        if not self._is_submitted:
            self._is_submitted = True
            trio.lowlevel.spawn_system_task(offer_later, self)

    def pause_nothing(_self: FactRecorder) -> None:
        return

    put_in(FactRecorder, _offer=offer_nothing_yet, _look_at_gate=pause_nothing)


BREAKS: Final[Mapping[str, Callable[[], None]]] = MappingProxyType(
    {
        "fsync": _no_fsync,
        "names": _no_directory_fsync,
        "answer": _answer_first,
        "facts": _facts_later,
    }
)
"""What each breaks: no fsync of anything; no fsync of directories; the answer to a producer goes
out 50 ms before its messages are written; facts are written 3 s later, and sending does not wait
for them."""

NEED_POWER_LOSS: Final = frozenset({"fsync", "names"})
"""What SIGKILL cannot show: the page cache survives it."""
