"""The document says what is done: every route, every field, and answers as they really are."""

import re
from typing import Any

import msgspec
import pytest
import trio
from starlette.routing import Route

from delay_protocol.meta.requests import ClientType
from meta_server.admin import admin_types
from meta_server.admin.api import OPERATIONS, PREFIX
from meta_server.admin.openapi import document, document_json
from tests.kit.operator import Operator, starting_app
from tests.meta_server.meta_rig import World, node

OPEN = {f"{PREFIX}/openapi.json"}
"""What the document does not tell of: itself."""


def references(value: object) -> set[str]:
    """Return every schema that is referred to."""
    match value:
        case {"$ref": str(reference)}:
            return {reference}
        case dict():
            return set().union(*map(references, value.values()))
        case list():
            return set().union(*map(references, value))
        case _:
            return set()


async def test_the_document_has_every_route_and_no_other() -> None:
    routes: set[tuple[str, str]] = set()
    for route in starting_app().routes:
        assert isinstance(route, Route)
        if route.path.startswith(PREFIX) and route.path not in OPEN:
            routes |= {(method, route.path) for method in set(route.methods or ()) - {"HEAD"}}
    described = {
        (method.upper(), path)
        for path, methods in document()["paths"].items()
        for method in methods
    }
    assert described == routes
    assert len(routes) == len(OPERATIONS) > 30
    await trio.lowlevel.checkpoint()


def test_parts_of_the_path_are_the_fields_of_their_struct() -> None:
    for operation in OPERATIONS:
        parts = set(re.findall(r"\{(\w+)\}", operation.path))
        assert parts == set(operation.path_type.__struct_fields__), operation.name
        described = document()["paths"][PREFIX + operation.path][operation.method.lower()]
        named = {one["name"] for one in described["parameters"] if one["in"] == "path"}
        assert named == parts
        assert all(one["required"] for one in described["parameters"] if one["in"] == "path")


def test_names_of_operations_are_told_apart_and_every_one_says_what_it_does() -> None:
    names = [operation.name for operation in OPERATIONS]
    assert len(set(names)) == len(names)
    assert all(operation.summary.endswith(".") for operation in OPERATIONS)
    assert all(operation.is_change is (operation.method != "GET") for operation in OPERATIONS)


def test_every_field_and_parameter_is_explained() -> None:
    for name, schema in document()["components"]["schemas"].items():
        assert schema["description"], name
        for field, described in schema["properties"].items():
            assert described["description"], f"{name}.{field}"
    for methods in document()["paths"].values():
        for described in methods.values():
            assert all(one["description"] for one in described["parameters"])


def test_everything_that_is_referred_to_is_there() -> None:
    found = document()
    schemas = {f"#/components/schemas/{name}" for name in found["components"]["schemas"]}
    assert references(found) == schemas


def test_requests_refuse_what_the_document_does_not_name() -> None:
    for operation in OPERATIONS:
        for kind in (operation.path_type, operation.query_type, operation.body_type):
            if kind is not None:
                with pytest.raises(msgspec.ValidationError):
                    msgspec.convert({"no such field": 1}, kind)
    schemas = document()["components"]["schemas"]
    for operation in OPERATIONS:
        if operation.body_type is not None:
            assert schemas[operation.body_type.__name__]["additionalProperties"] is False


def test_it_is_json_and_comes_in_one_piece() -> None:
    assert msgspec.json.decode(document_json()) == msgspec.json.decode(
        msgspec.json.encode(document())
    )
    assert document()["openapi"] == "3.1.0"


async def test_answers_are_what_the_document_says() -> None:
    """Every operation that reads is asked, and its answer read by the struct it is said to be."""
    world = World()
    asked = 0
    async with world.serving() as server:
        operator = Operator(server)
        peer = await world.connect()
        await peer.node(node())
        await operator.add_group("g1", address="h:1")
        entered = {"group": "g1", "role": "MASTER", "hostname": "h", "ip": "10.0.0.1"}
        await operator.add_broker(**(entered | {"serve_port": 1, "sync_port": 2}))
        await operator.set_prefix("p.", ["g1"])
        await peer.register("s", ClientType.CONSUMER, consumer_group="cg")
        values = {"name": "g1", "subject": "s", "prefix": "p.", "role": "MASTER", "group": "g1"}
        values["cluster"] = "c1"
        for operation in OPERATIONS:
            if operation.is_change:
                continue
            parts = dict(values)
            if "delay-groups" in operation.path:
                parts["name"] = "d1"
            path = operation.path.format(**parts)
            kind: Any = operation.answer_type
            assert getattr(admin_types, kind.__name__) is kind
            found = await operator.ask("GET", PREFIX + path)
            assert found.code == 200, found.body
            msgspec.json.decode(found.body, type=kind)
            answer = found.json
            assert set(answer) == set(kind.__struct_fields__)
            if "items" in answer:
                assert answer["items"], operation.name
            asked += 1
    assert asked > 15
