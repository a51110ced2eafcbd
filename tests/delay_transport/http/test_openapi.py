"""The document says what is done: every route, every field, and answers as they really are."""

import re
from typing import Any

import msgspec
import pytest
import trio
from starlette.routing import Route

import delay_server.admin.api
import meta_server.admin.api
from delay_protocol.meta.requests import ClientType
from delay_transport.http.api import Api
from delay_transport.http.openapi import document, document_json
from tests.kit.operator import Operator, starting_app
from tests.meta_server.meta_rig import World, node

API = meta_server.admin.api.API


@pytest.fixture(params=[API, delay_server.admin.api.API], ids=lambda api: api.title)
def api(request: pytest.FixtureRequest) -> Api:
    found: Api = request.param
    return found


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
        if route.path.startswith(API.prefix) and route.path != f"{API.prefix}/openapi.json":
            routes |= {(method, route.path) for method in set(route.methods or ()) - {"HEAD"}}
    described = {
        (method.upper(), path)
        for path, methods in document(API)["paths"].items()
        for method in methods
    }
    assert described == routes
    assert len(routes) == len(API.operations) > 30
    await trio.lowlevel.checkpoint()


def test_parts_of_the_path_are_the_fields_of_their_struct(api: Api) -> None:
    for operation in api.operations:
        parts = set(re.findall(r"\{(\w+)\}", operation.path))
        assert parts == set(operation.path_type.__struct_fields__), operation.name
        described = document(api)["paths"][api.prefix + operation.path][operation.method.lower()]
        named = {one["name"] for one in described["parameters"] if one["in"] == "path"}
        assert named == parts
        assert all(one["required"] for one in described["parameters"] if one["in"] == "path")


def test_names_of_operations_are_told_apart_and_every_one_says_what_it_does(api: Api) -> None:
    names = [operation.name for operation in api.operations]
    assert len(set(names)) == len(names)
    assert all(operation.summary.endswith(".") for operation in api.operations)
    assert all(operation.is_change is (operation.method != "GET") for operation in api.operations)


def test_every_field_and_parameter_is_explained(api: Api) -> None:
    for name, schema in document(api)["components"]["schemas"].items():
        assert schema["description"], name
        for field, described in schema.get("properties", {}).items():
            assert described["description"], f"{name}.{field}"
    for methods in document(api)["paths"].values():
        for described in methods.values():
            assert all(one["description"] for one in described["parameters"])


def test_everything_that_is_referred_to_is_there(api: Api) -> None:
    found = document(api)
    schemas = {f"#/components/schemas/{name}" for name in found["components"]["schemas"]}
    assert references(found) == schemas


def test_requests_refuse_what_the_document_does_not_name(api: Api) -> None:
    for operation in api.operations:
        for kind in (operation.path_type, operation.query_type, operation.body_type):
            if kind is not None:
                with pytest.raises(msgspec.ValidationError):
                    msgspec.convert({"no such field": 1}, kind)
    schemas = document(api)["components"]["schemas"]
    for operation in api.operations:
        if operation.body_type is not None:
            assert schemas[operation.body_type.__name__]["additionalProperties"] is False


def test_it_is_json_and_comes_in_one_piece(api: Api) -> None:
    assert msgspec.json.decode(document_json(api)) == msgspec.json.decode(
        msgspec.json.encode(document(api))
    )
    assert document(api)["openapi"] == "3.1.0"


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
        await operator.put("receiver", "r1", patterns=["orders.*"])
        await operator.put("webhook", "w1", url="http://h/", secrets=["whsec_" + "A" * 32])
        await peer.register("s", ClientType.CONSUMER, consumer_group="cg")
        await operator.change_rule("c1", "subjects", subject="s", paused=True)
        await operator.change_rule("c1", "groups", group="g1", paused=True)
        keys = {
            "/cluster/{name}": "/cluster/c1",
            "/broker-group/{name}": "/broker-group/g1",
            "/broker/{group}/{role}": "/broker/g1/MASTER",
            "/subject/{name}": "/subject/s",
            "/route/{pattern}": "/route/p.*",
            "/receiver/{name}": "/receiver/r1",
            "/webhook/{name}": "/webhook/w1",
            "/delay-group/{name}": "/delay-group/d1",
            "/delay-node/{group}/{node}": "/delay-node/d1/n1",
            "/subject-rule/{cluster}/{subject}": "/subject-rule/c1/s",
            "/group-rule/{cluster}/{group}": "/group-rule/c1/g1",
        }
        for operation in API.operations:
            if operation.is_change:
                continue
            path = keys.get(operation.path, operation.path)
            kind: Any = operation.answer_type
            found = await operator.ask("GET", API.prefix + path)
            assert found.code == 200, found.body
            msgspec.json.decode(found.body, type=kind)
            answer = found.json
            assert set(answer) == {field.encode_name for field in msgspec.structs.fields(kind)}
            if "items" in answer:
                assert answer["items"], operation.name
            asked += 1
    assert asked > 15
