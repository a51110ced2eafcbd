"""Promise: with a meta server every message has one outcome, whatever groups and routes do.

Groups fail, come and go, the meta server dies and lies; what can be accepted is accepted soon.
"""

import random
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from delay_client import (
    ClientClosed,
    IllegalSubject,
    NoRoute,
    OutgoingMessage,
    Receipt,
    RetryableError,
)
from delay_client.exchange.batches import Collection, claim
from delay_client.exchange.routing import MetaRouting
from delay_protocol.messages.items import decode_item
from delay_protocol.messages.origin import DUE_KEY
from delay_protocol.meta.requests import BrokerState
from tests.delay_client.meta_world import CONFIG, LISTENER, META, World, group
from tests.seeds import each_seed


def accepted(world: World, name: str) -> Receipt:
    outcome = world.outcome(name)
    assert isinstance(outcome, Receipt), outcome
    return outcome


def sent_soon(world: World, name: str, subject: str = "s", *, within_s: float = 0.2) -> Receipt:
    world.send(name, subject)
    world.run(within_s)
    return accepted(world, name)


# Finding the groups.


def test_the_route_is_asked_for_at_the_first_use_and_nothing_before() -> None:
    world = World("a", "b")
    world.run(100)
    assert world.meta.connects == []
    assert sent_soon(world, "m1").server == "a:1"
    assert [address for _, address in world.meta.connects] == [META, LISTENER]
    assert [subject for _, subject in world.meta.asked] == ["s"]
    assert sent_soon(world, "m2").attempts == 1
    assert len(world.meta.asked) == 1, "what is known is not asked for again"


def test_a_level_counts_by_the_table_that_the_meta_server_tells() -> None:
    """Also of messages that were there before it told any; a later table moves none of them."""
    world = World("a")
    waiters = [world.send(f"m{level}", level=level) for level in (0, 1, 2, 2**40)]
    messages = [OutgoingMessage("s", "x", level=level) for level in (2, 1, 2, 1)]
    at = datetime(1970, 1, 1, tzinfo=UTC)
    collection = world.send_many(messages=[*messages, OutgoingMessage("s", "x", at=at)])
    sent_ms = world.wall_ms
    world.run(1)
    receipts = [waiter.receipt() for waiter in waiters]
    assert [receipt.due_ms - sent_ms for receipt in receipts] == [0, 7000, 9000, 9000]
    assert not any(receipt.past_due for receipt in receipts)
    *many, past = collection.outcomes()
    delays_ms = [one.due_ms - sent_ms for one in many if isinstance(one, Receipt)]
    assert delays_ms == [9000, 7000, 9000, 7000]
    assert isinstance(past, Receipt)
    assert (past.due_ms, past.past_due) == (0, True)
    outcomes = [*receipts, *collection.outcomes()]
    due = {one.message_id: one.due_ms for one in outcomes if isinstance(one, Receipt)}
    kept = [decode_item(item) for item in world.servers["a:1"].kept]
    assert {item.message_id: item.due_ms for item in kept} == due
    assert {item.message_id: int(item.attributes[DUE_KEY]) for item in kept} == due
    # Now that it is known, it is counted when the message is written.
    late = world.send("late", level=1)
    world.run(0.1)
    assert late.receipt().due_ms == sent_ms + 7000


def test_a_bad_table_of_levels_is_no_answer_and_loses_no_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World("a")
    world.meta.levels = "1s " * 1000
    waiter = world.send("m1", level=2, timeout_s=30)
    world.run(5)
    assert waiter.outcome is None
    assert "bad levels: level 65, at character 193, is one too many" in caplog.text
    world.meta.levels = "7s 9s"
    world.run(10)
    assert waiter.receipt().due_ms == world.wall_ms + 9000


def test_the_connection_to_the_meta_server_stays_with_a_heartbeat_a_minute() -> None:
    world = World("a")
    sent_soon(world, "m1")
    world.run(500)
    times = [at for at, _ in world.meta.asked]
    gaps = [after - before for before, after in pairwise(times)]
    assert len(gaps) >= 8
    assert all(47 < gap < 61 for gap in gaps)
    assert len(world.meta.connects) == 2
    world.run(700)
    asked = len(world.meta.asked)
    world.run(2000)
    assert len(world.meta.asked) == asked, "a subject that nobody uses is forgotten"
    assert sent_soon(world, "m2").server == "a:1"


