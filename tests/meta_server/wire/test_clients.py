"""Who uses a subject is remembered roughly, within a bound, and forgotten after a while."""

from dataclasses import replace

from meta_server.known.model import ClientKey, ClientSeen, Contents
from meta_server.known.registry import Registry
from meta_server.settings.config import RegistrationConfig
from meta_server.wire.clients import SeenClients
from tests.meta_server.meta_rig import World, make_config, until

HOUR_MS = 3_600_000


def seen(client_id: str, *, at_ms: int = 0, app: str = "app") -> ClientSeen:
    key = ClientKey(subject="a", client_type=2, consumer_group="cg", client_id=client_id)
    return ClientSeen(key=key, app_code=app, room="", seen_ms=at_ms)


def store(clients: SeenClients, registry: Registry) -> int:
    changes = clients.plan_store()
    registry.apply(changes)
    clients.stored(changes)
    return len(changes)


def test_a_client_is_stored_once_and_again_after_an_hour_or_when_it_changes() -> None:
    registry = Registry(Contents())
    clients = SeenClients(registry, RegistrationConfig())
    stored = []
    for client in (
        seen("c1"),
        seen("c1", at_ms=60_000),
        seen("c1", at_ms=HOUR_MS),
        seen("c1", at_ms=HOUR_MS + 1, app="other"),
    ):
        clients.note(client)
        stored.append(store(clients, registry))
    assert stored == [1, 0, 1, 1]
    assert registry.clients[seen("c1").key].app_code == "other"


def test_what_is_seen_again_while_it_is_stored_is_stored_again() -> None:
    registry = Registry(Contents())
    clients = SeenClients(registry, RegistrationConfig())
    clients.note(seen("c1"))
    changes = clients.plan_store()
    clients.note(seen("c1", at_ms=5))
    registry.apply(changes)
    clients.stored(changes)
    assert clients.gathered == 1


def test_clients_beyond_the_bound_are_counted_only() -> None:
    registry = Registry(Contents())
    clients = SeenClients(registry, RegistrationConfig(clients_max=2))
    for number in range(5):
        clients.note(seen(f"c{number}"))
    assert (clients.gathered, clients.unkept) == (2, 3)
    store(clients, registry)
    clients.note(seen("c9"))
    assert (clients.gathered, clients.unkept) == (0, 4)


def test_who_was_not_seen_for_long_is_forgotten() -> None:
    old, new = seen("old"), seen("new", at_ms=HOUR_MS)
    registry = Registry(Contents(clients=(old, new)))
    clients = SeenClients(registry, RegistrationConfig())
    registry.apply(clients.plan_forget([seen("gone").key, old.key, new.key], 1))
    assert list(registry.clients) == [new.key]
    assert registry.clients_of("a") == (new,)


async def test_clients_that_register_are_in_the_store_soon_and_forgotten_in_the_end() -> None:
    world = World()
    limits = RegistrationConfig(client_keep_ms=HOUR_MS // 2)
    async with world.serving(make_config(registration=limits)):
        peer = await world.connect()
        for number in range(3):
            await peer.register("a.b", client_id=f"c{number}")
        await until(lambda: len(world.medium.contents.clients) == 3, seconds=2)
        [first, *_] = world.medium.contents.clients
        assert first == replace(first, app_code="", room="")
        await until(lambda: not world.medium.contents.clients, seconds=8000, step_s=60)
