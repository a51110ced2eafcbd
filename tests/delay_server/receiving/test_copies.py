"""A subject that several names receive, in virtual time: each gets each message, for itself."""

import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import trio

from delay_protocol.messages.items import decode_item
from delay_protocol.receivers.delivering import Delivered, Settled, Verdict
from delay_server.admin.explain import explain_subject
from delay_server.filing.unfiled import UnfiledRecords
from delay_server.receiving.copies import Copier, copies_of
from delay_server.server import DelayServer, serve
from spark_tools.run.local import local_engine
from spark_tools.run.plan import Request, Source, make_plan
from spark_tools.run.reconcile import reconcile
from spark_tools.run.report import report
from storage.batch.batches import COPIES
from storage.batch.columns import RecordKind
from storage.batch.entries import ENTRY, Entries
from storage.batch.facts import Outcome
from storage.logs.message_log import Draft
from storage.readers.item_reader import Items
from storage.readers.manifest import read_manifest
from tests.delay_server.admin.test_metrics import figures_of
from tests.delay_server.receiving.test_receivers import peer_of
from tests.delay_server.route_rig import RouteWorld, routed_config
from tests.delay_server.server_rig import World, make_item, until
from tests.receiver_peer import ReceiverPeer, later_item
from tests.seeds import each_seed

SUBJECT = "orders"


@asynccontextmanager
async def received_by(
    *names: str, **sections: object
) -> AsyncIterator[tuple[RouteWorld, DelayServer]]:
    """Serve with a meta server that leads every subject to these names."""
    world = RouteWorld(1)
    world.meta.masters |= dict.fromkeys(("billing", "shipping", "audit"), "")
    world.meta.rest = names
    async with world.routing(routed_config(**sections)) as (server, _):
        yield world, server


@asynccontextmanager
async def receiver(world: World, name: str, items: int = 10_000) -> AsyncIterator[ReceiverPeer]:
    """Attach a receiver of a name; it takes so many messages at a time."""
    async with peer_of(world) as peer:
        await peer.begin(name, items)
        yield peer


async def send(
    world: World, count: int, *, after_ms: int = 500, subject: str = SUBJECT, name: str = "m"
) -> list[bytes]:
    """Send the server messages m0, m1 and so on; return their items."""
    producer, due_ms = await world.connect(), world.now_ms + after_ms
    items = [make_item(f"{name}{n}", due_ms, subject=subject) for n in range(count)]
    assert await producer.send(*items) == {}
    return items


def came(peer: ReceiverPeer) -> Counter[bytes]:
    """Return the items that a receiver got, and how often."""
    return Counter(one.item for _, one in peer.delivered)


async def until_all_came(items: Sequence[bytes], *peers: ReceiverPeer) -> None:
    """Wait until each of them has each item, byte for byte, once."""
    await until(lambda: all(len(peer.delivered) >= len(items) for peer in peers), seconds=150)
    assert [came(peer) for peer in peers] == [Counter(items)] * len(peers)


def pending(server: DelayServer) -> int:
    """Return how many messages have no outcome, as far as it is filed."""
    return server.node.store.schedule.pending


async def test_each_name_gets_each_message_byte_for_byte_when_it_is_due() -> None:
    async with received_by("billing", "shipping") as (world, server):
        items = await send(world, 600, after_ms=200_000)
        due_ms = decode_item(items[0]).due_ms
        # Copied as soon as they are loaded, so that nobody waits for it when they are due.
        await until(lambda: server.master.copier.copied == 1200, seconds=150)
        assert world.now_ms < due_ms - 60_000
        await until(lambda: world.now_ms > due_ms - 5000, seconds=150)
        async with (
            receiver(world, "billing") as billing,
            receiver(world, "shipping") as shipping,
        ):
            await _all_in_time(items, billing, shipping)
        assert not set(billing.sequences) & set(shipping.sequences)
        await until(lambda: not pending(server))


async def _all_in_time(items: Sequence[bytes], *peers: ReceiverPeer) -> None:
    await until_all_came(items, *peers)
    for peer in peers:
        late_ms = [at_ms - decode_item(one.item).due_ms for at_ms, one in peer.delivered]
        assert 0 <= min(late_ms) <= max(late_ms) < 1000
        assert await peer.done(peer.sequences) == 0


