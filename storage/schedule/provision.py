"""How much disk is still to be written for what was accepted: what admission has to leave free.

A message is accepted when it is in the message_log. After that it costs space again and again: it
is filed by time, perhaps split into a finer segment, its fact goes to the message_log and beside
its segment, checkpoint and seals name that segment. None of this may fail for want of space that
was given to messages accepted later. So what is *owed* is counted here, as an upper estimate, and
nothing more is accepted unless it stays free beside the floor.

Bookkeeping (facts, seals, checkpoint, identity) comes first: rows are not even filed or split where
they would take the space that bookkeeping still needs, or the `reserve_bytes` beyond it.
"""

from collections.abc import Callable
from dataclasses import dataclass

_ROW_BYTES = 64
"""What a row takes in a segment beside its item: its columns, its share of headers and names."""

_LOG_ROW_BYTES = 32
"""What an item takes in the message_log beside its bytes: its columns, its share of names."""

_HEADER_BYTES = 256
"""Header and padding of a batch, its CRCs included."""

_LOG_FACT_BYTES = 24
"""A fact in the message_log, in its batch."""

_LOG_FACTS_BYTES = 192
"""A batch of facts in the message_log, beside them."""

FACT_COMMIT_BYTES = _LOG_FACTS_BYTES + _LOG_FACT_BYTES
"""A commit of one fact alone."""

_FILED_FACT_BYTES = 48
"""A fact beside its segment, with its share of headers."""

_SEAL_BYTES = 160
"""A seal, or the mark that deletes its segment."""

_SEGMENT_ENTRY_BYTES = 128
"""A segment in the checkpoint."""

_RETIRED_ENTRY_BYTES = 96
"""A retired file in the checkpoint."""

_BASE_BLOCKS = 16
"""Identity, durable ends, checkpoint and the first block of each log's next file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provision:
    """What things take on this disk; all results are bytes."""

    reserve_bytes: int = 0
    """Rows are not written where less than this would stay free beside what bookkeeping needs."""

    block_bytes: int = 4096
    """Every file takes a multiple of it."""

    fact_commits_max: int = 24 * 60 * 60 * 100
    """Commits of facts alone that the message_log holds at a time, by the age at which it leaves
    and by how often there is one."""

    segments_max: int = 1000
    """Segments over which rows that are to be filed may spread."""

    @property
    def _new_segment(self) -> int:
        """What a segment takes by being there: two files, its place in checkpoint and seals."""
        return 2 * (self.block_bytes + _HEADER_BYTES) + self._segment_entries

    @property
    def _segment_entries(self) -> int:
        return _SEGMENT_ENTRY_BYTES + 2 * _SEAL_BYTES

    def appending(self, rows: int, blob_bytes: int) -> int:
        """Return what a commit of rows with so many bytes of items takes in the message_log."""
        return blob_bytes + rows * _LOG_ROW_BYTES + self.block_bytes + _HEADER_BYTES

    def filing(self, rows: int, blob_bytes: int) -> int:
        """Return what rows take that are to be filed yet, wherever they belong."""
        spread = min(rows, self.segments_max)
        return blob_bytes + rows * _ROW_BYTES + spread * self._new_segment

    def splitting(self, rows: int, raw_bytes: int, minutes: int) -> int:
        """Return what it takes to write a segment again as segments of a minute.

        raw_bytes: of its items, uncompressed; minutes: how many it covers.
        """
        return raw_bytes + rows * _ROW_BYTES + min(rows, minutes) * self._new_segment

    def crossing_off(self, rows: int) -> int:
        """Return what the facts of so many rows take at most."""
        return self._facts_in_log(rows) + rows * _FILED_FACT_BYTES

    def _facts_in_log(self, rows: int) -> int:
        """Return what the facts of so many rows take in the message_log at most."""
        return rows * _LOG_FACT_BYTES + min(rows, self.fact_commits_max) * _LOG_FACTS_BYTES

    def bookkeeping(
        self,
        *,
        pending: int,
        unfiled_facts: int,
        segments: int,
        sealed: int,
        retired: int,
        seals_bytes: int,
    ) -> int:
        """Return what is still to be written to cross off, seal and delete everything there is.

        pending: messages without a fact; unfiled_facts: facts that are in the message_log only;
        segments: those not sealed; sealed: those whose files are kept; retired: files listed for
        deletion; seals_bytes: of the newest file of the seals log, which may be written once more.
        """
        facts = (pending + unfiled_facts) * _FILED_FACT_BYTES
        entries = segments * (self.block_bytes + _HEADER_BYTES + self._segment_entries)
        lists = sealed * _SEAL_BYTES + retired * _RETIRED_ENTRY_BYTES
        logged = self._facts_in_log(pending)
        return _BASE_BLOCKS * self.block_bytes + logged + facts + entries + lists + seals_bytes


@dataclass(slots=True)
class Owed:
    """What the schedule_log has still to write, kept up to date by it.

    Plain numbers, so that others may read them at any time.
    """

    provision: Provision
    keep_free: Callable[[], int] | None = None
    """If given, rows are not written where less free disk than this would be left. Nothing is kept
    free while a data directory is opened: what is written then had its place before."""
    pile_rows: int = 0
    """Rows that wait in memory to be written together."""
    pile_bytes: int = 0
    """What they weigh."""
    near_rows: int = 0
    """Rows of loaded minutes, and of dead segments, that found no space."""
    near_bytes: int = 0
    """What they weigh."""
    split_bytes: int = 0
    """Disk that the split of one segment takes at most, of those there are."""
    unfiled_facts: int = 0
    """Facts noted and not filed yet."""

    @property
    def unwritten_bytes(self) -> int:
        """Disk that the rows in memory take when they are written."""
        rows = self.pile_rows + self.near_rows
        blob_bytes = self.pile_bytes + self.near_bytes
        return self.provision.filing(rows, blob_bytes)
