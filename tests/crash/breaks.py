"""Servers with one rule taken out, to show that the harnesses notice."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import trio

from delay_server.accepting.commits import Committer
from delay_server.accepting.ingest import Take
from delay_server.accepting.intake import Intake
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
    write = Committer.commit

    async def write_later(committing: Committer, intake: Intake) -> None:
        await trio.sleep(_LATER_S)
        await write(committing, lambda: intake)

    async def commit(self: Committer, take: Take) -> bool:
        trio.lowlevel.spawn_system_task(write_later, self, take())
        return True

    put_in(Committer, commit=commit)


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
