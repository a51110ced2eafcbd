"""The options of the data source: texts in, checked values out. docs/spark.md has the table."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
from msgspec import Meta

from spark_tools.files.errors import OptionError
from spark_tools.files.times import minute_of
from spark_tools.judge.tasks import FOREVER
from storage.readers.arrow import COLUMNS, Kind, schema_of

PARTITION_BYTES = 128 * 1024 * 1024
NODE_COLUMNS: tuple[str, ...] = ("cluster", "group", "node")
"""Whose row it is; these come before the columns of the logs."""
DAMAGE_COLUMN = "damage"


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


def _one_of(kinds: type[StrEnum]) -> Meta:
    return Meta(description=f"one of {', '.join(kinds)}")


_Texts = Annotated[tuple[str, ...], Meta(description="texts with commas between, or a JSON list")]
_Flag = Annotated[bool, Meta(description="true or false")]


class _Given(msgspec.Struct, frozen=True, kw_only=True):
    """The options as they are given; each type says what it must be."""

    kind: Annotated[Kind, _one_of(Kind)]
    path: str = ""
    paths: _Texts = ()
    roots: _Texts = ()
    manifests: _Texts = ()
    groups: _Texts = ()
    from_: str = msgspec.field(name="from", default="")
    to: str = ""
    columns: _Texts = ()
    payload: _Flag = False
    replicas: Annotated[Replicas, _one_of(Replicas)] = Replicas.AUTHORITY
    damage: Annotated[OnDamage, _one_of(OnDamage)] = OnDamage.FAIL
    unfiled: _Flag = False
    about: Annotated[About, _one_of(About)] = About.MESSAGES
    partition_bytes: Annotated[int, Meta(ge=1, description="a number of bytes above 0")] = (
        PARTITION_BYTES
    )


_TYPES: Final = {one.encode_name: one.type for one in msgspec.structs.fields(_Given)}


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Return what options say; their names may be in any case. Raises OptionError."""
    options = {name.lower(): value for name, value in given.items()}
    unknown = sorted(options.keys() - _TYPES.keys())
    if unknown:
        raise OptionError(f"no option {', '.join(unknown)}; there are {', '.join(sorted(_TYPES))}")
    if "kind" not in options:
        raise OptionError(f"option kind is missing; it is one of {', '.join(Kind)}")
    asked = msgspec.convert({name: _value(name, text) for name, text in options.items()}, _Given)
    roots = (*asked.roots, *filter(None, [asked.path]), *asked.paths)
    if not roots and not asked.manifests:
        raise OptionError(
            "nothing to read: give the data directories of nodes as `roots` (or to load()), or "
            "`manifests` of `delaywheel log manifest` as FILE=DATA_DIR"
        )
    found = ReadOptions(
        kind=asked.kind,
        roots=roots,
        manifests=asked.manifests,
        groups=asked.groups,
        from_minute=_minute("from", asked.from_, 0),
        to_minute=_minute("to", asked.to, FOREVER),
        columns=_columns(asked),
        replicas=asked.replicas,
        damage=asked.damage,
        unfiled=asked.unfiled,
        about=asked.about,
        partition_bytes=asked.partition_bytes,
    )
    if found.from_minute >= found.to_minute:
        raise OptionError("the range is empty: `to` must be after `from`")
    for name, of_kind in (("unfiled", Kind.MESSAGE), ("about", Kind.DISPATCH)):
        if name in options and found.kind is not of_kind:
            raise OptionError(f"option {name} is for kind {of_kind}, not for {found.kind}")
    if found.about is About.DEAD and found.has_range:
        raise OptionError(
            "facts about dead letters have no filed minute: leave out `from` and `to`"
        )
    return found


def _value(name: str, text: str) -> Any:  # noqa: ANN401 (of the option's type)
    """Return the value of an option. Raises OptionError."""
    kind = _TYPES[name]
    try:
        if kind is not _Texts:
            return msgspec.convert(text, kind, strict=False)
        if name == "paths" or text.strip().startswith("["):
            return msgspec.json.decode(text, type=_Texts)
        return tuple(part.strip() for part in text.split(",") if part.strip())
    except msgspec.DecodeError:
        wanted = next((one.description for one in kind.__metadata__), "a text")
        raise OptionError(f"option {name} is {text!r}; it must be {wanted}") from None


def _minute(name: str, text: str, default: int) -> int:
    try:
        return minute_of(text) if text else default
    except ValueError as error:
        raise OptionError(f"option {name}: {error}") from None


def _columns(asked: _Given) -> tuple[str, ...]:
    kind = asked.kind
    names = asked.columns or (*NODE_COLUMNS, *schema_of(kind).names)
    if asked.payload and "payload" not in names:
        names = (*names, "payload")
    known = [*NODE_COLUMNS, *COLUMNS[kind]]
    wrong = [name for name in names if name not in known]
    if wrong:
        raise OptionError(f"no column {', '.join(wrong)} in {kind}; there are {', '.join(known)}")
    if len(set(names)) < len(names):
        raise OptionError(f"a column is named twice: {', '.join(names)}")
    return names if asked.damage is OnDamage.FAIL else (*names, DAMAGE_COLUMN)
