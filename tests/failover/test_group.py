"""Three delay servers and a meta server: kept on every disk, and any of them takes over."""

import re
from collections.abc import Callable
from unittest import mock

import trio
from structlog.testing import capture_logs

from delaywheel.shared.failures import ExitCode, failure_of
from replication.core.follower import CutRefusedError
from storage.disk.errors import StorageFullError
from storage.logs.log_tail import LogTail
from storage.readers.manifest import read_manifest
from tests.delay_server.server_rig import HOST, Producer, make_item
from tests.failover.group_rig import GROUP, Group, Machine
from tests.storage.small_logs import disk_of


async def _in_order(group: Group, *, sent: int) -> tuple[Machine, Machine, Machine]:
    """Have all in sync, and messages acknowledged; return the master and its two slaves."""
    await group.until_in_sync("a", "b", "c")
    await group.send(sent)
    master = group.master()
    assert master is not None
    one, other = (machine for machine in group.machines.values() if machine is not master)
    return master, one, other


async def test_what_is_due_is_delivered_by_the_next_master_too() -> None:
    """Replicated schedules: nats-server 8423."""
    group = Group()
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        ids = await group.send(10, in_s=20.0)
        master = group.master()
        assert master is not None
        await master.kill()
        master.start()
        await group.until(lambda: set(ids) <= set(group.delivered()), seconds=120)
        for delivery in group.world.broker.deliveries:
            assert delivery.at_ms >= delivery.due_ms


async def test_the_tail_that_no_other_disk_has_is_cut() -> None:
    group = Group()
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        await group.send(3)
        master = group.master()
        assert master is not None
        others = [one for one in group.machines.values() if one is not master]
        for other in others:
            await other.kill()
        # It appends for as long as the others count as in sync, and nobody gets an answer.
        with trio.move_on_after(0.4):
            await group.send(4)
        await master.kill()
        for other in others:
            other.start()
        # They elect one of themselves, before the old master is there again.
        await group.until(lambda: (found := group.master()) is not None and found is not master)
        starts = master.incarnation()
        with capture_logs() as logs:
            master.start()
            await group.until_in_sync("a", "b", "c", seconds=120)
        [cut] = [log for log in logs if log["event"].startswith("cut the end of the message_log")]
        assert cut["epoch"] == 1
        assert 0 < cut["records"] == cut["last"] - cut["first"] + 1
        await group.send(2)
        await group.until(lambda: {one.messages() for one in group.machines.values()} == {5})
        # Its start, and one more when the log was cut.
        assert master.incarnation() == starts + 2


async def test_what_is_committed_is_not_cut_for_a_master_on_an_older_copy_of_a_disk() -> None:
    group = Group()
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        first = await group.until_master("a", "b", "c")
        old, other = (one for one in group.machines.values() if one is not first)
        # Nobody tells the meta server how far that disk has got, which somebody sets back.
        group.meta.kill()
        copy = old.node.disk.contents()
        await group.send(5)
        await group.until(lambda: other.opened.store.checkpoint.sequence >= 6)
        for machine in group.machines.values():
            await machine.kill()
        old.node.disk = disk_of(copy)
        await group.start_meta()
        await group.elect()
        await trio.sleep(1)
        changes = group.meta_server.handlers.group_changes
        await group.until(lambda: changes.sentence_of(GROUP) == "waits for votes of a, b, c")
        old.start()
        await group.until_master(old.name)
        other.expected = (CutRefusedError,)
        other.start()
        await other.ended.wait()
        error = other.errors.pop()
        assert isinstance(error, Exception)
        failure = failure_of(error)
        assert failure is not None
        assert failure.exit_code == ExitCode.LOGS
        assert "nothing was cut. Keep this directory" in failure.message
        left = read_manifest(disk_of(other.node.disk.contents()), now_ms=group.world.now_ms)
        assert left.log_next_sequence == 7


