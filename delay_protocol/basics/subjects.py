"""Subjects: which are taken anywhere, and which by patterns; which one a retry belongs to."""

import re
from collections.abc import Sequence
from typing import Final

# Guava's CharMatcher.BREAKING_WHITESPACE (no-break spaces are not in it) and the slash; CR and LF
# are breaking whitespace too.
_ILLEGAL: Final = re.compile(
    "[/\t\n\x0b\f\r \u0085\u1680\u2000-\u2006\u2008-\u200a\u2028\u2029\u205f\u3000]"
)

SUBJECT_BYTES_MAX: Final = 255
"""Bytes of a real subject: a name that the tables of all databases can hold and find. QMQ's clients
make none above 100 letters."""

GROUP_BYTES_MAX: Final = 255
"""Bytes of the consumer group in a retry subject."""

SENT_SUBJECT_BYTES_MAX: Final = SUBJECT_BYTES_MAX + GROUP_BYTES_MAX + len("%DEAD_RETRY%%")
"""Bytes of the longest subject that a client may send: that of a retry."""

_RETRY_FORMS: Final = (b"RETRY", b"DEAD_RETRY")


def subject_size_fault(subject: bytes) -> str | None:
    """Say why a subject is too long for everybody, or None if it is not; a sentence for people."""
    real = real_subject(subject)
    if len(real) > SUBJECT_BYTES_MAX:
        return f"a subject of {len(real)} bytes, at most {SUBJECT_BYTES_MAX}"
    if len(subject) - len(real) > SENT_SUBJECT_BYTES_MAX - SUBJECT_BYTES_MAX:
        return f"a retry subject whose consumer group has more than {GROUP_BYTES_MAX} bytes"
    return None


def subject_fault(subject: bytes) -> str | None:
    """Say why a broker would refuse messages of this subject, or None if it would take them.

    A subject that is not UTF-8 is refused as well: a Java broker would replace what it cannot read
    and so file the message under another name. A name that begins with `%` is that of a retry, or
    none: RocketMQ's `%DLQ%group`, or a retry of a wrong form, would be a subject that nobody reads.
    """
    if not subject:
        return "empty"
    try:
        text = subject.decode()
    except UnicodeDecodeError:
        return "not UTF-8"
    if (illegal := _ILLEGAL.search(text)) is not None:
        return f"contains {illegal.group()!a}"
    if text.startswith("%") and real_subject(subject) == subject:
        return "begins with '%' and is no retry, %RETRY%SUBJECT%GROUP"
    return None


def real_subject(subject: bytes) -> bytes:
    """Return S of a retry subject `%RETRY%S%group` or `%DEAD_RETRY%S%group`, else the subject."""
    if not subject.startswith((b"%RETRY", b"%DEAD_RETRY")):
        return subject
    _, form, rest = subject.split(b"%", 2) if subject.count(b"%") > 1 else (b"", b"", b"")
    real, _, group = rest.rpartition(b"%")
    if form in _RETRY_FORMS and group and real and not real.startswith(b"%"):
        # Beyond QMQ: a subject may have the sign inside, and a group has not.
        return real
    # As QMQ does it: empty parts do not count, and a subject of another shape is its own.
    parts = [part for part in subject.split(b"%") if part]
    return parts[1] if len(parts) == 3 else subject


def retry_subject(subject: str, group: str) -> str:
    """Return the subject of what goes to one group alone, of those that a subject goes to."""
    return f"%RETRY%{subject}%{group}"


def retry_group(subject: str) -> str:
    """Return the group of a retry subject; "" of any other."""
    if not subject.startswith("%") or real_subject(subject.encode()).decode() == subject:
        return ""
    return subject.rpartition("%")[2]


class Patterns:
    """The patterns of a receiver: subjects, or beginnings of subjects with a `*` behind.

    Without any it takes all subjects.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = frozenset(patterns)
        beginnings = [one[:-1] for one in patterns if one.endswith("*")]
        self._beginnings = tuple(beginnings) if patterns else ("",)

    def take(self, subject: str) -> bool:
        """Return True if they take a subject; a retry goes with the subject that it retries."""
        real = real_subject(subject.encode()).decode()
        return real in self.patterns or real.startswith(self._beginnings)
