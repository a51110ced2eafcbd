"""Where a large segment is cut, so that no task holds more than so many rows of it.

A part is a range of sequences: every row and every fact of a message is in the same part, and parts
leave nothing out, whatever sequences there are. So it does not matter for what is found where the
cuts lie, only for how much a task holds.
"""

from itertools import pairwise

from spark_tools.judge.tasks import WHOLE, Extent, Node, Part
from storage.batch.batches import Damage
from storage.batch.file_header import FileHeader, LogKind
from storage.batch.walk import walk_headers
from storage.disk.spans import key_of_name

ROWS_AT_ONCE = 4_000_000
"""Some 600 MB while they are judged."""


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
    for found in walk_headers(node.disk(), extent.file, extent.length, _header_of(node, extent)):
        if isinstance(found, Damage):
            break
        if held and held + found.count > share:
            cuts.append(found.base_sequence)
            held = 0
        held += found.count
        seen += found.count
        following = found.next_sequence
    guesses = -(-max(extent.rows - seen, 0) // share)
    left = max(extent.last_sequence + 1 - following, 0)
    cuts += [following + left * place // guesses for place in range(guesses)]
    edges = [None, *sorted(set(cuts)), None]
    return [Part(first, after) for first, after in pairwise(edges)]


def _header_of(node: Node, extent: Extent) -> FileHeader:
    key = key_of_name(extent.file.rpartition("/")[2])
    assert key is not None
    return FileHeader(
        kind=LogKind.SCHEDULE_LOG,
        log_uuid=node.log_uuid,
        span=key.span,
        start_minute=key.start,
    )
