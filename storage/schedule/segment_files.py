"""Files of segments that were written: which a checkpoint has to sync, and which may be closed."""

from collections.abc import Callable, Iterable, Sequence

from storage.batch.chained_file import ChainedFile
from storage.disk.disk import Disk, File
from storage.schedule.segment import Segment


class SegmentFiles:
    """Keeps the files that are not durable yet open, and the others few."""

    def __init__(
        self, disk: Disk, *, open_files_max: int, segments: Callable[[], Iterable[Segment]]
    ) -> None:
        """`segments` tells which there are."""
        self._disk = disk
        self._open_files_max = open_files_max
        self._segments = segments
        self._dirty: dict[str, File] = {}
        self._syncing: set[str] = set()
        """Files that a checkpoint under way makes durable; they stay open until it ends."""
        self._replaced: list[Segment] = []
        """Segments that were split; their files stay open until no checkpoint needs them."""
        self.names_changed = False
        """A file was made since the last checkpoint, so the directories need an fsync."""

    def written(self, file: ChainedFile) -> None:
        """Note that something was appended to a file."""
        self._dirty[file.path] = file.file()

    def make_room(self) -> None:
        """Keep the number of open files within its bound; a file that is synced may be closed."""
        if len(self._dirty) >= self._open_files_max:
            self._disk.sync_files(list(self._dirty.values()))
            self._dirty = {}
            self._close_clean()

    def replace(self, segment: Segment, *, is_retired: bool) -> None:
        """Let go of a segment that was split; what is retired need not be made durable."""
        if is_retired:
            self._dirty.pop(segment.file.path, None)
            self._dirty.pop(segment.facts_file.path, None)
        # A checkpoint that names it may be on its way and still has to sync its files.
        self._replaced.append(segment)

    # -- for the checkpoint ------------------------------------------------------------------

    def take_dirty(self) -> list[File]:
        """Return the files written since the last call."""
        dirty = list(self._dirty.values())
        self._syncing = set(self._dirty)
        self._dirty = {}
        return dirty

    def put_back_dirty(self, files: Sequence[File]) -> None:
        """Count files as not synced again."""
        self._syncing = set()
        self._dirty = {file.path: file for file in files} | self._dirty

    def close_clean(self) -> None:
        """Give back descriptors that nothing waits for: of what was split, and where many are open.

        To be called when no checkpoint is being written.
        """
        self._syncing = set()
        self._close_clean()
        replaced, self._replaced = self._replaced, []
        for segment in replaced:
            if self._dirty.keys().isdisjoint((segment.file.path, segment.facts_file.path)):
                segment.close()
            else:
                self._replaced.append(segment)

    def _close_clean(self) -> None:
        held = [
            file
            for segment in self._segments()
            for file in (segment.file, segment.facts_file)
            if file.is_open and file.path not in self._dirty and file.path not in self._syncing
        ]
        if len(held) + len(self._dirty) >= self._open_files_max:
            for file in held:
                file.close()

    def close(self) -> None:
        """Give all descriptors back."""
        for segment in [*self._segments(), *self._replaced]:
            segment.close()
