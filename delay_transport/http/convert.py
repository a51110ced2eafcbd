"""Checked structs from the parts of an HTTP request; what is wrong names field and allowed values.

An empty body counts as one without fields.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import cache
from typing import Any, TypeVar

import anyio
import msgspec
from starlette.requests import Request

from delay_transport.http.operations import alternatives_of
from delay_transport.http.problems import BadValueError, RequestError

B = TypeVar("B")


def single_values(request: Request) -> dict[str, str]:
    """Return the parameters; raise BadValueError for one that is given twice."""
    values: dict[str, str] = {}
    if not request.scope["query_string"]:
        return values
    for name, value in request.query_params.multi_items():
        if name in values:
            raise BadValueError(field=name, value=value, allowed="once only")
        values[name] = value
    return values


async def read_body(
    request: Request,
    kind: Any,  # noqa: ANN401 (any type that msgspec knows)
    *,
    bytes_max: int,
    seconds: float,
    hold: Callable[[int], None],
) -> bytes:
    """Return the body of a request; raise RequestError.

    It is JSON and says so, unless `kind`, its type, is bytes.

    hold: counts the bytes of each part before it is kept; raises RequestError if there is no room
    """
    if kind is not bytes:
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != "application/json":
            raise RequestError(415, "media-type", "Content-Type must be application/json")
    too_long = RequestError(413, "too-large", f"a body has at most {bytes_max} bytes here")
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or len(length) > 18 or int(length) > bytes_max:
        raise too_long
    data = bytearray()
    with anyio.move_on_after(seconds) as scope:
        async with aclosing(request.stream()) as parts:
            async for part in parts:
                if len(data) + len(part) > bytes_max:
                    raise too_long
                hold(len(part))
                data += part
    if scope.cancelled_caught:
        raise RequestError(408, "slow", f"the body took longer than {seconds:g} s")
    return bytes(data)


def decode_body(data: bytes, kind: Any) -> Any:  # noqa: ANN401 (any type that msgspec knows)
    """Return a body, checked, and decoded if it is JSON; raise BadValueError."""
    if kind is bytes:
        return data
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _decoder_of(kind).decode(data or b"{}")
    # Once more, to name what is wrong.
    try:
        raw = msgspec.json.decode(data or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadValueError(
            field="body", value=data[:100].decode(errors="replace"), allowed=f"JSON: {error}"
        ) from error
    return convert_request(raw, kind, strict=True)


@cache
def _decoder_of(kind: Any) -> msgspec.json.Decoder[Any]:  # noqa: ANN401 (any type that msgspec knows)
    return msgspec.json.Decoder(kind)


_AT = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<number>\d+|\.\.\.)\]")


def convert_request(raw: object, kind: type[B], *, strict: bool) -> B:
    """Return a checked struct; raise BadValueError with field, value and what is allowed."""
    try:
        return msgspec.convert(raw, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise _blame(raw, kind, str(error)) from error


def _blame(raw: object, kinds: Any, reason: str) -> BadValueError:  # noqa: ANN401 (any type that msgspec knows)
    # A type is a struct, or begins with the one that the others have as well.
    kind, field = alternatives_of(kinds)[0], ""
    if found := _AT.search(reason):
        field = found["path"].removeprefix(".")
        reason = reason[: found.start()]
        for step in _STEP.finditer(found["path"]):
            raw = _inner(raw, step)
    if missing := _MISSING.match(reason):
        return BadValueError(
            field=".".join(filter(None, (field, missing["name"]))),
            value=None,
            allowed="it has to be given",
        )
    if unknown := _UNKNOWN.match(reason):
        name = unknown["name"]
        value = raw.get(name) if isinstance(raw, Mapping) else raw
        names = ", ".join(kind.__struct_encode_fields__) or "none"
        return BadValueError(field=name, value=value, allowed=f"no such field, there are: {names}")
    allowed = _allowed_values(kind).get(field, reason)
    return BadValueError(field=field or "body", value=raw, allowed=allowed)


def _inner(raw: object, step: re.Match[str]) -> object:
    """Return the part of a value that a step of a path leads to; the value if there is none."""
    if step["name"] is not None and isinstance(raw, Mapping):
        return raw.get(step["name"], raw)
    if step["number"] not in {None, "..."} and isinstance(raw, Sequence):
        number = int(step["number"])
        return raw[number] if number < len(raw) else raw
    return raw


def _allowed_values(kind: type[Any]) -> dict[str, str]:
    """Return what is allowed in each field of a struct that has a fixed set of values."""
    return dict(_literals_of(kind))


def _literals_of(kind: type[Any]) -> Iterator[tuple[str, str]]:
    for field in msgspec.structs.fields(kind):
        shape = msgspec.inspect.type_info(field.type)
        if isinstance(shape, msgspec.inspect.Metadata):
            shape = shape.type
        shapes = shape.types if isinstance(shape, msgspec.inspect.UnionType) else (shape,)
        values = [str(value) for one in shapes for value in _values_of(one) if value != ""]
        if values:
            yield field.encode_name, f"one of {', '.join(values)}"


def _values_of(shape: msgspec.inspect.Type) -> tuple[object, ...]:
    """Return the values of a type that has a fixed set of them."""
    if isinstance(shape, msgspec.inspect.LiteralType):
        return tuple(shape.values)
    if isinstance(shape, msgspec.inspect.EnumType):
        return tuple(member.value for member in shape.cls)
    return ()