def test_messages_wait_for_the_route_and_then_share_requests() -> None:
    world = World("a")
    collection = world.send_many(*((f"m{number}", "s") for number in range(6)))
    for number in range(3):
        world.send(f"single{number}")
    world.run(0.1)
    assert all(isinstance(outcome, Receipt) for outcome in collection.outcomes())
    assert sorted(len(ids) for _, ids in world.servers["a:1"].requests) == [3, 3, 3]


def test_subjects_with_the_same_route_share_requests_and_others_do_not() -> None:
    world = World("a", "b")
    world.meta.routes = {"x": [group("a")], "y": [group("a")], "z": [group("b")]}
    for subject in ("x", "y", "z"):
        sent_soon(world, f"first.{subject}", subject)
    for server in world.servers.values():
        server.requests.clear()
    world.send_many(("m1", "x"), ("m2", "z"), ("m3", "y"), ("m4", "x"), ("m5", "z"))
    world.run(0.1)
    assert [ids for _, ids in world.servers["a:1"].requests] == [["m1", "m3", "m4"]]
    assert [ids for _, ids in world.servers["b:1"].requests] == [["m2", "m5"]]


def test_outcomes_stand_in_their_places_though_lanes_and_refusals_mix_them() -> None:
    world = World("a", "b")
    world.meta.routes = {"x": [group("a")], "z": [group("b")]}
    chance = random.Random(3)
    named = [(f"m{n}", chance.choice(["x", "z", "bad subject", "new"])) for n in range(200)]
    collection = world.send_many(*named)
    world.run(5)
    outcomes = collection.outcomes()
    assert len(outcomes) == 200
    for (name, subject), outcome in zip(named, outcomes, strict=True):
        assert outcome.message_id == name
        assert isinstance(outcome, Receipt) == (subject != "bad subject")
    assert sorted(world.servers["a:1"].ids + world.servers["b:1"].ids) == sorted(
        name for name, subject in named if subject != "bad subject"
    )


def test_without_a_route_a_message_waits_and_goes_when_there_is_one() -> None:
    world = World()
    world.send("m1")
    world.run(5)
    assert world.outcome("m1") is None
    world.add("a:1")
    world.route(group("a"))
    world.run(0.1)
    assert accepted(world, "m1").server == "a:1"


def test_no_group_at_all_is_told_after_the_callers_time_with_what_to_do() -> None:
    world = World()
    world.send("m1", timeout_s=3)
    world.run(3.1)
    outcome = world.outcome("m1")
    assert isinstance(outcome, NoRoute)
    assert not outcome.maybe_kept
    assert "knows no delay group" in str(outcome)
    assert "check that a delay server is registered" in str(outcome)


def test_a_subject_that_the_meta_server_refuses_for_good_is_refused_at_once() -> None:
    world = World("a")
    world.meta.refused.add("new")
    world.send("m1", "new")
    many = world.send_many(("m2", "new"), ("m3", "s"), ("m4", "new"))
    world.run(0.2)
    # Also what comes when that is known, under a given id too, and with more than one in a lane.
    world.send("m5", "new")
    world.send("m6", "new", is_id_given=True)
    later = world.send_many(("m7", "new"))
    world.run(0.2)
    outcomes = [world.outcome(name) for name in ("m1", "m5", "m6")]
    first, fine, last = many.outcomes()
    for outcome in (*outcomes, first, last, *later.outcomes()):
        assert isinstance(outcome, IllegalSubject)
        assert "an operator has to enter it, by `delaywheel admin set subject NAME`" in str(outcome)
        assert outcome.attempts == 0
    assert isinstance(fine, Receipt)
    # Once it is entered, it is taken within a minute.
    world.meta.refused.clear()
    world.run(61)
    assert sent_soon(world, "m8", "new").server == "a:1"


