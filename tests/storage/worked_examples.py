"""The hex dumps of docs/, so that tests can hold them against what the code writes."""

import re
from pathlib import Path

_PAGES = Path(__file__).parents[2] / "docs" / "formats"
_BLOCK = re.compile(r"^```hex\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINE = re.compile(r"([0-9a-f]{4})(?:$|  ((?:[0-9a-f]{2} ?)+))")


def worked_examples(page: str) -> list[bytes]:
    """Return the bytes of each ```hex block of a page, named as it lies from docs/formats/.

    A line is an offset, two spaces, bytes, and after more spaces what they are. A line of `....`
    says that zeros follow up to the next offset; a line with an offset only marks the end.
    """
    text = (_PAGES / page).read_text(encoding="utf-8")
    return [_bytes_of(block) for block in _BLOCK.findall(text)]


def _bytes_of(block: str) -> bytes:
    data = bytearray()
    zeros = False
    for line in block.splitlines():
        found = _LINE.match(line)
        if found is None:
            zeros = zeros or line.startswith("....")
            continue
        offset = int(found[1], 16)
        if zeros:
            data += bytes(offset - len(data))
            zeros = False
        assert offset == len(data), f"line {line!r} should begin at {len(data):04x}"
        data += bytes.fromhex(found[2] or "")
    return bytes(data)
