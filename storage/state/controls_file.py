"""The file `controls`: what an operator has paused and limited, as a document (document_file.py).

What the document says is none of this package's business.
"""

from typing import Final
from uuid import UUID

from storage.batch.file_header import LogKind
from storage.disk.disk import Disk
from storage.state.document_file import DocumentFile

CONTROLS_PATH: Final = "controls"
CONTROLS_FILE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Four times the largest document that a meta server tells. A larger file is refused, unread."""


def controls_file(disk: Disk, log_uuid: UUID) -> DocumentFile:
    """Return the file of controls of the data directory with this log."""
    return DocumentFile(
        disk,
        CONTROLS_PATH,
        kind=LogKind.CONTROLS,
        owner=log_uuid,
        bytes_max=CONTROLS_FILE_BYTES_MAX,
    )