async def test_what_one_name_does_the_other_does_not_see() -> None:
    async with (
        received_by("billing", "shipping") as (world, server),
        receiver(world, "billing") as billing,
        receiver(world, "shipping") as shipping,
    ):
        items = await send(world, 3)
        await until_all_came(items, billing, shipping)
        first = {decode_item(one.item).message_id: one for _, one in billing.delivered}
        due_ms = world.now_ms + 2000
        verdicts = [
            Settled(first["m0"].sequence, Verdict.LATER, later_item(first["m0"].item, due_ms)),
            Settled(first["m1"].sequence, Verdict.REFUSED, b"no"),
            Settled(first["m2"].sequence, Verdict.DONE),
        ]
        assert await billing.settle(verdicts) == 0
        assert await shipping.done(shipping.sequences) == 0
        await until(lambda: len(billing.delivered) == 4)
        at_ms, again = billing.delivered[-1]
        assert (decode_item(again.item).message_id, at_ms >= due_ms) == ("m0", True)
        assert decode_item(again.item).subject == SUBJECT
        assert await billing.done([again.sequence]) == 0
        (letter,) = server.master.dead_letters.listed()
        assert letter.subject == b"%RETRY%orders%billing"
        await server.master.dead_letters.requeue([letter])
        await until(lambda: len(billing.delivered) == 5)
        assert await billing.done(billing.sequences[-1:]) == 0
        await until(lambda: not pending(server))
        assert len(shipping.delivered) == 3


async def test_the_books_have_what_producers_sent_as_accepted_and_copies_and_retries_by_themselves(
    tmp_path: Path,
) -> None:
    async with (
        received_by("billing", "shipping") as (world, server),
        receiver(world, "billing") as billing,
        receiver(world, "shipping") as shipping,
    ):
        items = await send(world, 20)
        # What a client of QMQ wants again it sends itself: an accepted message.
        items += await send(world, 5, subject="%RETRY%orders%billing", name="own")
        await until(lambda: (len(billing.delivered), len(shipping.delivered)) == (25, 20))
        one, other, *_ = [one for _, one in billing.delivered]
        later = later_item(one.item, world.now_ms + 2000)
        await billing.settle(
            [
                Settled(one.sequence, Verdict.LATER, later),
                Settled(other.sequence, Verdict.REFUSED, b"no"),
            ]
        )
        await server.master.dead_letters.until_read()
        await server.master.dead_letters.requeue(server.master.dead_letters.listed())
        await until(lambda: len(billing.delivered) == 27)
        for peer in (billing, shipping):
            assert await peer.done(peer.sequences[2 * (peer is billing) :]) == 0
        await until(lambda: not pending(server))
    for path, data in world.disk.contents().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    manifest = read_manifest(world.disk, now_ms=world.now_ms)
    plan = make_plan([Source(manifest, str(tmp_path))], Request(grace_ms=0))
    result = reconcile(plan, local_engine(1), lambda _: None)
    assert (result.findings.total(), result.problems) == (0, [])
    totals = result.groups[0].account.totals
    assert (totals["accepted"], totals["copies"], totals["retries"]) == (len(items), 40, 2)
    # Each original and what was put off has moved; what was refused is dead; the rest is delivered.
    assert (totals["moved"], totals["dead"], totals["delivered"]) == (21, 1, 45)
    by_subject = {row["subject"]: row for row in report(result)["groups"][0]["by_subject"]}
    assert by_subject["%RETRY%orders%billing"]["accepted"] == 5
    assert by_subject["%RETRY%orders%billing"]["copies"] == 20
    assert by_subject["%RETRY%orders%billing"]["retries"] == 2
    assert "accepted" not in by_subject["%RETRY%orders%shipping"]


async def test_what_one_name_holds_is_taken_back_when_another_joins() -> None:
    async with (
        received_by("billing") as (world, server),
        receiver(world, "billing", items=10) as billing,
        receiver(world, "shipping") as shipping,
    ):
        items = await send(world, 500)
        await until(lambda: len(billing.delivered) == 10)
        await world.meta.reroute(SUBJECT, "billing", "shipping")
        await until(lambda: len(shipping.delivered) == 490)
        # What the first had goes to the second no more; what it puts off stays its own.
        held = [one for _, one in billing.delivered]
        await billing.settle(
            Settled(one.sequence, Verdict.LATER, later_item(one.item, world.now_ms + 1000))
            for one in held
        )
        await billing.flow(10_000)
        await until(lambda: len(billing.delivered) == 510)
        await trio.sleep(5)
        assert set(came(shipping)) == set(items) - {one.item for one in held}
        assert set(came(billing)) >= set(items) - {one.item for one in held}
        await billing.done(billing.sequences)
        await shipping.done(shipping.sequences)
        await until(lambda: not pending(server))


