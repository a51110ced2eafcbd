"""Rules of an operator: pauses of subjects; pauses, rates and weights of groups.

One document, `Controls`, holds all of it; whoever has the say (a delay server, or a meta server for
all of its own) stores and hands on the document as a whole. Its `version` counts changes, so that
of two documents the newer one is known.

Which rule of `subjects` counts for a subject, or for a retry of it:

1. the rule of exactly its name;
2. else that of the longest prefix of its name: `order.*` stands for all subjects that begin with
   `order.`, those that nobody has sent yet included; `*` for all;
3. else none.

It is one rule, and nothing is added up: a rule for `order.paid` that does not pause lets that
subject leave while `order.*` is paused. It is there only for as long as such a pause is: then the
subject is closed with all others, whatever is said of them next. A `*` elsewhere than at the end
stands for itself.
"""

import zlib
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, TypeVar
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

from delay_protocol.basics.errors import LocalProtocolError
from delay_protocol.basics.subjects import real_subject

SUBJECT_RULES_MAX: Final = 1000
"""Rules for subjects in one document."""
GROUP_RULES_MAX: Final = 1000
"""Broker groups in one document."""
PATTERN_BYTES_MAX: Final = 2048
"""Bytes of a subject or prefix, the `*` included."""
GROUP_BYTES_MAX: Final = 255
"""Bytes of a broker group's name."""
RATE_MIN: Final = 0.01
"""Messages a second: slower than one in 100 s is a pause by another name."""
RATE_MAX: Final = 10_000_000.0
WEIGHT_MIN: Final = 0.001
WEIGHT_MAX: Final = 1000.0
CONTROLS_BYTES_MAX: Final = 16 << 20
"""Bytes of an encoded document; the largest that the limits above allow has less."""

DOCUMENT_BYTES_MAX: Final = 95 * 1024
"""Bytes of the document that a meta server may keep, as it is sent to a node: it has to fit into
one answer. A thousand rules of subjects with 80 bytes fit."""

ANY_END: Final = "*"
"""What a prefix ends with."""

T = TypeVar("T")

Rate = Annotated[float, Meta(ge=RATE_MIN, le=RATE_MAX)]
Weight = Annotated[float, Meta(ge=WEIGHT_MIN, le=WEIGHT_MAX)]


class ControlsError(LocalProtocolError, ValueError):
    """A rule or a document that cannot be; says which part of it, and what is allowed."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}" if where else reason)
        self.where = where
        self.reason = reason


class SubjectControl(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for the subjects of a rule."""

    paused: Annotated[bool, Meta(description="Nothing of them is sent; they wait.")] = False