async def test_a_master_that_is_cut_off_sends_nothing_and_another_one_takes_over() -> None:
    """An isolated old master: what one had acknowledged was lost (rocketmq 7017)."""
    group = Group()
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        ids = await group.send(1, in_s=20.0)
        master = group.master()
        assert master is not None
        others = [name for name in group.machines if name != master.name]
        for name in (*others, "meta"):
            group.world.network.block(master.name, name)
            group.world.network.block(name, master.name)
        began_s = trio.current_time()
        await group.until_master(*others)
        assert trio.current_time() - began_s < 5
        await trio.sleep(20)
        assert master.opened.leading is not None
        assert group.delivered() == ids
        # Nobody hears from it that a message is kept.
        stream = await group.clients.connect(HOST, master.port)
        late = [make_item("late", group.world.now_ms + 1000)]
        with trio.move_on_after(20):
            assert await Producer(stream).send(*late) != {}
        group.world.network.heal()
        await group.until_in_sync("a", "b", "c")
        await trio.sleep(5)
        assert group.delivered() == ids


async def test_a_master_that_hands_over_says_at_once_who_takes_messages_now() -> None:
    group = Group()
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        first = group.master()
        assert first is not None
        for old, new in ((first, "b" if first.name != "b" else "a"), (None, first.name)):
            master = old or group.master()
            assert master is not None
            async with trio.open_nursery() as nursery:
                nursery.start_soon(group.hand_over, new)
                assert await _first_refusal(group, master) == new
            [third] = {"a", "b", "c"} - {master.name, new}
            with trio.fail_after(1.0):
                while await _first_refusal(group, group[third]) != new:  # noqa: ASYNC110 (nobody can tell)
                    await trio.sleep(0.01)


async def _first_refusal(group: Group, machine: Machine) -> str:
    """Send to a node until it refuses, each time within a second; return the master it names."""
    producer = Producer(await group.clients.connect(HOST, machine.port))
    for number in range(1000):
        with trio.fail_after(1.0):
            item = make_item(f"{machine.name}{number}", group.world.now_ms + 3_600_000)
            answer = await producer.answer(await producer.post(item))
        if answer.body:
            await trio.aclose_forcefully(producer.stream)
            assert answer.code == 51, answer.body
            named = re.search(rb"the master of this group is (\w+) at ", answer.body)
            assert named is not None, answer.body
            return named[1].decode()
        await trio.sleep(0.01)
    raise AssertionError(f"{machine.name} refused nothing")


async def test_an_empty_disk_in_the_place_of_one_in_sync_is_not_in_sync() -> None:
    group = Group()
    async with group.running():
        master, wiped, left = await _in_order(group, sent=5)
        wiped.is_supervised = True
        # Before it can be dropped.
        await master.kill()
        await wiped.kill()
        wiped.wipe()
        wiped.start()
        network = group.world.network
        for link in ((left.name, "meta"), ("meta", left.name)):
            network.block(*link)
        await group.until(
            lambda: wiped.server and wiped.server.is_open and wiped.replica.record is not None
        )
        await group.elect()
        await trio.sleep(6)
        network.heal()
        assert await group.until_master(left.name, wiped.name) is left
        await group.until_in_sync(left.name, wiped.name)
        await group.until(lambda: wiped.messages() == 5)


async def test_a_slave_files_what_is_committed_and_nothing_else() -> None:
    group = Group()
    async with group.running():
        master, deaf, other = await _in_order(group, sent=3)
        await group.until(lambda: other.opened.store.schedule.last_filed >= 4)
        filed = other.opened.store.schedule.last_filed
        # The master hears no acknowledgement of one of them, so it commits nothing for a while.
        group.world.network.block(deaf.name, master.name)
        with trio.move_on_after(1.0):
            await group.send(2)
        assert other.messages() == 5
        assert other.opened.store.schedule.last_filed == filed
        # Nor does it count for whoever reads the directory.
        for machine in (master, other):
            manifest = read_manifest(machine.node.disk, now_ms=group.world.now_ms)
            assert manifest.log_next_sequence <= filed + 1 < manifest.durable_next_sequence
        group.world.network.heal()
        await group.until(lambda: other.opened.store.schedule.last_filed >= filed + 2)