@pytest.mark.parametrize(
    ("mood", "said"),
    [
        ("refuses", "meta:8080: refused"),
        ("hole", "no answer"),
        ("hangs", "no answer within 5 s"),
        ("garbage", "does not speak the protocol"),
        ("51", "the store is down"),
    ],
)
def test_a_meta_server_that_does_not_answer_is_told_as_what_it_does(mood: str, said: str) -> None:
    world = World("a")
    world.meta.mood = mood
    world.send("m1")
    world.run(15.1)
    outcome = world.outcome("m1")
    assert isinstance(outcome, NoRoute)
    assert said in str(outcome)


def test_a_client_with_too_many_subjects_says_so() -> None:
    world = World("a", config=replace(CONFIG, subjects_max=2))
    for subject in ("x", "y"):
        sent_soon(world, f"m.{subject}", subject)
    world.send("m1", "z", timeout_s=2)
    world.run(2.1)
    assert "uses 2 subjects" in str(world.outcome("m1"))
    assert sent_soon(world, "m2", "x")


def test_a_subject_that_waits_has_its_turn_when_another_is_forgotten() -> None:
    world = World("a", config=replace(CONFIG, subjects_max=1))
    sent_soon(world, "m1", "x")
    waiter = world.send("m2", "y", timeout_s=1000)
    world.run(590)
    assert waiter.outcome is None
    world.run(100)
    assert waiter.receipt().server == "a:1"


def test_more_subjects_and_servers_than_are_kept_do_not_fill_the_memory() -> None:
    world = World("a", config=replace(CONFIG, subjects_max=20, servers_max=10))
    for number in range(300):
        world.meta.routes[f"s{number}"] = [group(f"g{number}"), group("a")]
        if number < 20:
            sent_soon(world, f"m{number}", f"s{number}", within_s=0.3)
        else:
            world.send(f"m{number}", f"s{number}", timeout_s=0.1)
        world.run(0.1)
        assert len(world.exchange.routing.links) <= 10
    routing = world.exchange.routing
    assert isinstance(routing, MetaRouting)
    assert len(routing._found) <= 40
    assert len(routing._routeless) <= 60
    assert len(routing._lanes) <= 60
    assert sent_soon(world, "again", "s3").server == "a:1"


def test_a_group_with_an_impossible_address_is_done_without() -> None:
    world = World("a")
    world.meta.default = [group("bad", "nonsense"), group("a")]
    assert sent_soon(world, "m1").server == "a:1"


def test_while_the_meta_server_is_away_known_routes_are_used() -> None:
    world = World("a", "b")
    sent_soon(world, "m1")
    world.meta.mood = "refuses"
    world.cut(LISTENER)
    world.run(300)
    assert sent_soon(world, "m2").server == "a:1"
    world.meta.mood = "answers"
    world.run(10)
    world.route(group("b"))
    world.run(0.2)
    assert sent_soon(world, "m3").server == "b:1"


# Spreading, and moving on.


def test_a_group_that_is_killed_is_left_within_a_tenth_of_a_second() -> None:
    world = World("a", "b")
    sent_soon(world, "m1")
    world.servers["a:1"].delay_s = 1
    world.send("m2")
    world.run(0.01)
    world.kill("a:1")
    world.run(0.15)
    assert accepted(world, "m2").server == "b:1"
    for number in range(20):
        assert sent_soon(world, f"n{number}", within_s=0.05).server == "b:1"


def test_what_a_lost_connection_left_unanswered_goes_to_the_same_group_if_it_is_back_at_once() -> (
    None
):
    world = World("a", "b")
    sent_soon(world, "m1")
    world.servers["a:1"].delay_s = 1
    world.send("m2")
    world.run(0.01)
    world.cut("a:1")
    world.servers["a:1"].delay_s = 0.001
    world.run(0.3)
    receipt = accepted(world, "m2")
    assert (receipt.server, receipt.attempts) == ("a:1", 2)
    assert world.servers["b:1"].kept == []
    first, second = world.servers["a:1"].kept[1:]
    assert first == second, "byte for byte, so that it can be told to be the same"


def test_a_group_that_cuts_connections_instead_of_answering_gets_a_request_twice_at_most() -> None:
    world = World("a", "b")
    sent_soon(world, "m1")
    world.servers["a:1"].mood = "cuts"
    receipt = sent_soon(world, "m2", within_s=1)
    assert (receipt.server, receipt.attempts) == ("b:1", 3)


