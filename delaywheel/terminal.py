"""Tables for people: as wide as a terminal is, and wide enough for a file."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_WIDTH_ELSEWHERE = 240
"""Columns where standard output is no terminal: whoever reads a file can scroll."""


def wide_console() -> "Console":
    """Return a console on standard output that cuts nothing off when it is piped."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _WIDTH_ELSEWHERE)


def cell(text: str) -> "Text":
    """Return a table's cell that shows a text as it is: no markup, no control characters."""
    from rich.text import Text

    from delay_protocol import printable

    return Text(printable(text))
