"""Groups of brokers: what each registration leads to, and whose word counts."""

import dataclasses
from collections.abc import Sequence
from functools import partial

import pytest
from msgspec.structs import replace

from delay_protocol.meta.requests import (
    AcquireMeta,
    BrokerRegister,
    BrokerRequestType,
    BrokerRole,
    BrokerState,
)
from meta_server.groups.broker_groups import (
    acquire,
    check_address,
    plan_register,
    plan_silence,
    plan_state,
    watched,
)
from meta_server.groups.roles import plan_node
from meta_server.known import model
from meta_server.known.errors import RefusedError, StateError
from meta_server.known.registry import Registry
from tests.meta_server.meta_rig import broker, node
from tests.odd_addresses import ODD_ADDRESSES

ONLINE, HEARTBEAT, OFFLINE = (
    BrokerRequestType.ONLINE,
    BrokerRequestType.HEARTBEAT,
    BrokerRequestType.OFFLINE,
)
TIMEOUT_S = 30.0


HOME = "10.0.0.1"
"""Where the broker of the rig is, and speaks from."""


def plan(
    registry: Registry,
    request: BrokerRegister,
    *,
    where: str = HOME,
    is_heard: bool = True,
    now_ms: int = 5,
) -> tuple[model.Change, ...]:
    return plan_register(
        registry, request, where=where, is_heard=is_heard, groups_max=10, now_ms=now_ms
    )


ours = partial(plan_node, is_heard=False, is_present=False, now_ms=1)
"""Plans the registration of a delay server of ours."""


def moves(changes: Sequence[model.Change]) -> list[model.AuditEntry]:
    """Return the entry of the audit if a group is elsewhere from then on."""
    return [change.entry for change in changes if isinstance(change, model.Audit)]


def apply(
    registry: Registry, request: BrokerRegister, *, where: str = HOME, is_heard: bool = True
) -> model.BrokerGroup:
    registry.apply(plan(registry, request, where=where, is_heard=is_heard))
    return registry.groups[request.group]


def with_a_broker() -> Registry:
    """Return a registry with the group g1, whose broker is on-line."""
    registry = Registry(model.Contents())
    apply(registry, broker())
    return registry


def entered(
    role: BrokerRole, *, host: str = "h1", port: int = 20881, sync: int = 0
) -> model.Broker:
    return model.Broker(
        hostname=host, serve_port=port, ip="10.0.0.1", group="g1", role=role, sync_port=sync
    )


def test_a_group_comes_into_being_with_its_first_event_whichever_it_is() -> None:
    for what, state in (
        (ONLINE, BrokerState.RW),
        (HEARTBEAT, BrokerState.R),
        (OFFLINE, BrokerState.NRW),
    ):
        registry = Registry(model.Contents())
        group = apply(registry, broker(what=what, state=BrokerState.R))
        assert (group.kind, group.state) == (model.GroupKind.NORMAL, state)
        assert group.master == "10.0.0.1:20881"


@pytest.mark.parametrize("role", [BrokerRole.DELAY, BrokerRole.DELAY_MASTER])
def test_the_role_tells_the_kind(role: BrokerRole) -> None:
    assert apply(Registry(model.Contents()), broker(role=role)).kind is model.GroupKind.DELAY


@pytest.mark.parametrize("what", [ONLINE, HEARTBEAT])
def test_no_broker_is_let_in_at_a_delay_servers_address(what: BrokerRequestType) -> None:
    """What it were given would come back to the delay server that is there."""
    registry = Registry(model.Contents())
    delay = node(address="10.0.0.5:20801")
    registry.apply(ours(registry, delay).changes)
    with pytest.raises(RefusedError, match="is the address of the delay server n1 of d1"):
        plan(registry, broker(what=what, address=delay.address))
    apply(registry, broker(address="10.0.0.5:20881"))
    with pytest.raises(RefusedError, match="is the address of the delay server n1 of d1"):
        plan(registry, broker(what=what, address=delay.address), is_heard=False)
    # The node itself goes on-line there.
    apply(registry, broker("d1", address=delay.address, role=BrokerRole.DELAY_MASTER))


def test_no_delay_server_is_let_in_at_a_brokers_address_while_that_is_on_line() -> None:
    registry = Registry(model.Contents())
    apply(registry, broker(address="10.0.0.5:20801"))
    qmqs = broker("d2", address="10.0.0.5:20801", role=BrokerRole.DELAY)
    with pytest.raises(RefusedError, match="is the address of the broker group g1"):
        plan(registry, qmqs)
    with pytest.raises(StateError, match="is the address of the broker group g1"):
        ours(registry, node(address="10.0.0.5:20801"))
    apply(registry, broker(what=OFFLINE, address="10.0.0.5:20801"))
    assert plan(registry, qmqs)
    assert ours(registry, node(address="10.0.0.5:20801")).changes


