"""Whatever brokers, routes and operators do at random, each entry has one outcome in the end."""

import random

import trio
from trio.testing import MockClock

from delay_protocol.basics.codes import ItemCode, ResponseCode
from sender.groups.group_rules import GroupRule
from sender.settings.config import SenderConfig
from tests.seeds import each_seed
from tests.sender import broker_rig


def draw_config(chance: random.Random) -> SenderConfig:
    return SenderConfig(
        batch_items=chance.choice([1, 4, 64]),
        turn_items=chance.choice([1, 16, 256]),
        trial_items=chance.choice([1, 1, 2, 5]),
        in_flight_requests_max=chance.choice([1, 4, 8]),
        request_timeout_s=chance.choice([1, 2, 5]),
        batch_bytes=chance.choice([300, 2000, 256 * 1024]),
        in_flight_bytes_max=chance.choice([500, 4000, 4 * 1024 * 1024]),
        retry_max_s=2,
        refused_max_s=2,
        queue_items_max=chance.choice([8, 8192]),
        heartbeat_s=chance.choice([0.5, 15]),
    )


def draw_script(chance: random.Random, timeout_s: float) -> broker_rig.Script:
    silent = broker_rig.Reply(times=0)

    def often(reply: broker_rig.Reply, otherwise: broker_rig.Reply) -> broker_rig.Reply:
        return reply if chance.random() < 0.3 else otherwise

    scripts: list[broker_rig.Script] = [
        broker_rig.take_all,
        broker_rig.stay_silent,
        lambda _request: broker_rig.Reply(delay_s=timeout_s * 0.98),
        lambda _request: broker_rig.Reply(delay_s=chance.uniform(0, timeout_s * 1.3)),
        lambda _request: often(silent, broker_rig.Reply()),
        lambda _request: often(
            broker_rig.Reply(code=ResponseCode.BROKER_REJECT),
            broker_rig.Reply(delay_s=timeout_s * 0.7),
        ),
        lambda _request: often(
            broker_rig.Reply(code=ResponseCode.BROKER_ERROR),
            broker_rig.Reply(delay_s=timeout_s * 0.9),
        ),
        lambda _request: often(broker_rig.Reply(raw=b"HTTP/1.1 400 Bad Request\r\n\r\n"), silent),
        lambda request: often(broker_rig.refuse(ItemCode.BROKER_READ_ONLY, *request.ids), silent),
    ]
    return chance.choice(scripts)


class Storm:
    """What happens to one sender with a few groups."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.seed = seed
        self.config = draw_config(self.chance)
        self.brokers = self.chance.choice([1, 2, 2, 3, 4])
        self.names = [f"g-b{number}" for number in range(self.brokers)]
        self.routes: broker_rig.TableRoutes | None = None
        if self.chance.random() < 0.5:
            few = self.chance.sample(self.names, self.chance.randint(1, self.brokers))
            self.routes = broker_rig.TableRoutes({0: self.names, 1: self.names[:1], 2: few})

    async def rage(self) -> None:
        async with broker_rig.rig_of(
            self.brokers, config=self.config, routes=self.routes, seed=self.seed
        ) as rig:
            for _ in range(150):
                for _ in range(self.chance.randint(1, 3)):
                    self.offer(rig)
                self.strike(rig)
                for _ in range(5):
                    await trio.sleep(self.chance.choice([0.001, 0.02, 0.1]))
                    self.check(rig)
            for broker in rig.brokers:
                broker.script, broker.is_refusing = broker_rig.take_all, False
            rig.sender.set_group_rules({})
            rig.sender.resume()
            if self.routes is not None:
                rig.sender.set_groups([rig.group(number) for number in range(self.brokers)])
            await trio.sleep(200)
            rig.assert_all_settled()
            assert all(status.in_flight_bytes == 0 for status in rig.sender.status())

    def offer(self, rig: broker_rig.Rig) -> None:
        lane = 0 if self.routes is None else self.chance.randrange(3)
        size = self.chance.choice([5, 5, 400, 3000])
        rig.offer(self.chance.choice([1, 3, 10]), size=size, lane=lane, subject=lane)

    def strike(self, rig: broker_rig.Rig) -> None:
        chance = self.chance
        if chance.random() < 0.1:
            script = draw_script(chance, self.config.request_timeout_s)
            chance.choice(rig.brokers).script = script
        if chance.random() < 0.02:
            broker = chance.choice(rig.brokers)
            broker.is_refusing = not broker.is_refusing
        if self.routes is not None and chance.random() < 0.02:
            some = chance.sample(range(self.brokers), chance.randint(1, self.brokers))
            rig.sender.set_groups([rig.group(number) for number in some])
        if chance.random() < 0.02:
            gate = GroupRule(
                paused=chance.random() < 0.5, rate_per_s=chance.choice([None, 5.0, 100.0])
            )
            rig.sender.set_group_rules({chance.choice(self.names): gate})
        if chance.random() < 0.02:
            rig.sender.pause()
        elif rig.sender.is_paused and chance.random() < 0.3:
            rig.sender.resume()

    def check(self, rig: broker_rig.Rig) -> None:
        config = self.config
        for status in rig.sender.status():
            assert status.in_flight <= config.batch_items * config.in_flight_requests_max


@each_seed(12, quick=4)
def test_whatever_happens_each_entry_has_one_outcome(seed: int) -> None:
    trio.run(Storm(seed).rage, clock=MockClock(autojump_threshold=0))