def test_a_group_whose_address_is_a_brokers_by_now_gets_nothing() -> None:
    world = World("a", "b")
    world.servers["a:1"].mood = "broker"
    world.send("m")
    world.run(1)
    assert isinstance(world.outcome("m"), Receipt)
    assert not world.servers["a:1"].requests
    world.route(group("a"))
    world.run(0.01)
    world.send("n", timeout_s=2.0)
    world.run(3)
    assert "a:1: is not a delay server" in str(world.outcome("n"))


def test_it_waits_for_the_same_group_no_longer_than_it_may() -> None:
    world = World("a", "b")
    sent_soon(world, "m1")
    world.servers["a:1"].delay_s = 10
    world.send("m2")
    world.run(0.01)
    world.servers["a:1"].mood = "hole"
    cut_at = world.now
    world.cut("a:1")
    world.run(1.2)
    assert accepted(world, "m2").server == "b:1"
    assert 0.9 < world.servers["b:1"].requests[0][0] - cut_at < 1.1
    assert world.servers["b:1"].kept == world.servers["a:1"].kept[1:]


def test_a_group_that_hangs_costs_its_requests_one_try_and_the_others_nothing() -> None:
    world = World("a", "b")
    sent_soon(world, "m1")
    world.servers["a:1"].mood = "hangs"
    world.send("m2")
    world.run(0.01)
    # What comes meanwhile is spread by what is in flight.
    quick = [sent_soon(world, f"n{number}", within_s=0.05).server for number in range(5)]
    assert quick == ["b:1"] * 5
    world.run(4.1)
    receipt = accepted(world, "m2")
    assert (receipt.server, receipt.attempts) == ("b:1", 2)


# Trouble is told.


def fail(_: str) -> None:
    raise RuntimeError("a hook with a bug")


def test_a_hook_that_fails_costs_nothing_but_a_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World("a", on_trouble=fail)
    world.servers["a:1"].mood = "51"
    world.send("m")
    world.run(3)
    assert "on_trouble failed" in caplog.text
    assert "(a:1 could not take messages just then (code 51)): still" in caplog.text
    world.servers["a:1"].mood = "takes"
    world.run(3)
    assert accepted(world, "m").attempts > 1


# Ids that the user gave.


def homes(*names: str, groups: tuple[str, ...] = ("a", "b")) -> list[str]:
    """Return the addresses that these ids name."""
    return [max(groups, key=lambda name: claim(name, "s", one)) + ":1" for one in names]


def test_the_group_that_an_id_names_is_the_same_for_every_client() -> None:
    assert claim("a", "s", "m1").hex() == "139e72bf0e7adf2e"
    assert claim("b", "s", "m1").hex() == "a53005fdee1a5abf"
    names = [f"m{number}" for number in range(300)]
    before = homes(*names, groups=("a", "b", "c"))
    after = homes(*names, groups=("a", "c"))
    assert min(before.count(f"{name}:1") for name in "abc") > 70
    assert all(one == other for one, other in zip(before, after, strict=True) if one != "b:1")


def test_a_message_with_a_given_id_goes_to_the_group_that_it_names_however_it_is_sent() -> None:
    names = [f"m{number}" for number in range(40)]
    for order in (("a", "b"), ("b", "a")):
        world = World(*order)
        for name in names[:20]:
            world.send(name, is_id_given=True)
        collection = world.send_many(*((name, "s") for name in names[20:]))
        world.run(2)
        receipts = [*(world.outcome(name) for name in names[:20]), *collection.outcomes()]
        assert [receipt.server for receipt in receipts if isinstance(receipt, Receipt)] == homes(
            *names
        )
        assert not any(isinstance(receipt, Receipt) and receipt.elsewhere for receipt in receipts)


