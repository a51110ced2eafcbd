"""Servers with one rule taken out, to show that the harnesses notice."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import trio

from delay_server.accepting.commits import Committer, Work
from storage.batch.facts import FactBlock, join_facts
from storage.disk.disk import DirectoryDisk, DirectoryFile, File
from storage.logs.dispatch_log import FactsJournal
from tests.crash.patching import put_in

_LATER_S: Final = 0.05


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
    ) -> None:
        if not has_items:
            write(self, take, on_end, has_items=False)
            return
        trio.lowlevel.spawn_system_task(write_later, self, take())
        on_end(True)

    put_in(Committer, submit=submit)


def _no_journal() -> None:
    def append(
        self: FactsJournal, blocks: Sequence[FactBlock], *, append_ms: int, epoch: int
    ) -> tuple[FactBlock, int]:
        del append_ms, epoch
        facts = join_facts(blocks)
        self.next_number += len(facts)
        return facts, self.next_number - 1

    put_in(FactsJournal, append=append)


BREAKS: Final[Mapping[str, Callable[[], None]]] = MappingProxyType(
    {
        "fsync": _no_fsync,
        "names": _no_directory_fsync,
        "answer": _answer_first,
        "facts": _no_journal,
    }
)
"""What each breaks: no fsync of anything; no fsync of directories; the answer to a producer goes
out 50 ms before its messages are written; facts are counted but never written to the journal."""

NEED_POWER_LOSS: Final = frozenset({"fsync", "names"})
"""What SIGKILL cannot show: the page cache survives it."""
