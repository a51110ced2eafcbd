"""Changes are in the store before anybody sees them, one writer plans them, failures are told."""

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import pytest
import trio
from msgspec.structs import replace

from meta_server.known.commits import Committer, Intent
from meta_server.known.errors import (
    ConflictError,
    MetaServerError,
    RefusedError,
    StoreRefusedError,
    StoreUnavailableError,
    StoreUnusableError,
)
from meta_server.known.model import Change, Save, Subject, saved
from meta_server.known.registry import Registry
from tests.meta_server.memory_store import Fault, Medium, MemoryStore, contents_of
from tests.meta_server.meta_rig import PROMPT
from tests.simulation.executor import SimExecutor


class Rig:
    """A writer with a store, and what it was told to do."""

    def __init__(self, *, waiting_max: int = 100, batch_max: int = 10) -> None:
        self.medium = Medium()
        self.store = MemoryStore(self.medium)
        self.registry = Registry(self.store.load())
        self.changed: list[Sequence[Change]] = []
        self.loaded = 0
        self.committer = Committer(
            registry=self.registry,
            store=self.store,
            executor=SimExecutor(random.Random(1), plan=PROMPT),
            waiting_max=waiting_max,
            batch_max=batch_max,
            on_changed=self.changed.append,
            on_loaded=self._loaded,
        )
        self.results: dict[str, MetaServerError | None] = {}

    def _loaded(self) -> None:
        self.loaded += 1

    def add(
        self,
        name: str,
        *,
        plan: Callable[[], Sequence[Change]] | None = None,
        is_urgent: bool = False,
        is_about_all: bool = False,
    ) -> None:
        """Ask for a subject, unless there is one of that name."""

        def usual() -> Sequence[Change]:
            return () if name in self.registry.subjects else (Save(Subject(name=name)),)

        self.committer.submit(
            Intent(
                keys=() if is_about_all else (name,),
                plan=plan or usual,
                done=lambda error: self.results.__setitem__(name, error),
                is_urgent=is_urgent,
            )
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.committer.run)
            yield
            await trio.sleep(10)
            nursery.cancel_scope.cancel()


async def test_nobody_sees_a_change_before_the_store_has_it() -> None:
    rig = Rig()
    async with rig.running():
        rig.add("a")
        await trio.testing.wait_all_tasks_blocked()
        assert rig.registry.subjects == {}
        assert rig.results == {}
        assert rig.committer.is_pending("a")
        await trio.sleep(1)
        assert list(rig.registry.subjects) == ["a"]
        assert rig.results == {"a": None}
        assert not rig.committer.is_pending("a")


async def test_what_gathers_shares_a_commit_and_what_is_about_one_thing_does_not() -> None:
    rig = Rig()
    for name in ("a", "b", "c", "a", "d"):
        rig.add(name)
    async with rig.running():
        pass
    names = [[row.name for row in saved(commit, Subject)] for commit in rig.medium.commits]
    assert names == [["a", "b", "c"], ["d"]]
    assert rig.results == dict.fromkeys("abcd")


async def test_what_is_about_everything_shares_its_commit_with_nobody() -> None:
    rig = Rig()
    for name in "abcdef":
        rig.add(name, is_about_all=name in "cd")
    async with rig.running():
        pass
    names = [[row.name for row in saved(commit, Subject)] for commit in rig.medium.commits]
    assert names == [["a", "b"], ["c"], ["d"], ["e", "f"]]
    assert rig.results == dict.fromkeys("abcdef")


async def test_what_is_urgent_comes_before_all_that_waits_and_commits_are_of_limited_size() -> None:
    rig = Rig(batch_max=3, waiting_max=7)
    for number in range(7):
        rig.add(str(number))
    rig.add("election", is_urgent=True)
    assert rig.committer.waiting == 8
    async with rig.running():
        pass
    assert [row.name for row in saved(rig.medium.commits[0], Subject)] == ["election"]
    assert [len(commit) for commit in rig.medium.commits] == [1, 3, 3, 1]
    assert len(rig.results) == 8


async def test_an_intent_too_many_is_refused_at_once() -> None:
    rig = Rig(waiting_max=2)
    rig.add("a")
    rig.add("b")
    with pytest.raises(RefusedError, match="2 requests wait"):
        rig.add("c")


