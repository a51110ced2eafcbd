"""The options of the data source: texts in, checked values out. docs/spark.md has the table."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import pyarrow as pa

from spark_tools.files.errors import OptionError
from spark_tools.files.times import minute_of
from spark_tools.judge.tasks import FOREVER
from storage.readers.arrow import COLUMNS, Kind, schema_of

PARTITION_BYTES = 128 * 1024 * 1024
NODE_COLUMNS: tuple[str, ...] = ("cluster", "group", "node")
"""Whose row it is; these come before the columns of the logs."""
DAMAGE_COLUMN = "damage"
_T = TypeVar("_T")


class Replicas(StrEnum):
    """Which nodes of a group are read."""

    AUTHORITY = "authority"
    """The one that got furthest."""
    ALL = "all"


class OnDamage(StrEnum):
    """What becomes of a read that meets something that is not whole."""

    FAIL = "fail"
    SKIP = "skip"
    """It goes on; a row of its own tells of each place, in the column `damage`."""
    ONLY = "only"
    """The same, without any other rows."""


class About(StrEnum):
    """What facts are about."""

    MESSAGES = "messages"
    DEAD = "dead"
    """Dead letters: rows of dead segments, which are no accepted messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What is to be read. Minutes are filed minutes, `to_minute` is exclusive."""

    kind: Kind
    roots: tuple[str, ...] = ()
    manifests: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    """None: all that there are."""
    from_minute: int = 0
    to_minute: int = FOREVER
    columns: tuple[str, ...]
    replicas: Replicas = Replicas.AUTHORITY
    damage: OnDamage = OnDamage.FAIL
    unfiled: bool = False
    """Of the message_log only messages that are in no segment yet."""
    about: About = About.MESSAGES
    partition_bytes: int = PARTITION_BYTES

    @property
    def has_range(self) -> bool:
        """Whether not all minutes are wanted."""
        return self.from_minute > 0 or self.to_minute < FOREVER

    @property
    def schema(self) -> pa.Schema:
        """What tables are like; all columns may be null."""
        return pa.schema([pa.field(name, _type_of(self.kind, name)) for name in self.columns])

    def wants(self, start: int, end: int) -> bool:
        """Say whether minutes from `start` up to `end` are of the range."""
        return start < self.to_minute and end > self.from_minute


def _type_of(kind: Kind, name: str) -> pa.DataType:
    if name in NODE_COLUMNS or name == DAMAGE_COLUMN:
        return pa.string()
    return COLUMNS[kind][name]


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Return what options say; their names may be in any case. Raises OptionError."""
    options = {name.lower(): value for name, value in given.items()}
    unknown = sorted(options.keys() - _NAMES)
    if unknown:
        raise OptionError(f"no option {', '.join(unknown)}; there are {', '.join(sorted(_NAMES))}")
    kind = _kind(options)
    roots = _many(options, "roots")
    if "path" in options:
        roots = (*roots, options["path"])
    roots += _paths(options.get("paths", "[]"))
    manifests = _many(options, "manifests")
    if not roots and not manifests:
        raise OptionError(
            "nothing to read: give the data directories of nodes as `roots` (or to load()), or "
            "`manifests` of `delaywheel log manifest` as FILE=DATA_DIR"
        )
    damage = _choice(options, "damage", OnDamage.FAIL)
    found = ReadOptions(
        kind=kind,
        roots=roots,
        manifests=manifests,
        groups=_many(options, "groups"),
        from_minute=_minute(options, "from", 0),
        to_minute=_minute(options, "to", FOREVER),
        columns=_columns(options, kind, damage),
        replicas=_choice(options, "replicas", Replicas.AUTHORITY),
        damage=damage,
        unfiled=_flag(options, "unfiled"),
        about=_choice(options, "about", About.MESSAGES),
        partition_bytes=_size(options, "partition_bytes", PARTITION_BYTES),
    )
    if found.from_minute >= found.to_minute:
        raise OptionError("the range is empty: `to` must be after `from`")
    for name, of_kind in (("unfiled", Kind.MESSAGE), ("about", Kind.DISPATCH)):
        if name in options and kind is not of_kind:
            raise OptionError(f"option {name} is for kind {of_kind}, not for {kind}")
    if found.about is About.DEAD and found.has_range:
        raise OptionError(
            "facts about dead letters have no filed minute: leave out `from` and `to`"
        )
    return found


_NAMES = frozenset(
    {
        "path",
        "paths",
        "roots",
        "manifests",
        "kind",
        "groups",
        "from",
        "to",
        "columns",
        "payload",
        "replicas",
        "damage",
        "unfiled",
        "about",
        "partition_bytes",
    }
)


def _kind(options: Mapping[str, str]) -> Kind:
    kinds = ", ".join(Kind)
    if "kind" not in options:
        raise OptionError(f"option kind is missing; it is one of {kinds}")
    return _converted(options, "kind", Kind, f"one of {kinds}")


def _converted(
    options: Mapping[str, str], name: str, convert: Callable[[str], _T], wanted: str
) -> _T:
    try:
        return convert(options[name])
    except ValueError:
        raise OptionError(f"option {name} is {options[name]!r}; it must be {wanted}") from None


_Choice = TypeVar("_Choice", Replicas, OnDamage, About)


def _choice(options: Mapping[str, str], name: str, default: _Choice) -> _Choice:
    if name not in options:
        return default
    return _converted(options, name, type(default), f"one of {', '.join(type(default))}")


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false").lower()
    if text not in {"true", "false"}:
        raise OptionError(f"option {name} is {text!r}; it must be true or false")
    return text == "true"


def _size(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise OptionError(f"option {name} is {text!r}; it must be a number of bytes above 0")
    return int(text)


def _minute(options: Mapping[str, str], name: str, default: int) -> int:
    if name not in options:
        return default
    try:
        return minute_of(options[name])
    except ValueError as error:
        raise OptionError(f"option {name}: {error}") from None


def _many(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return values that are separated by commas, or a JSON list."""
    text = options.get(name, "").strip()
    if text.startswith("["):
        return _listed(name, text)
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _paths(text: str) -> tuple[str, ...]:
    return _listed("paths", text)


def _listed(name: str, text: str) -> tuple[str, ...]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise OptionError(f"option {name} is {text!r}, which is no JSON list of texts")
    return tuple(found)


def _columns(options: Mapping[str, str], kind: Kind, damage: OnDamage) -> tuple[str, ...]:
    names: Sequence[str] = _many(options, "columns")
    if not names:
        names = [*NODE_COLUMNS, *schema_of(kind).names]
    if _flag(options, "payload") and "payload" not in names:
        names = [*names, "payload"]
    known = [*NODE_COLUMNS, *COLUMNS[kind]]
    wrong = [name for name in names if name not in known]
    if wrong:
        raise OptionError(f"no column {', '.join(wrong)} in {kind}; there are {', '.join(known)}")
    if len(set(names)) < len(names):
        raise OptionError(f"a column is named twice: {', '.join(names)}")
    return tuple(names) if damage is OnDamage.FAIL else (*names, DAMAGE_COLUMN)