async def test_what_a_name_put_off_or_refused_is_its_own_when_another_joins() -> None:
    async with (
        received_by("billing") as (world, server),
        receiver(world, "billing") as billing,
        receiver(world, "shipping") as shipping,
    ):
        await send(world, 2)
        await until(lambda: len(billing.delivered) == 2)
        one, other = [one for _, one in billing.delivered]
        later = later_item(one.item, world.now_ms + 2000)
        await billing.settle(
            [
                Settled(one.sequence, Verdict.LATER, later),
                Settled(other.sequence, Verdict.REFUSED, b"no"),
            ]
        )
        await world.meta.reroute(SUBJECT, "billing", "shipping")
        await server.master.dead_letters.until_read()
        await server.master.dead_letters.requeue(server.master.dead_letters.listed())
        await until(lambda: len(billing.delivered) == 4)
        await trio.sleep(5)
        assert shipping.delivered == []


async def test_a_route_that_is_single_again_leaves_what_was_copied_to_its_names() -> None:
    async with received_by("billing", "shipping") as (world, server):
        items = await send(world, 50)
        await until(lambda: server.master.copier.copied == 100)
        await world.meta.reroute(SUBJECT, "billing")
        more = await send(world, 5, name="more")
        async with receiver(world, "billing") as billing:
            await until_all_came([*items, *more], billing)
            await world.meta.reroute(SUBJECT, "billing", "shipping")
            async with receiver(world, "shipping") as shipping:
                await until_all_came(items, shipping)


async def test_what_waits_for_a_name_and_what_it_says_is_counted_by_name() -> None:
    async with received_by("billing", "shipping") as (world, server):

        def figure(what: str, name: str) -> float:
            return figures_of(server)[f'{what}{{target="{name}"}}']

        await send(world, 30)
        await until(lambda: server.master.copier.copied == 60)
        await trio.sleep(1)
        for name in ("billing", "shipping"):
            assert (figure("receiver_waiting", name), figure("sender_up", name)) == (30, 0)
        async with receiver(world, "billing") as billing:
            await until(lambda: len(billing.delivered) == 30)
            one, other, *_ = [one for _, one in billing.delivered]
            later = later_item(one.item, world.now_ms + 60_000)
            await billing.settle(
                [
                    Settled(one.sequence, Verdict.LATER, later),
                    Settled(other.sequence, Verdict.REFUSED, b"no"),
                ]
            )
            assert (figure("sender_up", "billing"), figure("receiver_waiting", "billing")) == (1, 0)
            await billing.done(billing.sequences[2:])
            for what in ("receiver_later_total", "sender_refused_total"):
                assert (figure(what, "billing"), figure(what, "shipping")) == (1, 0)
        assert figure("receiver_waiting", "shipping") == 30
        about = await explain_subject(server.administered().parts(), SUBJECT)
        assert (about["reason"], about["held"] + about["left_on_disk"]) == ("group_down", 30)
        assert "shipping" in about["groups"]
        assert "nobody is attached to shipping since" in "; ".join(about["receivers"])


async def test_nothing_is_copied_for_names_that_are_gone_and_nothing_is_lost() -> None:
    async with received_by("billing", "shipping") as (world, server):
        server.master.copier.names_of = lambda _: []
        items = await send(world, 20)
        await trio.sleep(3)
        assert (server.master.copier.copied, pending(server)) == (0, 20)
        server.master.copier.names_of = lambda _: ["billing"]
        async with receiver(world, "billing") as billing:
            await until_all_came(items, billing)


