"""Promise: with a meta server each master that it names is asked, and others are in doubt."""

from delay_client import Changed, ChangeOutcome, ChangeState, MessageName, NoRoute
from delay_client.exchange.asking import ChangeCall
from delay_client.messages.changed import wanted
from tests.delay_client.meta_world import World

S = ChangeState


def cancel(world: World, timeout_s: float = 15.0) -> ChangeCall:
    change = wanted(MessageName("s", "m1"), None, world.wall_ms)
    call = ChangeCall([change], timeout_s=timeout_s, now=world.now, on_progress=lambda: None)
    world.exchange.change(call, world.now)
    world.look_round()
    return call


def only(call: ChangeCall) -> ChangeOutcome:
    [outcome] = call.outcomes()
    return outcome


def state_of(call: ChangeCall) -> ChangeState:
    outcome = only(call)
    assert isinstance(outcome, Changed), outcome
    return outcome.state


def test_groups_that_no_route_names_are_asked_over_the_links_there_are() -> None:
    world = World("a", "b")
    retired = world.add("old:1")
    retired.state = S.CANCELLED
    world.set_masters(a="a:1", b="b:1", old="old:1")
    world.send("m")
    call = cancel(world)
    world.run(1)
    assert state_of(call) is S.CANCELLED
    assert [len(server.changes) for server in world.servers.values()] == [1, 1, 1]
    assert [len(server.connects) for server in world.servers.values()] == [1, 1, 1]


def test_what_no_master_has_is_unknown_at_once() -> None:
    world = World("a", "b")
    call = cancel(world)
    world.run(1)
    assert state_of(call) is S.UNKNOWN
    # The connections end when nothing is to be asked any more.
    world.run(200)
    assert world.connected_to() == []
    asked = len(world.meta.connects)
    world.run(100)
    assert len(world.meta.connects) == asked


def test_another_master_is_asked_as_soon_as_the_meta_server_tells_of_it() -> None:
    world = World("a")
    world.servers["a:1"].mood = "51"
    call = cancel(world)
    world.run(1)
    assert call.parts
    world.add("a:2").state = S.CANCELLED
    world.set_masters(a="a:2")
    world.run(0.1)
    assert state_of(call) is S.CANCELLED


def test_a_group_that_joins_meanwhile_is_asked_as_well() -> None:
    world = World("a", "b")
    world.servers["b:1"].mood = "hangs"
    call = cancel(world)
    world.run(1)
    world.add("c:1").state = S.MOVED
    world.set_masters(a="a:1", b="b:1", c="c:1")
    world.run(30)
    assert state_of(call) is S.MOVED
    assert len(world.servers["c:1"].changes) == 1


def test_a_group_that_is_away_leaves_a_doubt_and_ends_at_once_where_another_knows() -> None:
    world = World("a", "b")
    world.servers["b:1"].mood = "refuses"
    call = cancel(world)
    world.run(14)
    assert call.parts
    world.run(2)
    assert state_of(call) is S.IN_DOUBT
    world.servers["a:1"].state = S.CANCELLED
    call = cancel(world)
    world.run(3)
    assert state_of(call) is S.CANCELLED


def test_without_a_meta_server_nothing_is_unknown() -> None:
    world = World("a")
    world.meta.mood = "refuses"
    call = cancel(world)
    world.run(16)
    assert isinstance(only(call), NoRoute)
    world = World("a")
    assert cancel(world).parts
    world.run(1)
    world.meta.mood = "refuses"
    world.cut("meta:20880")
    call = cancel(world)
    world.run(16)
    outcome = only(call)
    assert isinstance(outcome, Changed)
    assert (outcome.state, "the meta server: " in outcome.reason) == (S.IN_DOUBT, True)
    assert len(world.servers["a:1"].changes) == 2


def test_a_cluster_without_groups_is_said() -> None:
    world = World()
    call = cancel(world)
    world.run(1)
    outcome = only(call)
    assert isinstance(outcome, NoRoute)
    assert "knows no delay group" in str(outcome)
