"""Reading a file from front to back in large pieces, and past sectors that cannot be read."""

from storage.disk.disk import ReadableFile, next_data

PIECE = 4 * 1024 * 1024
"""Bytes read at a time unless something else is said: as many as the largest batch has."""
READ_BLOCK_SIZE = 4096
"""How much is given up when the disk cannot read a byte."""


class ReadAhead:
    """A window on a file that moves forward with its reader.

    Views stay valid after the window has moved on. Bytes the disk cannot read are zeros in a view
    (no CRC takes them for anything), and their blocks' path and position go into `unreadable`.
    """

    def __init__(
        self,
        file: ReadableFile,
        *,
        end: int,
        unreadable: list[tuple[str, int]],
        piece: int = PIECE,
    ) -> None:
        """Read up to `end`, at least `piece` bytes at a time."""
        self._file = file
        self._end = end
        self._unreadable = unreadable
        self._piece = piece
        self._start = 0
        self._window = memoryview(b"")

    def view(self, position: int, size: int) -> memoryview:
        """Return `size` bytes from `position`; fewer only at the end."""
        size = max(0, min(size, self._end - position))
        offset = position - self._start
        if offset < 0 or offset + size > len(self._window):
            wanted = min(max(size, self._piece), self._end - position)
            self._window = memoryview(self._read(position, wanted))
            self._start, offset = position, 0
        return self._window[offset : offset + size]

    def next_data(self, position: int) -> int:
        """Return where bytes may lie that are not zeros, from `position` on, or the end."""
        found = next_data(self._file, position)
        return self._end if found is None else min(found, self._end)

    def _read(self, position: int, size: int) -> bytes:
        try:
            return self._file.read_at(position, size)
        except OSError:
            blocks = range(position, position + size, READ_BLOCK_SIZE)
            return b"".join(
                self._read_block(block, min(READ_BLOCK_SIZE, position + size - block))
                for block in blocks
            )

    def _read_block(self, position: int, size: int) -> bytes:
        try:
            return self._file.read_at(position, size)
        except OSError:
            self._unreadable.append((self._file.path, position))
            return bytes(size)