def test_whatever_part_of_a_commit_is_kept_the_message_is_there_or_all_copies_are() -> None:
    items = [make_item(f"m{number}", 1000) for number in range(3)]
    entries = np.zeros(3, ENTRY)
    entries["sequence"], entries["size"] = [5, 6, 7], list(map(len, items))
    sizes = np.array(entries["size"], np.int64)
    found = Items(memoryview(b"".join(items)), sizes)
    drafts = copies_of(entries, found, [(b"a", b"b", b"c")] * 3)
    counts: Counter[bytes] = Counter()
    for number, draft in enumerate(drafts, 1):
        counts.update(draft.names[one] for one in draft.arrays["subject"].tolist())
        assert b"".join(draft.blob) == b"".join(items) * (draft.count // 3)
        assert draft.features == COPIES
        is_settled = draft.kind is RecordKind.MOVE
        assert is_settled == (number == len(drafts))
        if is_settled:
            assert draft.arrays["old_sequence"].tolist() == [5, 6, 7]
            assert counts == {b"a": 3, b"b": 3, b"c": 3}


async def test_one_commit_copies_what_waits_of_all_subjects_however_it_came() -> None:
    async with (
        received_by("billing", "shipping") as (world, server),
        receiver(world, "billing") as billing,
        receiver(world, "shipping") as shipping,
    ):
        copier, committer = server.master.copier, server.master.committer
        take, submit = copier.take, committer.submit
        came_in_parts: list[Entries] = []
        commits: list[bool] = []
        copier.take = came_in_parts.append  # type: ignore[method-assign, assignment]
        items = []
        for number in range(40):
            subject = f"orders.{number % 4}"
            items += await send(world, 3, after_ms=10_000, subject=subject, name=f"{number}.")
        await until(lambda: sum(map(len, came_in_parts)) == len(items))

        def counted(*work: Any, **how: Any) -> None:  # noqa: ANN401 (as it was called)
            commits.append(how.get("has_items", True))
            submit(*work, **how)

        committer.submit = counted  # type: ignore[method-assign]
        copier.take = take  # type: ignore[method-assign]
        for entries in came_in_parts:
            copier.take(entries)
        await until(lambda: copier.copied == 2 * len(items))
        assert commits == [False]
        await until_all_came(items, billing, shipping)


class Noted:
    """Stands for a committer and the budget of its disk: notes the size of each commit."""

    def __init__(self) -> None:
        self.commits: list[tuple[int, int]] = []
        """Records of each, and bytes of their items."""

    async def commit_records(
        self,
        *drafts: Draft,
        **_: Any,  # noqa: ANN401 (they do not matter here)
    ) -> bool:
        size = sum(draft.blob_bytes for draft in drafts)
        self.commits.append((sum(draft.count for draft in drafts), size))
        await trio.lowlevel.checkpoint()
        return True

    def has_room_below(self, rows: int, blob_bytes: int) -> bool:
        return bool(rows and blob_bytes)

    def spend(self, blob_bytes: int) -> None:
        pass


@pytest.mark.parametrize(("count", "more_bytes"), [(1200, 0), (100, 20_000)])
async def test_others_wait_for_few_copies_at_a_time_however_many_names_there_are(
    count: int, more_bytes: int
) -> None:
    noted, item = Noted(), make_item("m", 1000, attributes={"a": "x" * more_bytes})
    entries = np.zeros(count, ENTRY)
    entries["sequence"], entries["size"] = np.arange(count), len(item)
    copier = Copier(
        committer=cast("Any", noted),
        budget=cast("Any", noted),
        unfiled=UnfiledRecords(Outcome.MOVED, lambda _: None),
        read_items=lambda part: (
            Items(memoryview(item * len(part)), part["size"].astype(np.int64)),
            None,
        ),
        subject_name=lambda _: SUBJECT.encode(),
        names_of=lambda _: [f"name{number}" for number in range(16)],
        give_back=lambda _: None,
        on_damaged=lambda _: None,
        on_changed=lambda: None,
    )
    copier.take(entries)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(copier.run)
        await until(lambda: copier.copied == 16 * count)
        nursery.cancel_scope.cancel()
    records, sizes = zip(*noted.commits, strict=True)
    assert sum(records) == 16 * count
    assert max(records) <= 512 * 16
    assert max(sizes) <= 2 * 1024 * 1024


NAMES = ("billing", "shipping", "audit")
STEPS = 25


SETTLED_MS = 300
"""So long after a change of the names, or before one, it is not certain who gets a message."""


class Walk:
    """Messages to a subject whose names change, through kills of the server.

    What was kept while several names had the subject is owed to each of them, whatever changes
    before it is due, since it is loaded at once; everything is owed to somebody.
    """

    def __init__(self, world: RouteWorld, seed: int) -> None:
        self.world, self.chance = world, random.Random(seed)
        self.names: set[str] = set()
        self.changed_ms = 0
        self.kept: set[str] = set()
        self.fresh: list[tuple[int, int, set[str]]] = []
        """When it was sent, when it was kept, and what it was, since the latest change."""
        self.owed: dict[str, set[str]] = {name: set() for name in NAMES}
        self.got: dict[str, set[str]] = {name: set() for name in NAMES}
        self.done: dict[str, set[str]] = {name: set() for name in NAMES}
        self.wrong: list[str] = []

    async def reroute(self, *names: str) -> None:
        """Set other names that receive the subject: one at the least."""
        self.changes()
        self.names = set(names) or {*self.chance.sample(NAMES, self.chance.choice([1, 2, 2, 3]))}
        await self.world.meta.reroute(SUBJECT, *sorted(self.names))

    def changes(self) -> None:
        """Note what is owed by now: the names are others soon, or the server is killed."""
        now_ms = self.world.now_ms
        for sent_ms, kept_ms, ids in self.fresh:
            is_settled = sent_ms > self.changed_ms + SETTLED_MS and kept_ms < now_ms - SETTLED_MS
            for name in self.names if is_settled and len(self.names) > 1 else ():
                self.owed[name] |= ids
        self.fresh, self.changed_ms = [], now_ms

    async def send(self) -> None:
        """Send some messages, due soon or in a while."""
        count, after_ms = self.chance.randint(1, 30), self.chance.choice([50, 500, 3000, 20_000])
        name, sent_ms = f"m{self.world.now_ms}.", self.world.now_ms
        with suppress(trio.BrokenResourceError, OSError, AssertionError):
            await send(self.world, count, after_ms=after_ms, name=name)
            ids = {f"{name}{number}" for number in range(count)}
            self.kept |= ids
            self.fresh.append((sent_ms, self.world.now_ms, ids))

    def arrived(self, name: str, delivered: Delivered) -> Settled:
        """Note what came; return the verdict."""
        item = decode_item(delivered.item)
        message_id = item.message_id
        if item.due_ms > self.world.now_ms:
            self.wrong.append(f"{message_id} came to {name} early")
        if message_id in self.done[name]:
            self.wrong.append(f"{message_id} came to {name} after its DONE was answered")
        self.got[name].add(message_id)
        if self.chance.random() < 0.2 and "qmq_times" not in item.attributes:
            again = later_item(delivered.item, self.world.now_ms + self.chance.choice([0, 700]))
            return Settled(delivered.sequence, Verdict.LATER, again)
        return Settled(delivered.sequence, Verdict.DONE)

    async def receive(self, name: str, seconds: float) -> None:
        """Receive under a name for a while."""
        with suppress(trio.BrokenResourceError, OSError):
            async with receiver(self.world, name, 50) as peer:
                taken, until_s = 0, trio.current_time() + seconds
                while trio.current_time() < until_s and not peer.is_closed:
                    new = [one for _, one in peer.delivered[taken:]]
                    taken += len(new)
                    if new:
                        verdicts = [self.arrived(name, one) for one in new]
                        await peer.settle(verdicts)
                        self.done[name] |= {
                            decode_item(one.item).message_id
                            for one, verdict in zip(new, verdicts, strict=True)
                            if verdict.verdict is Verdict.DONE
                        }
                    await trio.sleep(0.02)

    async def live(self, steps: int) -> None:
        """Do this and that while the server runs."""
        async with trio.open_nursery() as nursery:
            for _ in range(steps):
                act = self.chance.random()
                if act < 0.5:
                    await self.send()
                elif act < 0.65:
                    await self.reroute()
                elif act < 0.9:
                    seconds = self.chance.uniform(0.2, 3)
                    nursery.start_soon(self.receive, self.chance.choice(NAMES), seconds)
                await trio.sleep(self.chance.expovariate(2))
            nursery.cancel_scope.cancel()


@each_seed(60, quick=6)
async def test_whatever_comes_between_each_name_gets_what_was_loaded_while_it_was_one(
    seed: int,
) -> None:
    world = RouteWorld(1, seed=seed)
    world.meta.masters |= dict.fromkeys(NAMES, "")
    walk = Walk(world, seed)
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: world.meta.run(task_status=task_status))
        world.meta.rest = NAMES[:1]
        await walk.reroute()
        for _ in range(walk.chance.randint(1, 3)):
            server = world.server(routed_config())
            async with trio.open_nursery() as life:
                await life.start(
                    lambda task_status, server=server: serve(
                        server, trio.Event(), task_status=task_status
                    )
                )
                await walk.live(STEPS)
                walk.changes()
                life.cancel_scope.cancel()
        async with world.serving(routed_config(), has_broker=False) as server:
            # Copies for names that are none any more wait for their name.
            await walk.reroute(*NAMES)
            async with trio.open_nursery() as receiving:
                for name in NAMES:
                    receiving.start_soon(walk.receive, name, 40)
            await until(lambda: not pending(server))
        world.meta.kill()
        nursery.cancel_scope.cancel()
    assert walk.wrong == []
    assert walk.kept <= set().union(*walk.got.values())
    for name in NAMES:
        assert walk.owed[name] <= walk.got[name], name
