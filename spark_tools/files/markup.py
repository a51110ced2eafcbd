"""HTML that cannot be broken out of: whatever is not `Html` already is escaped.

Names come from producers: they may be any text, of any length, with control characters and marks
that turn the direction of writing.
"""

from html import escape
from typing import Final

from delay_protocol.basics.printable import printable

TEXT_LENGTH_MAX: Final = 120
"""Letters of a name, or of a problem, that a page shows."""


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Part = str | int | None
"""What an element is made of; None is left out."""


def shown(text: str, most: int = TEXT_LENGTH_MAX) -> str:
    """Return a text as people see it: printable, and cut in its middle if it is too long."""
    if len(text) > most:
        # Escaping makes a text longer, never shorter.
        text = f"{text[: most // 2]}…{text[-(most // 2) :]}"
    return printable(text)


def joined(*parts: Part) -> Html:
    """Return parts one after the other."""
    return Html(
        "".join(
            part if isinstance(part, Html) else escape(str(part))
            for part in parts
            if part is not None
        )
    )


def element(name: str, /, *parts: Part, **attributes: Part) -> Html:
    """Return an element. `class_` is the attribute class, an underscore in a name a hyphen."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{said}>")
    return Html(f"<{name}{said}>{joined(*parts)}</{name}>")


_VOID = frozenset({"meta", "br"})
