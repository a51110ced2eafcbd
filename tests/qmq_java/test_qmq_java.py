"""QMQ's own Java on our meta server: its client as it is, and brokers on its published libraries.

Run by `make java`; skipped where that was not done. docs/compatibility.md says what is QMQ's here
and what is not.
"""

import contextlib
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from delay_protocol.basics.codes import CommandCode
from delay_protocol.messages.items import Item, encode_item
from delay_protocol.meta.requests import (
    BrokerRole,
    ClientType,
    decode_acquire_meta,
    decode_broker_register,
    decode_client_register,
    encode_acquire_meta,
    encode_broker_register,
    encode_client_register,
)
from meta_server.known.model import Broker, Change, Save
from meta_server.sql.databases import read_url
from meta_server.sql.store import open_store
from tests.ports import closed_port
from tests.processes.real_processes import (
    Producer,
    ServerProcess,
    meta_server,
    server,
    until,
    wall_ms,
)
from tests.processes.test_administration import done as administrate
from tests.qmq_java.java_programs import (
    HOST,
    JavaProcess,
    broker_process,
    java_broker,
    java_client,
    java_delay_server,
    missing,
)
from tests.qmq_java.recording_proxy import RecordingProxy

pytestmark = [
    pytest.mark.java,
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

SUBJECT = "shop.order"
BROKERS_HEARTBEAT_S = 10
CLIENTS_HEARTBEAT_S = 60


class Site:
    """A place for a meta server that keeps its addresses and its store over restarts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "meta" / "data"
        self.data.mkdir(parents=True)
        self.entered: dict[str, int] = {}
        """Where the brokers of each group are to serve."""
        self.listen = f"127.0.0.1:{closed_port()}"
        self.http = f"127.0.0.1:{closed_port()}"

    def store(self, *changes: Change) -> None:
        """Change rows, as an operator does; the meta server is down."""
        url = read_url(f"sqlite:///{self.data / 'meta.db'}")
        store = open_store(url, chance=random.Random(1), statement_ms=5000)
        store.commit(changes)
        store.close()

    def enter(self, group: str, role: BrokerRole = BrokerRole.MASTER, sync_port: int = 0) -> int:
        """Enter a broker; return the port that it is to serve on."""
        port = closed_port()
        broker = Broker(
            hostname=HOST,
            serve_port=port,
            ip="127.0.0.1",
            group=group,
            role=role,
            sync_port=sync_port,
        )
        self.store(Save(broker))
        self.entered[group] = port
        return port

    @contextlib.contextmanager
    def meta(self, *settings: str) -> Iterator[ServerProcess]:
        """Run the meta server."""
        options = ["--listen", self.listen, "--http", self.http]
        for setting in settings:
            options += ["--set", setting]
        with meta_server(self.data, options=options) as process:
            yield process.wait_ready()

    @contextlib.contextmanager
    def delay_server(
        self, meta: ServerProcess, group: str, *, listen: str = "127.0.0.1:0"
    ) -> Iterator[ServerProcess]:
        """Run a delay server of ours, which is told of the meta server alone."""
        data = self.path / group / "data"
        data.parent.mkdir(exist_ok=True)
        options = ("--meta", self.http, "--group", group, "--node-id", "n1", "--listen", listen)
        with server(data, options=options) as process:
            process.wait_ready()
            assert until(
                lambda: (
                    ("delay", "RW", f"127.0.0.1:{process.port}")
                    in [
                        (row["kind"], row["state"], row["address"])
                        for row in meta.topology()["broker_groups"]
                    ]
                ),
                seconds=5,
            )
            yield process

    def log(self, name: str) -> Path:
        """Return the file for what a Java program has to say."""
        return self.path / f"{name}.log"

    @contextlib.contextmanager
    def broker(self, name: str, port: int) -> Iterator[JavaProcess]:
        """Run a broker that is on-line."""
        with java_broker(self.http, port, self.log(name)) as process:
            process.tell("online")
            yield process

    @contextlib.contextmanager
    def client(self, name: str = "client", libraries: str = "client") -> Iterator[JavaProcess]:
        """Run a client."""
        with java_client(self.http, self.log(name), libraries=libraries) as process:
            yield process


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def group_of(meta: ServerProcess, name: str) -> dict[str, Any]:
    """Return what the meta server says of a broker group."""
    [group] = [group for group in meta.topology()["broker_groups"] if group["name"] == name]
    found: dict[str, Any] = group
    return found


def send(client: JavaProcess, keys: Sequence[str], *, delay_ms: int = 0, retries: int = -1) -> None:
    """Have messages sent, and taken."""
    before = len(client.all("sent"))
    for key in keys:
        client.tell("send", SUBJECT, delay_ms, key, retries)
    assert client.wait_for(lambda: len(client.all("sent")) >= before + len(keys), seconds=20), (
        client.all("failed"),
        client.log()[-3000:],
    )
    assert not client.all("failed")


def has_all(client: JavaProcess, keys: Sequence[str]) -> Callable[[], bool]:
    """Return a condition: the consumer has got messages with these keys."""
    return lambda: set(keys) <= {said[4] for said in client.all("got")}


def got_once(client: JavaProcess, keys: Sequence[str], *, seconds: float) -> None:
    """Check that the consumer gets each of these, and nothing twice."""
    assert client.wait_for(has_all(client, keys), seconds=seconds), client.all("got")
    assert set(Counter(said[4] for said in client.all("got")).values()) == {1}


def names(prefix: str, count: int) -> list[str]:
    """Return keys for so many messages."""
    return [f"{prefix}{number}" for number in range(count)]


def taken(count: int, *brokers: JavaProcess) -> list[int]:
    """Return how many messages each broker took, when that is so many in all."""

    def each() -> list[int]:
        return [len(broker.all("took")) for broker in brokers]

    assert until(lambda: sum(each()) >= count, seconds=5), each()
    assert sum(each()) == count
    return each()


@contextlib.contextmanager
def two_brokers(site: Site) -> Iterator[tuple[JavaProcess, JavaProcess]]:
    """Run the brokers b1 and b2, which are entered."""
    first, second = (site.broker(name, port) for name, port in site.entered.items())
    with first as one, second as other:
        yield one, other


def one_of_qmqs(message_id: str) -> bytes:
    """Return a message as QMQ's producers make it: its consumers fail on one without this time."""
    now_ms = wall_ms()
    return encode_item(
        Item(
            flag=0,
            create_ms=now_ms,
            due_ms=now_ms,
            subject=SUBJECT,
            message_id=message_id,
            tags=(),
            attributes={"qmq_createTime": str(now_ms), "key": message_id},
        )
    )


def wait_for_pushes(meta: ServerProcess, count: int) -> None:
    """Wait until so many pushes were sent since the start, and a moment more for who gets them."""
    assert until(lambda: meta.status()["pushes"] >= count, seconds=5), meta.status()
    time.sleep(0.3)


def test_a_broker_is_told_who_it_is_and_is_routed_to_while_it_is_online(site: Site) -> None:
    port = site.enter("b1", sync_port=20882)
    slave_port = site.enter("b1", BrokerRole.SLAVE)
    backup_port = site.enter("b1", BrokerRole.BACKUP)
    with site.meta() as meta, java_broker(site.http, port, site.log("b1")) as broker:
        assert broker.all("role") == [["role", "b1", "MASTER", "-"]]
        assert until(lambda: meta.topology()["broker_groups"], seconds=5)
        assert group_of(meta, "b1")["state"] == "NRW"
        broker.tell("online")
        assert group_of(meta, "b1")["state"] == "RW"
        assert group_of(meta, "b1")["address"] == f"127.0.0.1:{port}"
        with java_broker(site.http, slave_port, site.log("slave")) as slave:
            assert slave.all("role") == [["role", "b1", "SLAVE", "127.0.0.1:20882"]]
            slave.tell("online")
            slave.tell("offline")
        with java_broker(site.http, backup_port, site.log("backup")) as backup:
            assert backup.all("role") == [["role", "b1", "BACKUP", "127.0.0.1:0"]]
        assert group_of(meta, "b1")["state"] == "RW"
        broker.tell("offline")
        assert group_of(meta, "b1")["state"] == "NRW"
        assert "requests_refused" not in meta.status()


def test_a_broker_that_nobody_entered_does_not_start(site: Site) -> None:
    site.enter("b1")
    with site.meta() as meta:
        broker = broker_process(site.http, closed_port(), site.log("stranger"))
        try:
            assert broker.process.wait(20) != 0
        finally:
            broker.end()
        assert not broker.all("role")
        assert meta.status()["requests_refused"] == {"broker_acquire_meta": 1}
        assert "no broker is entered as java-host:" in meta.log()


@pytest.mark.parametrize("libraries", ["client", "client-old"])
def test_messages_for_now_and_for_later_reach_a_consumer_on_time_and_once(
    site: Site, libraries: str
) -> None:
    port = site.enter("b1")
    with (
        site.meta() as meta,
        site.broker("b1", port) as broker,
        site.delay_server(meta, "d1") as ours,
        site.client(libraries=libraries) as client,
    ):
        client.tell("listen", SUBJECT, "g1", "ok")
        now, later = names("now", 20), names("later", 60)
        send(client, now)
        began_ms = wall_ms()
        for number, key in enumerate(later):
            client.tell("send", SUBJECT, 700 + 50 * number, key, -1)
        got_once(client, now + later, seconds=20)
        assert len(client.all("sent")) == 80
        late = {said[4]: int(said[6]) for said in client.all("got")}
        for number, key in enumerate(later):
            assert late[key] - began_ms >= 700 + 50 * number
        taken(80, broker)
        for took in broker.all("took", SUBJECT)[20:]:
            assert 0 <= int(took[4]) - int(took[3]) < 2000
        assert ours.status()["accepted"] == 60
        assert "requests_refused" not in meta.status()


def test_a_java_delay_server_gets_delayed_messages_and_finds_the_broker(site: Site) -> None:
    port, delay_port = site.enter("b1"), site.enter("d1", BrokerRole.DELAY_MASTER)
    with (
        site.meta() as meta,
        site.broker("b1", port),
        java_delay_server(site.http, delay_port, site.log("d1")) as delay,
        site.client() as client,
    ):
        assert delay.all("role") == [["role", "d1", "DELAY_MASTER", "-"]]
        delay.tell("online")
        assert group_of(meta, "d1")["kind"] == "delay"
        client.tell("listen", SUBJECT, "g1", "ok")
        keys = names("k", 10)
        send(client, keys, delay_ms=1500)
        got_once(client, keys, seconds=20)
        assert len(delay.all("dispatched", SUBJECT)) == 10
        assert "requests_refused" not in meta.status()


def test_clients_and_brokers_live_through_a_killed_meta_server_without_a_flap(site: Site) -> None:
    site.enter("b1")
    site.enter("b2")
    timeout_s = BROKERS_HEARTBEAT_S + 5
    setting = f"registration.broker_timeout_ms={timeout_s * 1000}"
    with contextlib.ExitStack() as others, contextlib.ExitStack() as first_life:
        first_life.enter_context(site.meta(setting))
        others.enter_context(two_brokers(site))
        client = others.enter_context(site.client())
        client.tell("listen", SUBJECT, "g1", "ok")
        before, during, after = names("before", 10), names("during", 10), names("after", 10)
        send(client, before)
        first_life.close()
        send(client, during)
        # Longer than a heartbeat of the brokers: each has failed, and asked anew where to go.
        time.sleep(BROKERS_HEARTBEAT_S + 2)
        with site.meta(setting) as meta:
            restarted = time.monotonic()
            assert {group["state"] for group in meta.topology()["broker_groups"]} == {"RW"}
            with site.client("newcomer") as newcomer:
                send(newcomer, after)
                got_once(client, before + during + after, seconds=10)
            while time.monotonic() - restarted < timeout_s + 2:
                assert {group["state"] for group in meta.topology()["broker_groups"]} == {"RW"}
                time.sleep(0.2)
            assert meta.status()["requests"]["broker_register"] >= 2
            assert "requests_refused" not in meta.status()
        assert "timed out" not in meta.log()


def test_a_killed_broker_is_taken_from_clients_by_a_push(site: Site) -> None:
    timeout_s = BROKERS_HEARTBEAT_S + 3
    site.enter("b1")
    site.enter("b2")
    with (
        site.meta(f"registration.broker_timeout_ms={timeout_s * 1000}") as meta,
        two_brokers(site) as (first, second),
        site.client() as client,
    ):
        client.tell("listen", SUBJECT, "g1", "ok")
        send(client, names("before", 10))
        assert all(taken(10, first, second))
        first.kill()
        # The client turns to the other group by itself, after it has tried this one.
        send(client, names("without", 10))
        assert until(lambda: group_of(meta, "b1")["state"] == "NRW", seconds=timeout_s + 3)
        wait_for_pushes(meta, 3)
        tried = client.log().count("CREATE_CHANNEL_FAIL")
        send(client, names("after", 20))
        assert client.log().count("CREATE_CHANNEL_FAIL") == tried
        taken(40, first, second)


def test_a_group_that_goes_offline_and_comes_back_is_pushed_at_once(site: Site) -> None:
    site.enter("b1")
    site.enter("b2")
    with (
        site.meta() as meta,
        two_brokers(site) as (first, second),
        site.client() as client,
    ):
        client.tell("listen", SUBJECT, "g1", "ok")
        send(client, names("both", 20))
        second.tell("offline")
        wait_for_pushes(meta, 3)
        _, seen = taken(20, first, second)
        assert 0 < seen < 20
        send(client, names("one", 20))
        assert taken(40, first, second) == [40 - seen, seen]
        second.tell("online")
        wait_for_pushes(meta, 6)
        send(client, names("again", 20))
        assert taken(60, first, second)[1] > seen
        got_once(client, [*names("both", 20), *names("one", 20), *names("again", 20)], seconds=10)


def test_a_group_that_comes_later_is_added_to_a_short_route_and_pushed(site: Site) -> None:
    ports = [site.enter("b1"), site.enter("b2")]
    with site.meta() as meta, site.broker("b1", ports[0]) as first, site.client() as client:
        client.tell("listen", SUBJECT, "g1", "ok")
        send(client, names("one", 10))
        with site.broker("b2", ports[1]) as second:
            wait_for_pushes(meta, 3)
            send(client, names("both", 20))
            assert taken(30, first, second)[1] > 0
            got_once(client, [*names("one", 10), *names("both", 20)], seconds=10)


def test_a_read_only_group_is_left_by_producers_and_kept_by_consumers(site: Site) -> None:
    site.enter("b1")
    site.enter("b2")
    with (
        site.meta() as meta,
        two_brokers(site) as (first, second),
        site.client() as client,
    ):
        client.tell("listen", SUBJECT, "g1", "ok")
        send(client, names("both", 20))
        second.tell("readonly")
        assert until(lambda: group_of(meta, "b2")["state"] == "R", seconds=BROKERS_HEARTBEAT_S + 3)
        wait_for_pushes(meta, 3)
        _, seen = taken(20, first, second)
        send(client, names("one", 20))
        assert taken(40, first, second) == [40 - seen, seen]
        port = int(group_of(meta, "b2")["address"].split(":")[1])
        with Producer(port) as direct:
            assert direct.send([one_of_qmqs("direct")]) == {}
        assert client.wait_for(
            lambda: any(said[3] == "direct" for said in client.all("got")), seconds=10
        )
        second.tell("writable")
        assert until(lambda: group_of(meta, "b2")["state"] == "RW", seconds=BROKERS_HEARTBEAT_S + 3)
        wait_for_pushes(meta, 6)
        send(client, names("again", 20))
        assert taken(61, first, second)[1] > seen + 1


def test_what_a_consumer_throws_at_comes_again_and_ends_as_dead(site: Site) -> None:
    port = site.enter("b1")
    with site.meta() as meta, site.broker("b1", port) as broker, site.client() as client:
        client.tell("listen", SUBJECT, "g1", "throw")
        send(client, ["bad"], retries=3)
        dead, retry = f"%DEAD_RETRY%{SUBJECT}%g1", f"%RETRY%{SUBJECT}%g1"
        assert broker.wait_for(lambda: bool(broker.all("took", dead)), seconds=60), broker.said
        assert [said[5] for said in client.all("got")] == ["1", "2", "3"]
        taken(4, broker)
        assert [said[1] for said in broker.all("took")] == [SUBJECT, retry, retry, dead]
        # The retry subjects are routed as the subject itself is.
        assert meta.status()["subjects"] == 1
        assert "requests_refused" not in meta.status()


def test_what_a_consumer_wants_later_comes_later_by_way_of_our_delay_server(site: Site) -> None:
    port = site.enter("b1")
    with (
        site.meta() as meta,
        site.broker("b1", port) as broker,
        site.delay_server(meta, "d1") as ours,
        site.client() as client,
    ):
        client.tell("listen", SUBJECT, "g1", "later:3000")
        send(client, ["k"])
        assert client.wait_for(lambda: len(client.all("got")) == 2, seconds=20), client.said
        first, again = client.all("got")
        assert (first[3], first[5], again[5]) == (again[3], "1", "2")
        assert int(again[6]) - int(first[6]) >= 2999
        assert ours.status()["accepted"] == 1
        taken(2, broker)
        assert "requests_refused" not in meta.status()


def test_trap_3_a_group_that_an_operator_moves_is_used_at_its_new_address_at_once(
    site: Site,
) -> None:
    port, moved_port = site.enter("b1"), closed_port()
    with (
        site.meta() as meta,
        site.broker("b1", port) as old,
        site.delay_server(meta, "d1"),
        site.client() as client,
    ):
        client.tell("listen", SUBJECT, "g1", "ok")
        before, after, later = names("before", 10), names("after", 20), names("later", 20)
        send(client, before)
        got_once(client, before, seconds=5)
        taken(10, old)
        old.kill()
        place = (f"hostname={HOST}", "ip=127.0.0.1", f"serve_port={moved_port}")
        administrate(meta, "set", "broker", "b1/MASTER", *place, "sync_port=20882")
        pushes = meta.status()["pushes"]
        with site.broker("b1", moved_port) as moved:
            began = time.monotonic()
            assert group_of(meta, "b1")["address"] == f"127.0.0.1:{moved_port}"
            # Before, a producer with no other group gives up on what it sends within milliseconds.
            wait_for_pushes(meta, pushes + 3)
            send(client, after)
            send(client, later, delay_ms=500)
            got_once(client, [*before, *after, *later], seconds=10)
            # Less than any time-out or heartbeat takes.
            assert time.monotonic() - began < BROKERS_HEARTBEAT_S
            taken(40, moved)
        # Its first heartbeat, before it was on-line: then the group was still at the old place.
        assert meta.status()["requests_refused"] == {"broker_register": 1}


def test_a_lost_store_is_filled_anew_by_what_the_brokers_say(site: Site) -> None:
    site.enter("b1")
    site.enter("b2")
    with contextlib.ExitStack() as others, contextlib.ExitStack() as first_life:
        first_life.enter_context(site.meta())
        others.enter_context(two_brokers(site))
        client = others.enter_context(site.client())
        client.tell("listen", SUBJECT, "g1", "ok")
        send(client, names("before", 10))
        first_life.close()
        for path in site.data.glob("meta.db*"):
            path.unlink()
        with site.meta() as meta:
            assert until(
                lambda: (
                    [group["state"] for group in meta.topology()["broker_groups"]] == ["RW", "RW"]
                ),
                seconds=2 * BROKERS_HEARTBEAT_S,
            )
            with site.client("newcomer") as newcomer:
                send(newcomer, names("new", 10))
                got_once(client, [*names("before", 10), *names("new", 10)], seconds=10)


def test_a_delay_group_that_goes_offline_is_left_by_producers_at_once(site: Site) -> None:
    for name in ("d1", "d2"):
        site.enter(name, BrokerRole.DELAY_MASTER)
    site.enter("b1")
    with (
        site.meta() as meta,
        site.broker("b1", site.entered["b1"]),
        java_delay_server(site.http, site.entered["d1"], site.log("d1")) as first,
        java_delay_server(site.http, site.entered["d2"], site.log("d2")) as second,
        site.client() as client,
    ):
        first.tell("online")
        second.tell("online")
        client.tell("listen", SUBJECT, "g1", "ok")
        send(client, names("both", 20), delay_ms=1000)
        pushes = meta.status()["pushes"]
        second.tell("offline")
        wait_for_pushes(meta, pushes + 1)
        _, seen = taken(20, first, second)
        assert 0 < seen < 20
        send(client, names("one", 20), delay_ms=1000)
        assert taken(40, first, second) == [40 - seen, seen]
        # With none left producers keep the one they have: an empty list would hang them.
        first.tell("offline")
        time.sleep(1)
        send(client, names("none", 20), delay_ms=1000)
        everything = [*names("both", 20), *names("one", 20), *names("none", 20), *names("new", 5)]
        # A producer that never had one would wait for ever.
        with site.client("newcomer") as newcomer:
            send(newcomer, names("new", 5), delay_ms=1000)
        got_once(client, everything, seconds=20)


def test_a_client_that_is_older_than_the_meta_server_finds_it(site: Site) -> None:
    site.enter("b1")
    with site.client() as client:
        client.tell("send", SUBJECT, 0, "early", -1)
        time.sleep(5)
        with site.meta(), site.broker("b1", site.entered["b1"]):
            assert client.wait_for(
                lambda: bool(client.all("sent")), seconds=CLIENTS_HEARTBEAT_S + 10
            ), client.log()[-3000:]


def test_requests_are_byte_for_byte_what_we_would_send(site: Site) -> None:
    site.enter("b1")
    with (
        RecordingProxy(site.listen) as proxy,
        site.meta(f"listener.advertised=127.0.0.1:{proxy.port}"),
        java_broker(site.http, site.entered["b1"], site.log("b1")) as broker,
        site.client() as client,
    ):
        broker.tell("online")
        client.tell("listen", SUBJECT, "g1", "ok")
        send(client, ["k"])
        broker.tell("readonly")
        broker.tell("offline")
    asked = {code: [f for f in proxy.frames if f.code == code] for code in (30, 35, 40)}
    [acquire] = asked[CommandCode.BROKER_ACQUIRE_META]
    assert encode_acquire_meta(decode_acquire_meta(acquire.body)) == acquire.body
    for frame in asked[CommandCode.BROKER_REGISTER]:
        assert encode_broker_register(decode_broker_register(frame.body)) == frame.body
    for frame in (acquire, *asked[CommandCode.BROKER_REGISTER]):
        assert (frame.version, frame.request_code, frame.flag) == (8, -1, 0)
    said = [decode_broker_register(frame.body) for frame in asked[CommandCode.BROKER_REGISTER]]
    kinds = [(request.request_type.name, request.state.name) for request in said]
    assert kinds[0] == ("HEARTBEAT", "NRW")
    assert ("ONLINE", "RW") in kinds
    assert kinds[-1] == ("OFFLINE", "NRW")
    registered = [(f, decode_client_register(f.body)) for f in asked[CommandCode.CLIENT_REGISTER]]
    retry = f"%RETRY%{SUBJECT}%g1"
    assert {(r.client_type, r.subject, r.consumer_group) for _, r in registered} >= {
        (ClientType.CONSUMER, SUBJECT, "g1"),
        (ClientType.CONSUMER, retry, "g1"),
        (ClientType.PRODUCER, SUBJECT, ""),
    }
    for frame, request in registered:
        assert (frame.version, frame.request_code, frame.opaque) == (9, 35, 0)
        # A map has no order, and QMQ's is that of its hash.
        assert len(encode_client_register(request)) == len(frame.body), request
        assert request.app_code == "shop"
        assert "@@" in request.client_id


def test_clients_that_came_before_any_broker_are_pushed_its_route(site: Site) -> None:
    port = site.enter("b1")
    with site.meta() as meta, site.client() as client:
        client.tell("listen", SUBJECT, "g1", "throw")
        client.tell("send", SUBJECT, 0, "early", 2)
        assert until(
            lambda: meta.status().get("requests", {}).get("client_register") == 3, seconds=5
        )
        with site.broker("b1", port):
            # The second comes on the retry subject, whose route was pushed too.
            assert client.wait_for(lambda: len(client.all("got")) == 2, seconds=5), client.said
        assert "requests_refused" not in meta.status()


def test_clients_of_an_only_group_wait_for_it_and_go_on_when_it_is_back(site: Site) -> None:
    port = site.enter("b1")
    with site.meta() as meta, site.broker("b1", port) as broker, site.client() as client:
        client.tell("listen", SUBJECT, "g1", "ok")
        send(client, ["before"])
        got_once(client, ["before"], seconds=5)
        broker.tell("offline")
        wait_for_pushes(meta, 3)
        # A producer keeps what it has, as QMQ has it, and the broker takes it.
        send(client, ["away"])
        broker.tell("online")
        wait_for_pushes(meta, 6)
        send(client, ["back"])
        got_once(client, ["before", "away", "back"], seconds=10)


def test_a_client_with_hundreds_of_subjects_learns_all_their_routes(site: Site) -> None:
    port = site.enter("b1")
    subjects = [f"{SUBJECT}.{number}" for number in range(200)]
    with site.meta() as meta, site.broker("b1", port) as broker, site.client() as client:
        for subject in subjects:
            client.tell("send", subject, 0, subject, -1)
        assert client.wait_for(lambda: len(client.all("sent")) == 200, seconds=20)
        taken(200, broker)
        assert {said[1] for said in broker.all("took")} == set(subjects)
        assert meta.status()["subjects"] == 200
        broker.tell("offline")
        wait_for_pushes(meta, 200)
        broker.tell("online")
        wait_for_pushes(meta, 400)
        assert "requests_refused" not in meta.status()


def test_a_subject_that_is_refused_does_not_stop_the_others(site: Site) -> None:
    port = site.enter("b1")
    with site.meta() as meta, site.broker("b1", port), site.client() as client:
        client.tell("send", "not/legal", 0, "illegal", -1)
        send(client, names("legal", 20))
        assert meta.status()["requests_refused"] == {"client_register": 1}
        assert "an illegal subject" in meta.log()


def test_trap_6_a_broker_starts_though_the_store_takes_nothing_for_seconds(site: Site) -> None:
    port = site.enter("b1")
    with site.meta() as meta, java_broker(site.http, port, site.log("b1")) as broker:
        assert until(lambda: meta.topology()["broker_groups"], seconds=5)
        other = sqlite3.connect(site.data / "meta.db", isolation_level=None)
        with contextlib.closing(other):
            other.execute("begin exclusive")
            broker.tell("online")
            assert group_of(meta, "b1")["state"] == "NRW"
            # Whole heartbeats of silence are not needed: what it said is stored when it can be.
            other.execute("rollback")
        assert until(lambda: group_of(meta, "b1")["state"] == "RW", seconds=5)
