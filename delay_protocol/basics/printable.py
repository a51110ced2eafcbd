"""What others sent, as it can be shown to people.

Message ids, subjects and attributes may be any text: a terminal would take what is no character for
a command, and a line break for a line of ours.
"""


def printable(text: str) -> str:
    """Return a text with everything that is not printable escaped as in a Python string.

    That is control characters, line breaks, marks that change the direction of writing, surrogates
    of bytes that were no UTF-8, and spaces other than the common one.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