def test_what_an_operator_set_stays_through_registrations() -> None:
    registry = with_a_broker()
    group = registry.groups["g1"]
    marked = replace(group, weight=7, is_read_only=True, version=2)
    registry.apply((model.Save(marked),))
    after = apply(registry, broker(what=OFFLINE))
    assert replace(after, state=group.state, updated_ms=group.updated_ms, version=2) == marked


def test_the_row_is_written_only_when_something_changes() -> None:
    registry = with_a_broker()
    heard = plan(registry, broker(what=HEARTBEAT), now_ms=99)
    assert heard == ()


@pytest.mark.parametrize("what", [ONLINE, HEARTBEAT, OFFLINE])
def test_nobody_takes_a_living_groups_address_away(what: BrokerRequestType) -> None:
    registry = with_a_broker()
    with pytest.raises(RefusedError, match=r"g1 is at 10\.0\.0\.1:20881"):
        plan(registry, broker(what=what, address="10.0.0.2:20881"))


@pytest.mark.parametrize("what", [ONLINE, HEARTBEAT])
def test_a_broker_that_was_moved_is_followed_once_the_old_place_is_silent(
    what: BrokerRequestType,
) -> None:
    registry = with_a_broker()
    other = broker(what=what, address="10.0.0.2:20881")
    [moved] = moves(plan(registry, other, is_heard=False))
    assert (moved.actor, moved.action) == ("broker at 10.0.0.2:20881", "broker-group.move")
    assert ("10.0.0.1" in moved.before, "10.0.0.2" in moved.after) == (True, True)
    assert apply(registry, other, is_heard=False).master == "10.0.0.2:20881"
    assert not moves(plan(registry, other))


def test_a_broker_that_went_off_line_before_it_was_moved_is_followed_at_once() -> None:
    registry = with_a_broker()
    apply(registry, broker(what=OFFLINE))
    other = broker(address="10.0.0.2:20881")
    with pytest.raises(RefusedError, match="which is heard"):
        plan(registry, dataclasses.replace(other, request_type=HEARTBEAT))
    assert apply(registry, other).master == "10.0.0.2:20881"


def test_nobody_takes_a_group_by_having_it_taken_off_line_first() -> None:
    registry = with_a_broker()
    with pytest.raises(RefusedError, match=r"IP address than this one, 10\.6\.6\.6"):
        plan(registry, broker(what=OFFLINE), where="10.6.6.6")
    for state in (BrokerState.NRW, BrokerState.R):
        with pytest.raises(RefusedError, match="from another IP address"):
            plan(registry, broker(what=HEARTBEAT, state=state), where="10.6.6.6")
    # That it lives, anybody may say: it makes nobody its speaker.
    assert plan(registry, broker(), where="10.6.6.6") == ()
    apply(registry, broker(what=OFFLINE))
    elsewhere = broker(address="10.6.6.6:1")
    with pytest.raises(RefusedError, match="from another IP address"):
        plan(registry, elsewhere, where="10.6.6.6")
    # The one that spoke for it may move, and a stranger once that is silent.
    assert moves(plan(registry, elsewhere))
    assert moves(plan(registry, elsewhere, where="10.6.6.6", is_heard=False))


def test_a_broker_may_speak_from_another_ip_address_than_that_of_its_address() -> None:
    registry = Registry(model.Contents())
    assert apply(registry, broker(), where="172.17.0.1").speaker == "172.17.0.1"
    assert apply(registry, broker(what=OFFLINE), where="172.17.0.1").state is BrokerState.NRW
    # After a restart in another place under the same address it is taken at once.
    assert apply(registry, broker(), where="172.17.0.2").state is BrokerState.RW
    # From its own one it always may, and speaks from there then.
    assert apply(registry, broker(what=OFFLINE), where="10.0.0.1").speaker == "10.0.0.1"


def test_a_broker_that_an_operator_moved_goes_on_line_from_anywhere_and_nobody_speaks_for_it() -> (
    None
):
    registry = with_a_broker()
    registry.apply((model.Save(entered(BrokerRole.MASTER, host="h2", port=20881)),))
    moved = apply(registry, broker(address="h2:20881"), where="10.6.6.6")
    assert (moved.master, moved.speaker) == ("h2:20881", "")
    with pytest.raises(RefusedError, match="from another IP address"):
        plan(registry, broker(what=OFFLINE, address="h2:20881"), where="10.6.6.6")
    # The one that is entered may: its IP address is known.
    assert apply(registry, broker(what=OFFLINE, address="h2:20881")).speaker == HOME