def test_the_group_that_an_id_names_is_waited_for_while_it_is_only_slow() -> None:
    world = World("a", "b", config=replace(CONFIG, requests_in_flight_max=1, request_items_max=1))
    [home] = homes("m1")
    world.servers[home].delay_s = 0.3
    of_home = [name for name in (f"m{n}" for n in range(1, 30)) if homes(name) == [home]][:4]
    collection = world.send_many(*((name, "s") for name in of_home))
    world.run(3)
    assert [getattr(one, "server", "") for one in collection.outcomes()] == [home] * 4


@pytest.mark.parametrize("mood", ["51", "52", "4", "refuses", "hole", "broker"])
def test_only_if_that_group_takes_nothing_another_does_and_the_receipt_says_so(mood: str) -> None:
    world = World("a", "b")
    [home] = homes("m1")
    world.servers[home].mood = mood
    world.send("m1", is_id_given=True)
    collection = world.send_many(("m1", "s"))
    world.run(5)
    for receipt in (world.outcome("m1"), *collection.outcomes()):
        assert isinstance(receipt, Receipt)
        assert (receipt.server != home, receipt.elsewhere) == (True, True)
    assert not sent_soon(world, "made", within_s=5).elsewhere
    # Once it takes messages again it gets its own.
    world.servers[home].mood = "takes"
    world.run(10)
    for number in range(4):
        world.send_many(("m1", "s"))
        world.run(3 * number + 3)
    assert "m1" in world.servers[home].ids


def test_a_given_id_waits_for_a_route_and_follows_it() -> None:
    world = World()
    for name in "abc":
        world.add(f"{name}:1")
    names = [f"m{number}" for number in range(12)]
    for name in names:
        world.send(name, is_id_given=True)
    world.run(1)
    world.route(group("a"), group("b"), group("c"))
    world.run(1)
    receipts = [world.outcome(name) for name in names]
    found = [receipt.server for receipt in receipts if isinstance(receipt, Receipt)]
    assert found == homes(*names, groups=("a", "b", "c"))


def test_a_new_group_is_used_as_soon_as_it_is_pushed() -> None:
    world = World("a")
    sent_soon(world, "m1")
    world.add("b:1")
    world.route(group("b"), group("a"))
    world.run(0.01)
    # The first message has it connected to; it does not wait for that.
    sent_soon(world, "m2")
    assert sent_soon(world, "m3").server == "b:1"


def test_a_group_that_is_gone_gets_nothing_more_and_its_connection_is_closed() -> None:
    world = World("a", "b")
    sent_soon(world, "m1")
    world.route(group("b"))
    world.run(0.2)
    assert sent_soon(world, "m2").server == "b:1"
    world.run(250)
    assert list(world.links()) == []
    assert sent_soon(world, "m3").server == "b:1"
    assert list(world.links()) == ["b:1"]


def test_what_is_on_its_way_to_a_group_that_goes_is_still_answered() -> None:
    world = World("a", "b")
    sent_soon(world, "m1")
    world.servers["a:1"].delay_s = 1
    world.send("m2")
    world.run(0.01)
    world.route(group("b"))
    world.run(1.1)
    receipt = accepted(world, "m2")
    assert (receipt.server, receipt.attempts) == ("a:1", 1)
    assert world.servers["b:1"].kept == []


def test_what_waits_for_a_group_that_goes_is_sent_to_the_one_that_comes() -> None:
    world = World("a")
    sent_soon(world, "m1")
    world.kill("a:1")
    collection = world.send_many(*((f"n{number}", "s") for number in range(20)))
    world.run(2)
    world.add("b:1")
    world.route(group("b"))
    world.run(0.3)
    assert all(isinstance(outcome, Receipt) for outcome in collection.outcomes())
    assert world.servers["b:1"].ids == [f"n{number}" for number in range(20)]


def test_a_group_whose_master_has_moved_is_followed() -> None:
    world = World("a")
    sent_soon(world, "m1")
    world.kill("a:1")
    world.add("a2:1")
    world.send("m2")
    world.run(1)
    world.route(group("a", "a2:1"))
    world.run(0.2)
    assert accepted(world, "m2").server == "a2:1"


def test_a_group_that_only_holds_messages_gets_none() -> None:
    world = World("a", "b")
    world.meta.default = [group("a", state=BrokerState.R), group("b")]
    assert sent_soon(world, "m1").server == "b:1"
    world.route(group("a"), group("b", state=BrokerState.NRW))
    world.run(0.1)
    assert sent_soon(world, "m2").server == "a:1"