class GroupControl(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for a broker group."""

    paused: Annotated[bool, Meta(description="Nothing is sent to it; others take over.")] = False
    rate_per_s: Annotated[
        Rate | None, Meta(description="Messages a second at the most; null: as many as it takes.")
    ] = None
    weight: Annotated[Weight | None, Meta(description="Its share; null: as in settings.")] = None

    @property
    def is_open(self) -> bool:
        """Whether it leaves everything as it is without it."""
        return not self.paused and self.rate_per_s is None and self.weight is None


class Controls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All rules there are. Never changed: a change makes another one."""

    version: Annotated[int, Meta(ge=0, le=2**62)] = 0
    """Counted up with each change; 0 where there never was one."""
    groups: dict[str, GroupControl] = {}
    """By name of the broker group; of some there may be none at present."""
    subjects: dict[str, SubjectControl] = {}
    """By subject, or prefix with a `*` at its end."""
    store: UUID | UnsetType = UNSET
    """Which meta server's store has made it; left out where the node has made it itself. Versions
    of different stores cannot be compared."""

    def with_subject(self, pattern: str, rule: SubjectControl | None) -> "Controls":
        """Return the next version, with this rule or (None) without it; raise ControlsError.

        Rules that do not pause are left out, this one or others, unless they except from a pause.
        """
        check_pattern(pattern)
        subjects = {name: found for name, found in self.subjects.items() if name != pattern}
        if rule is not None:
            subjects[pattern] = rule
        pauses = [name for name, found in subjects.items() if found.paused]
        subjects = {
            name: found
            for name, found in subjects.items()
            if found.paused or _is_exception(name, pauses)
        }
        if len(subjects) > SUBJECT_RULES_MAX:
            raise ControlsError("subjects", f"more than {SUBJECT_RULES_MAX} rules; remove some")
        return Controls(version=self.version + 1, groups=self.groups, subjects=subjects)

    def with_group(self, name: str, rule: GroupControl | None) -> "Controls":
        """Return the next version, with this rule or (None) without it; raise ControlsError."""
        check_group_name(name)
        groups = {other: found for other, found in self.groups.items() if other != name}
        if rule is not None and not rule.is_open:
            groups[name] = rule
        if len(groups) > GROUP_RULES_MAX:
            raise ControlsError("groups", f"more than {GROUP_RULES_MAX} of them; remove some")
        return Controls(version=self.version + 1, groups=groups, subjects=self.subjects)


class ControlsId(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Names one document of a meta server."""

    store: UUID
    """The store of the meta server."""
    version: Annotated[int, Meta(ge=0, le=2**62)]
    crc: Annotated[int, Meta(ge=0, lt=2**32)]
    """CRC-32 of the document: a store that was restored reaches the same version with other rules.
    """


def id_of(controls: Controls) -> ControlsId | None:
    """Return which document of a meta server this is; None where none has made it."""
    if not isinstance(controls.store, UUID):
        return None
    crc = zlib.crc32(msgspec.json.encode(controls, order="deterministic"))
    return ControlsId(store=controls.store, version=controls.version, crc=crc)


def document_of(controls: Controls, store: UUID) -> bytes:
    """Return the document as a meta server with this store sends it; raise ControlsError."""
    document = encode_controls(msgspec.structs.replace(controls, store=store))
    if len(document) > DOCUMENT_BYTES_MAX:
        raise ControlsError(
            "", f"all rules together would have {len(document)} bytes, at most {DOCUMENT_BYTES_MAX}"
        )
    return document


class SubjectRules:
    """Finds the rule of a subject: exact before the longest prefix."""

    def __init__(self, subjects: Mapping[str, SubjectControl]) -> None:
        self._rules = dict(subjects)
        lengths = {len(name) - 1 for name in subjects if name.endswith(ANY_END)}
        self._lengths = sorted(lengths, reverse=True)

    def __len__(self) -> int:
        return len(self._rules)

    def pattern_of(self, subject: str) -> str | None:
        """Return which rule counts for a subject, or a retry of it; None if none does."""
        subject = real_subject(subject.encode(errors="surrogatepass")).decode(errors="replace")
        # A subject that ends with the sign itself is named by no rule: that would be a prefix.
        if subject in self._rules and not subject.endswith(ANY_END):
            return subject
        for length in self._lengths:
            if length <= len(subject) and (prefix := subject[:length] + ANY_END) in self._rules:
                return prefix
        return None

    def rule(self, pattern: str) -> SubjectControl:
        """Return a rule by its pattern."""
        return self._rules[pattern]

    def pattern_over(self, pattern: str) -> str | None:
        """Return which rule counts for what only this pattern stands for; None if none does."""
        if not pattern.endswith(ANY_END):
            return self.pattern_of(pattern)
        stem = pattern[: -len(ANY_END)]
        for length in self._lengths:
            if length <= len(stem) and (prefix := stem[:length] + ANY_END) in self._rules:
                return prefix
        return None


def check_pattern(pattern: str) -> None:
    """Raise ControlsError for what is neither a subject nor a prefix."""
    size = len(pattern.encode(errors="surrogatepass"))
    if not 0 < size <= PATTERN_BYTES_MAX:
        raise ControlsError(
            "subjects", f"a subject or prefix has 1 to {PATTERN_BYTES_MAX} bytes, this one {size}"
        )
    if not _is_text(pattern):
        raise ControlsError("subjects", f"{pattern!a} is no text that a subject could be")


def check_group_name(name: str) -> None:
    """Raise ControlsError for what no broker group can be called."""
    size = len(name.encode(errors="surrogatepass"))
    if not 0 < size <= GROUP_BYTES_MAX:
        raise ControlsError(
            "groups", f"a broker group's name has 1 to {GROUP_BYTES_MAX} bytes, this one {size}"
        )
    if not _is_text(name):
        raise ControlsError("groups", f"{name!a} is no name of a broker group")


def check_controls(controls: Controls) -> None:
    """Raise ControlsError for a document that no change could have made."""
    if len(controls.subjects) > SUBJECT_RULES_MAX:
        raise ControlsError("subjects", f"more than {SUBJECT_RULES_MAX} rules")
    if len(controls.groups) > GROUP_RULES_MAX:
        raise ControlsError("groups", f"more than {GROUP_RULES_MAX} of them")
    for pattern in controls.subjects:
        check_pattern(pattern)
    for name in controls.groups:
        check_group_name(name)


def encode_controls(controls: Controls) -> bytes:
    """Return the document as JSON."""
    return msgspec.json.encode(controls)


def decode_controls(data: bytes | memoryview) -> Controls:
    """Return the document; raise ControlsError for anything else."""
    controls = decode_rule(data, Controls)
    check_controls(controls)
    return controls


def decode_rule(data: bytes | memoryview, kind: type[T]) -> T:
    """Return a document or rule of a kind from its JSON; raise ControlsError."""
    if len(data) > CONTROLS_BYTES_MAX:
        raise ControlsError("", f"{len(data)} bytes, at most {CONTROLS_BYTES_MAX}")
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        reason, _, where = str(error).partition(" - at `$.")
        raise ControlsError(where.rstrip("`"), reason) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ControlsError("", f"is no JSON: {error}") from error


def _is_exception(pattern: str, pauses: Iterable[str]) -> bool:
    """Say whether a prefix that is paused stands for the pattern's subjects as well."""
    stem = pattern.removesuffix(ANY_END)
    return any(name.endswith(ANY_END) and stem.startswith(name[:-1]) for name in pauses)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