async def test_a_slave_files_up_to_a_commit_between_two_batches_that_came_at_once() -> None:
    group = Group()
    async with group.running():
        master, deaf, other = await _in_order(group, sent=3)
        network = group.world.network
        # Both messages come to one slave at once; the other one acknowledges the first alone.
        network.block(master.name, other.name)
        with trio.move_on_after(0.2):
            await group.send(1)
        network.block(deaf.name, master.name)
        with trio.move_on_after(0.2):
            await group.send(1)
        network.unblock(master.name, other.name)
        await trio.sleep(0.5)
        point = other.opened.commit_point
        assert point.committed < point.durable
        assert other.messages() == 5
        assert other.opened.store.schedule.last_filed == point.committed - 1
        # So it can be the master, though nobody commits anything more.
        for link in ((deaf.name, "meta"), ("meta", deaf.name)):
            network.block(*link)
        await master.kill()
        await group.elect()
        assert await group.until_master(deaf.name, other.name) is other
        await group.send(1)


async def test_a_slave_that_was_cut_while_it_ran_files_what_its_new_master_has() -> None:
    group = Group()
    async with group.running():
        master, ahead, behind = await _in_order(group, sent=3)
        network = group.world.network
        for one, other in ((ahead, master), (master, behind), (behind, master)):
            network.block(one.name, other.name)
        with trio.move_on_after(1.0):
            await group.send(2)
        assert (ahead.messages(), behind.messages()) == (5, 3)
        for link in ((ahead.name, "meta"), ("meta", ahead.name)):
            network.block(*link)
        await master.kill()
        await group.elect()
        await group.until_master(behind.name)
        await group.send(4)
        network.heal()
        await group.until_in_sync(ahead.name, behind.name)
        filed = behind.opened.store.schedule.last_filed
        await group.until(lambda: ahead.opened.store.schedule.last_filed >= filed)
        assert [one.messages() for one in (ahead, behind)] == [7, 7]
        assert [one.opened.store.schedule.pending for one in (ahead, behind)] == [7, 7]


async def test_a_slave_acknowledges_what_is_durable_on_its_disk() -> None:
    group = Group()
    async with group.running():
        _, slave, _ = await _in_order(group, sent=3)
        executor, log = slave.opened._runtime.executor, slave.opened.store.message_log
        run, slow_s = executor.run, 1.0

        async def run_slowly(worker: str, work: Callable[..., object], *on: object) -> object:
            if work == log.append_copied:
                await trio.sleep(slow_s)
            return await run(worker, work, *on)

        with mock.patch.object(executor, "run", run_slowly):
            began = trio.current_time()
            await group.send(1)
        assert trio.current_time() - began >= slow_s
        assert slave.name in group.record.in_sync


async def test_a_master_that_takes_back_what_slaves_have_is_the_master_no_more() -> None:
    group = Group()
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        await group.send(3)
        master = group.master()
        assert master is not None
        tail, epoch = master.opened.store.message_log._tail, group.record.epoch
        sync, full = LogTail.sync, [True]

        def sync_or_not(one: LogTail) -> None:
            if one is tail and full:
                full.pop()
                raise StorageFullError("none is left for what was written")
            sync(one)

        with mock.patch.object(LogTail, "sync", sync_or_not):
            await group.send(2)
        assert not full
        await group.until_in_sync("a", "b", "c")
        assert group.record.epoch > epoch
        await group.send(2)
        logs = [[one.header.crc for one in each.batches()] for each in group.machines.values()]
        assert logs[0] == logs[1] == logs[2]