def test_subjects_that_shared_requests_part_when_their_routes_do() -> None:
    world = World("a", "b")
    world.meta.routes = {"x": [group("a")], "y": [group("a")]}
    sent_soon(world, "m.x", "x")
    sent_soon(world, "m.y", "y")
    world.servers["a:1"].mood = "hole"
    world.cut("a:1")
    collection = world.send_many(("m1", "x"), ("m2", "y"), ("m3", "x"), ("m4", "y"))
    world.run(1)
    world.meta.routes["y"] = [group("b")]
    world.push()
    world.run(0.2)
    assert world.servers["b:1"].ids == ["m2", "m4"]
    world.servers["a:1"].mood = "takes"
    world.run(8)
    assert world.servers["a:1"].ids[2:] == ["m1", "m3"]
    assert [outcome.message_id for outcome in collection.outcomes()] == ["m1", "m2", "m3", "m4"]


def test_a_dead_group_delays_only_what_is_routed_to_it_alone() -> None:
    world = World("a", "b")
    world.meta.routes = {"x": [group("a")], "y": [group("b")]}
    sent_soon(world, "m.x", "x")
    sent_soon(world, "m.y", "y")
    world.servers["a:1"].mood = "hole"
    world.cut("a:1")
    world.send_many(*((f"x{number}", "x") for number in range(30)))
    for number in range(30):
        assert sent_soon(world, f"y{number}", "y", within_s=0.05).server == "b:1"


def test_a_call_pauses_where_its_messages_wait_and_no_other_does() -> None:
    world = World("a", "b")
    world.meta.routes = {"x": [group("a")], "y": [group("b")]}
    sent_soon(world, "m.x", "x")
    sent_soon(world, "m.y", "y")
    world.kill("a:1")
    to_dead = world.batches(Collection(lambda: None), *((f"x{n}", "x") for n in range(30)))
    congested = []
    for batch in to_dead[:3]:
        batch.deadline = world.now + 15
        world.exchange.submit(batch, world.now)
        congested.append(not world.exchange.has_room(batch))
    assert congested == [False, True, True]
    [other] = world.batches(Collection(lambda: None), ("y", "y"))
    other.deadline = world.now + 15
    world.exchange.submit(other, world.now)
    assert world.exchange.has_room(other)


def test_all_that_waits_is_limited() -> None:
    world = World(config=replace(CONFIG, requests_queued_max=10))
    named = [(f"m{n}", f"s{n}") for n in range(30)]
    congested = 0
    for batch in world.batches(Collection(lambda: None), *named):
        batch.deadline = world.now + 5
        world.exchange.submit(batch, world.now)
        congested += not world.exchange.has_room(batch)
    assert congested == 21


def test_closing_settles_what_waits_for_a_route_too() -> None:
    world = World()
    world.send("m1")
    world.run(1)
    world.exchange.close()
    assert isinstance(world.outcome("m1"), ClientClosed)
    world.run(100)
    assert len(world.meta.connects) == 2


def test_with_nothing_to_do_it_rests() -> None:
    world = World("a", "b")
    sent_soon(world, "m1")
    world.run(60)
    polls = world.polls
    world.run(600)
    assert world.polls - polls < 100


def test_a_group_that_is_gone_is_disconnected_from_soon() -> None:
    world = World("a", "b")
    sent_soon(world, "m1")
    assert world.connected_to() == ["a:1", "b:1"]
    world.route(group("b"))
    world.run(0.2)
    assert world.connected_to() == ["b:1"]


def test_a_batch_that_was_cut_before_its_route_came_is_sent_by_it() -> None:
    world = World("a")
    collection = Collection(lambda: None)
    [batch] = world.batches(collection, ("m1", "s"))
    world.exchange.poll(world.now)
    world.run(0.1)
    assert len(world.meta.asked) == 1
    batch.deadline = world.now + 15
    world.exchange.submit(batch, world.now)
    world.run(0.1)
    [outcome] = collection.outcomes()
    assert isinstance(outcome, Receipt)