def test_the_master_by_the_groups_record_gives_its_state_wherever_it_is() -> None:
    registry = Registry(model.Contents())

    def register(address: str, incarnation: int) -> None:
        request = node("n1", group="g1", address=address, incarnation=incarnation)
        registry.apply(ours(registry, request).changes)

    for incarnation, address in enumerate(("10.0.0.5:20801", "10.0.0.6:20801"), start=1):
        register(address, incarnation)
        request = node("n1", group="g1", address=address, incarnation=incarnation)
        request = replace(request, state="RW")
        registry.apply(plan_state(registry, request, now_ms=6))
        shown = registry.groups["g1"]
        assert (shown.master, shown.state) == (address, BrokerState.RW)
    # An earlier start is the master no more.
    earlier = replace(node("n1", group="g1", incarnation=1), state="NRW")
    assert plan_state(registry, earlier, now_ms=7) == ()


def test_where_brokers_are_entered_only_their_addresses_count() -> None:
    registry = Registry(model.Contents(rows=(entered(BrokerRole.MASTER),)))
    with pytest.raises(RefusedError, match="entered as h1:20881"):
        plan(registry, broker(address="10.0.0.2:20881"))
    assert apply(registry, broker(address="10.0.0.1:20881")).master == "10.0.0.1:20881"
    assert apply(registry, broker(address="h1:20881")).master == "h1:20881"


def test_a_retired_group_stays_retired() -> None:
    group = model.BrokerGroup(
        name="g1", kind=model.GroupKind.NORMAL, master="10.0.0.1:20881", is_retired=True
    )
    with pytest.raises(RefusedError, match="retired"):
        plan(Registry(model.Contents(rows=(group,))), broker())


def test_a_static_group_is_never_silent_until_it_registers_after_all() -> None:
    group = model.BrokerGroup(
        name="g1",
        kind=model.GroupKind.NORMAL,
        master="10.0.0.1:20881",
        state=BrokerState.RW,
        is_static=True,
    )
    registry = Registry(model.Contents(rows=(group,)))
    assert watched(registry) == []
    assert plan_silence(registry, "g1", now_ms=5) == ()
    for what in (ONLINE, HEARTBEAT, OFFLINE):
        # Its silence says nothing, so nobody else ever takes it over.
        for address in ("10.0.0.1:20881", "10.6.6.6:1"):
            request = broker(what=what, address=address)
            with pytest.raises(RefusedError, match=r"static=false|has not gone off-line"):
                plan(registry, request, where="10.6.6.6", is_heard=False)
    after = apply(registry, broker(what=HEARTBEAT))
    assert (after.is_static, after.speaker) == (False, HOME)
    assert watched(registry) == ["g1"]
    registry.apply(plan_silence(registry, "g1", now_ms=5))
    assert registry.groups["g1"].state is BrokerState.NRW
    assert watched(registry) == []


@pytest.mark.parametrize(
    ("role", "source", "master"),
    [
        (BrokerRole.MASTER, None, ""),
        (BrokerRole.DELAY, None, ""),
        (BrokerRole.DELAY_MASTER, None, ""),
        (BrokerRole.SLAVE, BrokerRole.MASTER, "10.0.0.1:20882"),
        (BrokerRole.BACKUP, BrokerRole.SLAVE, "10.0.0.1:20882"),
        (BrokerRole.DELAY_SLAVE, BrokerRole.DELAY_MASTER, "10.0.0.1:20882"),
        (BrokerRole.DELAY_BACKUP, BrokerRole.DELAY_SLAVE, "10.0.0.1:20882"),
    ],
)
def test_a_broker_learns_its_group_role_and_whom_to_copy(
    role: BrokerRole, source: BrokerRole | None, master: str
) -> None:
    brokers = [entered(role, host="me", port=1)]
    if source is not None:
        with pytest.raises(RefusedError, match="could copy"):
            acquire(
                Registry(model.Contents(rows=tuple(brokers))),
                AcquireMeta(hostname="me", serve_port=1),
            )
        brokers.append(entered(source, sync=20882))
    registry = Registry(model.Contents(rows=tuple(brokers)))
    reply = acquire(registry, AcquireMeta(hostname="me", serve_port=1))
    assert (reply.group, reply.role, reply.master) == ("g1", role, master)


def test_a_broker_may_give_its_address_as_its_host_name() -> None:
    registry = Registry(model.Contents(rows=(entered(BrokerRole.MASTER),)))
    assert acquire(registry, AcquireMeta(hostname="10.0.0.1", serve_port=20881)).group == "g1"
    for hostname, port in (("10.0.0.1", 1), ("h2", 20881), ("", 20881)):
        with pytest.raises(RefusedError, match="no broker is entered"):
            acquire(registry, AcquireMeta(hostname=hostname, serve_port=port))


@pytest.mark.parametrize(
    "address",
    [
        *("", "h", "h:", ":1", "h:x", "h:0", "h:65536", "[::1]:1", "h h:1", "h:\uff11", "h" * 300),
        *ODD_ADDRESSES,
    ],
    ids=lambda address: f"{len(address)} letters",
)
def test_what_qmqs_clients_could_not_connect_to_is_no_address(address: str) -> None:
    with pytest.raises(RefusedError):
        check_address(address)
