"""Whatever befalls a sender, at each moment it has what has no outcome, and in the end nothing.

Drawn at random: routes, weights of lanes, rules of groups, groups that come, go and move, brokers
that fail in every way, what is withdrawn, pauses. The clock is not touched.
"""

import random
from collections.abc import Awaitable, Callable

import numpy as np
import trio

from sender.groups.group_rules import GroupRule
from sender.settings.config import SenderConfig
from tests.brokers import Received
from tests.seeds import each_seed
from tests.sender.broker_rig import Reply, Rig, TableRoutes, refuse, rig_of, take_all

LANES = 6
SUBJECTS = 12


class Walk:
    """One world, and what may happen in it."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.count = chance.choice([1, 2, 3, 4])
        self.names = [f"g-b{number}" for number in range(self.count)]
        self.routes = TableRoutes({lane: self._some_groups() for lane in range(LANES)})
        self.routes.lanes = np.array([chance.randrange(LANES) for _ in range(64)], np.int32)
        self.withdrawn: list[int] = []
        self.rig: Rig
        self.config = SenderConfig(
            batch_items=chance.choice([1, 5, 50]),
            batch_bytes=chance.choice([200, 1000, 1 << 18]),
            turn_items=chance.choice([1, 10, 256]),
            in_flight_requests_max=chance.choice([1, 4]),
            in_flight_bytes_max=chance.choice([300, 5000, 1 << 22]),
            queue_items_max=chance.choice([10, 8192]),
            heartbeat_s=chance.choice([1, 15]),
            retry_base_s=0.05,
            retry_max_s=0.5,
            refused_base_s=0.1,
            refused_max_s=1,
            reconnect_base_s=0.05,
            reconnect_max_s=0.5,
        )
        self.steps: list[Callable[[], Awaitable[None] | None]] = [
            *[self.offer] * 4,
            self.move_subject,
            self.change_route,
            self.set_group_rules,
            self.set_groups,
            self.withdraw,
            self.trouble_brokers,
            self.hang_up,
            self.pause_or_resume,
        ]

    def _some_groups(self) -> list[str]:
        least = 0 if self.chance.random() < 0.2 else 1
        return self.chance.sample(self.names, self.chance.randint(least, self.count))

    def offer(self) -> None:
        """Offer messages of one subject, or of all of them."""
        chance, rig = self.chance, self.rig
        count = chance.choice([1, 3, 30, 300])
        dues_ms = [rig.wall.now_ms()] * count
        entries = rig.store.add(dues_ms, size=chance.choice([20, 20, 400]))
        rig.dues_ms += dues_ms
        subject, is_one = chance.randrange(SUBJECTS), chance.random() < 0.5
        entries["subject"] = [subject if is_one else chance.randrange(SUBJECTS) for _ in dues_ms]
        late = chance.random() < 0.5
        lanes = self.routes.lanes[entries["subject"]]
        for lane in np.unique(lanes).tolist():
            rig.sender.offer(entries[lanes == lane], lane=lane, late=late)
        if chance.random() < 0.5:
            rig.sender.hand_out()

    def move_subject(self) -> None:
        """Have a subject belong in another lane."""
        subject = self.chance.randrange(SUBJECTS)
        before = int(self.routes.lanes[subject])
        self.routes.lanes[subject] = self.chance.randrange(LANES)
        self.rig.sender.routes_changed({before})

    def change_route(self) -> None:
        """Have a lane lead elsewhere."""
        lane = self.chance.randrange(LANES)
        self.routes.groups[lane] = self._some_groups()
        self.rig.sender.routes_changed({lane})

    def set_group_rules(self) -> None:
        """Pause and limit some groups, and open all others."""
        chance = self.chance
        self.rig.sender.set_group_rules(
            {
                name: GroupRule(
                    paused=chance.random() < 0.3, rate_per_s=chance.choice([None, 5, 50, 1e6])
                )
                for name in self.names
                if chance.random() < 0.5
            }
        )

    def set_groups(self) -> None:
        """Have groups go, come and move."""
        chance, count = self.chance, self.count
        present = chance.sample(range(count), chance.randint(0, count))
        places = {
            number: chance.choice([number, number, chance.randrange(count)]) for number in present
        }
        self.rig.sender.set_groups([self.rig.group(number, at=at) for number, at in places.items()])

    def withdraw(self) -> None:
        """Take back what there is of a subject."""
        subject = self.chance.randrange(SUBJECTS)
        sender = self.rig.sender
        found = [
            entries
            for lane in range(LANES)
            for entries in sender.withdraw(lane, lambda entries: entries["subject"] == subject)
        ]
        self.withdrawn += [
            sequence for entries in found for sequence in entries["sequence"].tolist()
        ]

    def trouble_brokers(self) -> None:
        """Have brokers answer as they like from now on, or not be there."""
        for broker in self.rig.brokers:
            broker.script = self._flaky(self.chance.choice([0, 0.2, 0.9]))
            broker.is_refusing = self.chance.random() < 0.2
            broker.is_unreachable = self.chance.random() < 0.1

    def _flaky(self, share: float) -> Callable[[Received], Reply]:
        chance = self.chance

        def script(request: Received) -> Reply:
            if chance.random() >= share:
                return Reply(delay_s=chance.choice([0, 0, 0.01, 0.3]))
            refused = [one for one in request.ids if chance.random() < 0.6]
            return chance.choice(
                [
                    Reply(times=0),
                    Reply(cut=3),
                    Reply(code=51),
                    Reply(delay_s=chance.random() * 6),
                    refuse(chance.choice([1, 2, 3, 4, 5, 99]), *refused),
                ]
            )

        return script

    async def hang_up(self) -> None:
        """Have a broker end its connections."""
        await self.chance.choice(self.rig.brokers).hang_up()

    def pause_or_resume(self) -> None:
        """Have the sender send nothing, or go on."""
        (self.rig.sender.pause if self.chance.random() < 0.3 else self.rig.sender.resume)()

    def check(self) -> None:
        """Each message is held, or has an outcome, or was withdrawn."""
        rig = self.rig
        held = sum(map(len, rig.sender.held()))
        assert held == rig.sender.unsent().total
        assert held + len(rig.facts) + len(rig.dead) + len(self.withdrawn) == rig.offered

    def make_well(self) -> None:
        """Have all be as it should be."""
        rig = self.rig
        for broker in rig.brokers:
            broker.script = take_all
            broker.is_refusing = broker.is_unreachable = False
        rig.sender.resume()
        rig.sender.set_group_rules({})
        for lane in range(LANES):
            self.routes.groups[lane] = self._some_groups() or self.names
        rig.sender.routes_changed(set(range(LANES)))
        rig.sender.set_groups([rig.group(number) for number in range(self.count)])


@each_seed(15, quick=5)
async def test_nothing_is_forgotten_and_all_of_it_leaves_in_the_end(seed: int) -> None:
    walk = Walk(seed)
    async with rig_of(walk.count, config=walk.config, routes=walk.routes, seed=seed) as rig:
        walk.rig = rig
        rig.sender.gives_up = True
        for _ in range(walk.chance.randint(20, 80)):
            if (ended := walk.chance.choice(walk.steps)()) is not None:
                await ended
            await trio.sleep(walk.chance.choice([0, 0, 0.001, 0.05, 0.3, 2]))
            walk.check()
        walk.make_well()
        await trio.sleep(60)
        walk.check()
        assert rig.sender.unsent().total == 0
        left = [fact.sequence for fact in rig.facts] + [*rig.dead] + walk.withdrawn
        assert sorted(left) == list(range(rig.offered))