def test_a_batch_that_was_cut_before_its_route_changed_is_sent_by_the_new_one() -> None:
    world = World("a", "b")
    world.meta.default = [group("a")]
    sent_soon(world, "m1")
    collection = Collection(lambda: None)
    [batch] = world.batches(collection, ("m2", "s"))
    world.kill("a:1")
    world.route(group("b"))
    world.run(1)
    batch.deadline = world.now + 15
    world.exchange.submit(batch, world.now)
    world.run(0.1)
    [outcome] = collection.outcomes()
    assert isinstance(outcome, Receipt)
    assert outcome.server == "b:1"


def test_after_a_long_rest_it_works_as_before() -> None:
    world = World("a")
    for number in range(3):
        assert sent_soon(world, f"m{number}").attempts == 1
        world.run(50_000)
        assert world.connected_to() == []
    assert len(world.meta.connects) == 6


# Anything at all.

MOODS = [
    "takes",
    "takes",
    "takes",
    "refuses",
    "hole",
    "hangs",
    "51",
    "52",
    "4",
    "garbage",
    "cuts",
    "broker",
]
META_MOODS = ["answers", "answers", "answers", "refuses", "hole", "hangs", "51", "garbage"]


@each_seed(60)
def test_whatever_groups_and_meta_servers_do_every_message_gets_one_outcome_and_receipts_are_true(
    seed: int,
) -> None:
    chance = random.Random(seed)
    names = ["a", "b", "c"]
    world = World(*names, seed=seed)
    subjects = ["x", "y", "z"]
    sent: dict[str, str] = {}
    collections: list[tuple[list[str], Collection]] = []

    def message(subject: str) -> str:
        name = f"m{len(sent)}"
        sent[name] = subject
        return name

    def any_route() -> list[str]:
        return chance.sample(names, chance.randrange(0, 4))

    for _ in range(60):
        match chance.randrange(8):
            case 0 | 1:
                for subject in subjects:
                    world.send(
                        message(subject),
                        subject,
                        timeout_s=chance.choice([3.0, 15.0]),
                        is_id_given=chance.random() < 0.5,
                    )
            case 2 | 3:
                drawn = [chance.choice(subjects) for _ in range(chance.randrange(1, 12))]
                named = [(message(subject), subject) for subject in drawn]
                collections.append(([name for name, _ in named], world.send_many(*named)))
            case 4:
                server = chance.choice(list(world.servers.values()))
                server.mood = chance.choice(MOODS)
                server.delay_s = chance.choice([0.001, 0.1, 3.9, 5.0])
            case 5:
                world.cut(chance.choice([*world.servers, LISTENER]))
            case 6:
                subject = chance.choice(subjects)
                world.meta.routes[subject] = [group(name) for name in any_route()]
                if chance.random() < 0.8:
                    world.push()
            case 7:
                world.meta.mood = chance.choice(META_MOODS)
        world.run(chance.choice([0.0, 0.01, 0.5, 3.0]))
    world.run(40)
    kept = {name: server.ids for name, server in world.servers.items()}
    outcomes = {name: waiter.outcome for name, waiter in world.waiters.items()}
    for ids, collection in collections:
        assert not collection.unsettled
        outcomes |= dict(zip(ids, collection.outcomes(), strict=True))
    assert outcomes.keys() == sent.keys()
    assert all(count == 1 for count in world.settled.values())
    for name, outcome in outcomes.items():
        assert outcome is not None
        assert outcome.message_id == name
        if isinstance(outcome, Receipt):
            assert name in kept[outcome.server]
        else:
            assert isinstance(outcome, RetryableError)
            is_kept = any(name in ids for ids in kept.values())
            assert outcome.maybe_kept or not is_kept, "kept, and the caller was not warned"
    # Nothing of it is left behind.
    assert list(world.exchange._pending.batches()) == []
    assert world.exchange._pending.lanes == {}
    # When all is well again everything goes through.
    for server in world.servers.values():
        server.mood, server.delay_s = "takes", 0.001
    world.meta.mood = "answers"
    world.meta.routes = {}
    world.push()
    world.run(70)
    for subject in subjects:
        sent_soon(world, message(subject), subject, within_s=3)