async def test_a_plan_that_refuses_harms_nobody_else() -> None:
    rig = Rig()

    def refuse() -> Sequence[Change]:
        raise RefusedError("no")

    rig.add("a")
    rig.add("b", plan=refuse)
    rig.add("c")
    async with rig.running():
        pass
    assert sorted(rig.registry.subjects) == ["a", "c"]
    assert isinstance(rig.results["b"], RefusedError)


@pytest.mark.parametrize(("fault", "kept"), [(Fault.LOST, []), (Fault.KEPT, ["a"])])
async def test_after_a_failure_everything_is_refused_until_all_is_loaded_anew(
    fault: Fault, kept: list[str]
) -> None:
    rig = Rig(batch_max=1)
    rig.medium.next_faults = [fault]
    rig.add("a")
    rig.add("b")
    async with rig.running():
        await trio.testing.wait_all_tasks_blocked()
        rig.medium.is_down = True
        await trio.sleep(3)
        assert {type(error) for error in rig.results.values()} == {StoreUnavailableError}
        assert rig.committer.is_stale
        with pytest.raises(StoreUnavailableError):
            rig.add("c")
        rig.medium.is_down = False
        await trio.sleep(6)
        assert rig.loaded == 1
        assert list(rig.registry.subjects) == kept
        rig.add("c")
    assert rig.results["c"] is None


async def test_a_store_is_available_again_after_a_write_and_tried_less_often_if_that_fails() -> (
    None
):
    rig = Rig()
    async with rig.running():
        # A full disk can be read.
        rig.medium.next_faults = [Fault.LOST] * 20
        rig.add("a")
        await trio.sleep(25)
        assert rig.loaded == 0
        assert 5 <= 20 - len(rig.medium.next_faults) <= 12
        rig.medium.next_faults = []
        await trio.sleep(6)
        assert (rig.committer.is_stale, rig.loaded) == (False, 1)
        # Small writes go well, larger ones do not.
        for number in range(2500):
            rig.medium.next_faults = [] if rig.committer.is_stale else [Fault.LOST]
            with suppress(StoreUnavailableError):
                rig.add(str(number))
            await trio.sleep(0.01)
        assert rig.loaded <= 12


async def test_somebody_elses_change_is_loaded_and_the_intent_refused() -> None:
    rig = Rig()
    rig.medium.tables.apply((Save(Subject(name="a", created_ms=7)),))
    rig.add("a")
    async with rig.running():
        pass
    assert isinstance(rig.results["a"], ConflictError)
    assert rig.registry.subjects["a"].created_ms == 7
    assert rig.committer.conflicts == 1


async def test_a_commit_that_the_store_cannot_hold_is_refused_and_the_next_is_kept() -> None:
    rig = Rig()
    rig.add("a")
    rig.add("b")
    rig.medium.next_faults = [Fault.REFUSED]
    async with rig.running():
        await trio.sleep(1)
        rig.add("c")
    assert isinstance(rig.results["a"], StoreRefusedError)
    assert rig.results == {"a": rig.results["a"], "b": rig.results["a"], "c": None}
    assert sorted(rig.registry.subjects) == ["c"]
    assert not rig.committer.is_stale


async def test_a_damaged_store_ends_the_writer() -> None:
    rig = Rig()

    def damaged(_: Sequence[Change]) -> None:
        raise StoreUnusableError("damaged")

    rig.store.commit = damaged  # type: ignore[method-assign]
    rig.add("a")
    with pytest.RaisesGroup(StoreUnusableError):
        async with rig.running():
            pass


async def test_plans_are_made_when_their_turn_comes() -> None:
    rig = Rig()

    def count() -> Sequence[Change]:
        known = rig.registry.subjects["a"]
        after = replace(known, created_ms=known.created_ms + 1, version=known.version + 1)
        return (Save(after),)

    rig.add("a")
    for _ in range(3):
        rig.add("a", plan=count)
    async with rig.running():
        pass
    assert rig.registry.subjects["a"].created_ms == 3
    assert contents_of(rig.registry) == rig.medium.contents
