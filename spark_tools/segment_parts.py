"""Where a large segment is cut, so that no task holds more than so many rows of it.

A part is a range of sequences: every row and every fact of a message is in the same part, and parts
leave nothing out, whatever sequences there are. So it does not matter for what is found where the
cuts lie, only for how much a task holds.
"""

from collections.abc import Iterator
from itertools import pairwise

from spark_tools.tasks import WHOLE, Extent, Node, Part
from storage.batches import BatchHeader, Damage, file_seed, walk_batches
from storage.errors import UnsupportedFormatError
from storage.file_header import FILE_HEADER_SIZE, FileHeader, LogKind
from storage.read_ahead import ReadAhead
from storage.spans import key_of_name

ROWS_AT_ONCE = 4_000_000
"""Some 600 MB while they are judged."""
_PIECE = 16 * 1024
"""Bytes read at a time: headers are hopped to, the rows between them stay unread."""


def parts_of(node: Node, extent: Extent, rows_at_once: int) -> list[Part]:
    """Cut a segment into parts of about so many rows, and facts, at the most.

    Only headers of batches are read, and of small segments nothing. A batch is in one part. Behind
    the first thing that is irregular cuts are guessed, and parts may be larger.
    """
    most = max(extent.rows, extent.facts)
    if most <= rows_at_once or not extent.rows:
        return [WHOLE]
    count = -(-most // rows_at_once)
    share = -(-extent.rows // count)
    cuts: list[int] = []
    held = seen = following = 0
    for header in _headers(node, extent):
        if held and held + header.count > share:
            cuts.append(header.base_sequence)
            held = 0
        held += header.count
        seen += header.count
        following = header.next_sequence
    guesses = -(-max(extent.rows - seen, 0) // share)
    left = max(extent.last_sequence + 1 - following, 0)
    cuts += [following + left * place // guesses for place in range(guesses)]
    edges = [None, *sorted(set(cuts)), None]
    return [Part(first, after) for first, after in pairwise(edges)]


def _headers(node: Node, extent: Extent) -> Iterator[BatchHeader]:
    """Yield the headers of a segment's batches as long as their sequences ascend."""
    key = key_of_name(extent.file.rpartition("/")[2])
    assert key is not None
    seed = file_seed(
        FileHeader(
            kind=LogKind.SCHEDULE_LOG,
            log_uuid=node.log_uuid,
            span=key.span,
            start_minute=key.start,
        )
    )
    try:
        file = node.disk().open_read(extent.file)
    except OSError:
        return
    try:
        end = min(extent.length, file.size())
        window = ReadAhead(file, end=end, unreadable=[], piece=_PIECE)
        following = 0
        for found in walk_batches(
            window.view, start=FILE_HEADER_SIZE, end=end, seed=seed, path=extent.file
        ):
            if isinstance(found, Damage) or found.header.base_sequence < following:
                return
            yield found.header
            following = found.header.next_sequence
    except (OSError, UnsupportedFormatError):
        return
    finally:
        file.close()
