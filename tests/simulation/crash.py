"""A node that can die at any instant and live again.

`SimNode.live` runs one life of a node's program. A death (a trap in the disk, a call of `crash`, a
step drawn beforehand) first cuts the disk, the network and the executor, and only then cancels the
program: its `finally` blocks run against dead handles and cannot save what a real crash loses.

    node = SimNode("server", disk=disk, network=network, chance=derive(seed, "server"))
    while True:
        node.revive().arm(Trap(action=Action.POWER_CUT, kinds={"sync"}, skip=7))
        node.crash_at_step(chance.randrange(5000), Kill)
        ending = await node.live(serve)         # async def serve(life: Life) -> None
        if ending.death is None:
            break                               # it ended by itself
        await trio.sleep(chance.uniform(0.1, 5))
"""

import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import trio

from delay_transport.seams.runtime import Runtime
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimDisk
from tests.simulation.executor import ExecutorPlan, SimExecutor
from tests.simulation.faults import Death, Kill, PowerCut
from tests.simulation.network import NodeNetwork, SimNetwork
from tests.simulation.trace import Trace


class StepCounter(trio.abc.Instrument):
    """Counts the steps of a task and all its descendants, and calls back at one of them.

    A step is what a task does between two awaits that let others run; the callback comes just
    before one, so that every await is a place to die.
    """

    def __init__(self) -> None:
        self.steps = 0
        """Steps seen since `watch`."""
        self._family: set[trio.lowlevel.Task] = set()
        self._strike_at: int | None = None
        self._strike: Callable[[], None] | None = None
        self.failure: BaseException | None = None
        """What the callback raised, as trio only logs it."""

    def watch(self, root: trio.lowlevel.Task) -> None:
        """Begin to count the steps of this task and of what it starts from now on."""
        self.steps = 0
        self._family = {root}
        self._strike_at = self._strike = None

    def strike(self, step: int, callback: Callable[[], None]) -> None:
        """Call back before this step (0 is the next one); replaces an earlier request."""
        self._strike_at = self.steps + step
        self._strike = callback

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        """Adopt the children of the family."""
        nursery = task.parent_nursery
        if nursery is not None and nursery.parent_task in self._family:
            self._family.add(task)

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        """Forget a task."""
        self._family.discard(task)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count, and call back if this is the step."""
        if task not in self._family:
            return
        if self.steps == self._strike_at and self._strike is not None:
            callback = self._strike
            self._strike_at = self._strike = None
            try:
                callback()
            except BaseException as error:  # noqa: BLE001 (trio would log it and go on)
                self.failure = error
        self.steps += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """The seams of one life of a node."""

    number: int
    """0 for the first."""

    disk: SimDisk
    network: NodeNetwork
    executor: SimExecutor
    clock: SimClock
    chance: random.Random

    @property
    def runtime(self) -> Runtime:
        """The seams as the program takes them."""
        return Runtime(
            clock=self.clock,
            network=self.network,
            executor=self.executor,
            chance=self.chance,
        )


@dataclass(frozen=True, slots=True)
class Ending:
    """How a life ended."""

    death: Death | None
    """The crash, if it was one."""

    error: Exception | None
    """The expected error with which the program stopped, if it did."""

    steps: int
    """Task steps of this life, where they were counted."""


class SimNode:
    """A machine with one program: disk and clock stay, lives come and go."""

    def __init__(
        self,
        name: str,
        *,
        disk: SimDisk,
        network: SimNetwork,
        chance: random.Random,
        clock: SimClock | None = None,
        executor_plan: ExecutorPlan | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.name = name
        self.disk = disk
        """The disk of the present life, or of the last one."""
        self.clock = clock or SimClock()
        self.executor_plan = executor_plan or ExecutorPlan()
        """How long blocking calls take in lives to come."""
        self.lives = 0
        """Lives begun."""
        self.swallowed: list[BaseException] = []
        """What programs raised after their death, other than the death; of interest when a test
        puzzles, of no consequence otherwise."""
        self._network = network
        self._chance = chance
        self._trace = trace or disk.trace
        self._steps = StepCounter()
        self._step_crash: tuple[int, type[Death]] | None = None
        self._scope: trio.CancelScope | None = None
        self._life: Life | None = None

    @property
    def is_alive(self) -> bool:
        """Say whether a life is running."""
        return self._life is not None and self.disk.death is None

    def revive(self) -> SimDisk:
        """Return the disk of the next life, to set traps before that begins."""
        if self._life is not None:
            raise ValueError(f"{self.name} lives")
        if self.disk.death is not None:
            self.disk = self.disk.revive()
        return self.disk

    def crash(self, kind: type[Death] = Kill, reason: str = "crash") -> bool:
        """End the present life now; return False if there is none."""
        if not self.is_alive:
            return False
        if kind is PowerCut:
            self.disk.power_cut(reason)
        else:
            self.disk.kill(reason)
        return True

    def crash_at_step(self, step: int, kind: type[Death] = Kill) -> None:
        """Crash before a task step of the next life (or so many steps on in the present one)."""
        if self.is_alive:
            self._steps.strike(step, lambda: self._crash_in_step(kind))
        else:
            self._step_crash = (step, kind)

    async def live(
        self,
        program: Callable[[Life], Awaitable[None]],
        *,
        expected: type[Exception] | tuple[type[Exception], ...] = (),
        count_steps: bool = False,
    ) -> Ending:
        """Run one life until the program ends or the node dies; return how it ended.

        An `expected` error ends the process, as it would end a real one. Other errors are raised,
        alone or in their group. Steps are counted (at some cost) where asked for or needed.
        """
        life = self._begin()
        counting = count_steps or self._step_crash is not None
        if counting:
            trio.lowlevel.add_instrument(self._steps)
        error: Exception | None = None
        try:
            with trio.CancelScope() as self._scope:
                async with trio.open_nursery() as nursery:
                    # A task of its own, so that its family is the node and nothing else.
                    nursery.start_soon(self._body, program, life, name=self.name)
        except BaseException as raised:  # noqa: BLE001 (this is the node's border)
            error = self._judge(raised, expected)
        finally:
            death = self.disk.death
            self._end()
            if counting:
                trio.lowlevel.remove_instrument(self._steps)
        if self._steps.failure is not None:
            raise self._steps.failure
        return Ending(death, error, self._steps.steps if counting else 0)

    async def _body(self, program: Callable[[Life], Awaitable[None]], life: Life) -> None:
        self._steps.watch(trio.lowlevel.current_task())
        if self._step_crash is not None:
            step, kind = self._step_crash
            self._step_crash = None
            self._steps.strike(step, lambda: self._crash_in_step(kind))
        # What the program does first is a step that is counted, too.
        await trio.lowlevel.checkpoint()
        await program(life)

    def _begin(self) -> Life:
        disk = self.revive()
        executor = SimExecutor(
            random.Random(self._chance.getrandbits(64)),
            disk=disk,
            plan=self.executor_plan,
            trace=self._trace,
            name=self.name,
        )
        self._life = Life(
            number=self.lives,
            disk=disk,
            network=self._network.node(self.name),
            executor=executor,
            clock=self.clock,
            chance=random.Random(self._chance.getrandbits(64)),
        )
        self.lives += 1
        disk.on_death = self._die
        return self._life

    def _die(self, death: Death) -> None:
        """Follow the disk: cut everything else, then cancel."""
        self._network.cut(self.name, death)
        if self._life is not None:
            self._life.executor.cut(death)
        if self._scope is not None:
            self._scope.cancel()
        if isinstance(death, PowerCut):
            self.clock.reboot()

    def _end(self) -> None:
        """The process is gone: the kernel closes what it held."""
        self.disk.kill("the process ended")
        self._life = None
        self._scope = None

    def _crash_in_step(self, kind: type[Death]) -> None:
        self.crash(kind, f"crash at step {self._steps.steps}")

    def _judge(
        self, raised: BaseException, expected: type[Exception] | tuple[type[Exception], ...]
    ) -> Exception | None:
        """Return an expected error; swallow what a dead program raised; raise the rest."""
        leaves = list(_leaves(raised))
        if self.disk.death is not None:
            if isinstance(raised, _PASSING):
                raise raised
            if isinstance(raised, BaseExceptionGroup):
                passing = raised.subgroup(_PASSING)
                if passing is not None:
                    raise passing
            self.swallowed += [leaf for leaf in leaves if not isinstance(leaf, Death)]
            return None
        for leaf in leaves:
            if not isinstance(leaf, expected):
                raise raised if len(leaves) > 1 else leaf
        first = leaves[0]
        assert isinstance(first, Exception)
        return first


_PASSING = (trio.Cancelled, KeyboardInterrupt)
"""What is not the node's own, but comes from around it."""


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
