"""One writer: whatever changes what is known goes through here, into the store and then in memory.

An *intent* plans its changes when its turn comes, on what is known then, so no two plans can
contradict each other. Intents about different things (their keys) share a commit. When a commit
failed it is not known what the store has: then everything is loaded anew before anything else is
planned and something is written, since a full disk can still be read. Until both have gone well
every intent is refused. What is known goes on being served.
"""

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import structlog
import trio

from delay_transport.seams.outbox import Wakeup
from delay_transport.seams.runtime import Executor
from meta_server.known import errors, model
from meta_server.known.registry import Registry

STORE_WORKER = "store"
"""The worker of the executor that calls the store."""

_RELOAD_S_MIN = 0.2
_RELOAD_S_MAX = 5.0
"""Pause before the store is tried again after a failure; doubles from the one to the other."""

_COMMIT_S = 0.1
"""By so much each commit shortens the next pause: it grows where some fail and some do not."""

_ENDED_AT_ONCE = 20
"""Intents that are completed in one turn of the loop at most."""

_PLANNING_S_MAX = 0.002
"""Seconds for which intents are planned before others get their turn of the loop."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """Something that is to change."""

    keys: tuple[Hashable, ...]
    """Its subject: two intents with a common key do not share a commit; one without keys is about
    everything, and shares its commit with nobody."""
    plan: Callable[[], Sequence[model.Change]]
    """Returns the changes, on what is known at that moment; may raise RefusedError."""
    done: Callable[[errors.MetaServerError | None], None]
    """Is told once: None when the changes are stored and known, else why they are not."""
    is_urgent: bool = False
    """True if it has its turn before all that is not: an election waits for no registration."""


class Committer:
    """The queue of intents, and the one task that works it off."""

    def __init__(
        self,
        *,
        registry: Registry,
        store: model.MetaStore,
        executor: Executor,
        waiting_max: int,
        batch_max: int,
        on_changed: Callable[[Sequence[model.Change]], None],
        on_loaded: Callable[[], None],
    ) -> None:
        """Call `on_changed(changes)` after each commit, `on_loaded()` after loading anew."""
        self._registry = registry
        self._store = store
        self._executor = executor
        self._waiting_max = waiting_max
        self._batch_max = batch_max
        self._on_changed = on_changed
        self._on_loaded = on_loaded
        self._waiting: deque[Intent] = deque()
        self._urgent: deque[Intent] = deque()
        self._storing: Sequence[Intent] = ()
        self._pending: Counter[Hashable] = Counter()
        self._more = Wakeup()
        self.is_stale = False
        """Whether what is known may not be what the store has: the store failed."""
        self.commits = 0
        self.changes = 0
        self.failures = 0
        """How often the store failed."""
        self._pause_s = 0.0
        """Before the store is tried again."""
        self.conflicts = 0
        """How often somebody else had changed the store."""

    @property
    def waiting(self) -> int:
        """Intents that wait for their turn."""
        return len(self._waiting) + len(self._urgent)

    @property
    def unapplied(self) -> int:
        """Intents that wait or are being stored; their changes are not visible yet."""
        return self.waiting + len(self._storing)

    @property
    def is_urgent(self) -> bool:
        """True if something urgent waits or is being stored."""
        return bool(self._urgent) or any(intent.is_urgent for intent in self._storing[:1])

    def is_pending(self, *keys: Hashable) -> bool:
        """Say whether an intent about one of these waits or is being stored."""
        return any(key in self._pending for key in keys)

    def submit(self, intent: Intent) -> None:
        """Queue an intent; raise StoreUnavailableError or RefusedError at once."""
        if self.is_stale:
            raise errors.StoreUnavailableError("the store cannot be reached")
        queue = self._urgent if intent.is_urgent else self._waiting
        if len(queue) >= self._waiting_max:
            raise errors.NotNowError(f"{self._waiting_max} requests wait for the store")
        queue.append(intent)
        self._pending.update(intent.keys)
        self._more.wake()

    async def run(self) -> None:
        """Carry out intents until cancelled; only bugs are raised."""
        while True:
            if self.is_stale:
                await self._load()
            elif not self.waiting:
                await self._more.sleep()
            else:
                await self._commit_some()
                await trio.lowlevel.checkpoint()

    async def _commit_some(self) -> None:
        intents, changes = self._plan_some()
        if not intents:
            return
        self._storing = intents
        await self._commit(intents, changes)
        self._storing = ()

    async def _commit(self, intents: Sequence[Intent], changes: Sequence[model.Change]) -> None:
        """Store and apply what is planned, and end it."""
        try:
            await self._executor.run(STORE_WORKER, self._store.commit, changes)
        except errors.StoreRefusedError as error:
            _log.error("the store refused a commit", reason=str(error))
            await self._end_all(intents, error)
            return
        except errors.ConflictError as error:
            self.conflicts += 1
            self._pause_s = 0.0
            _log.warning("another process changed the store", reason=str(error))
            await self._turn_stale(intents, error)
            return
        except errors.StoreUnusableError:
            raise
        except errors.StoreError as error:
            self._count_failure()
            _log.error("the store failed; known routes are still served", reason=str(error))
            await self._turn_stale(intents, error)
            return
        self._registry.apply(changes)
        self._storing = ()
        self.commits += 1
        self._pause_s = max(self._pause_s - _COMMIT_S, 0.0)
        self.changes += len(changes)
        self._on_changed(changes)
        await self._end_all(intents, None)

    def _plan_some(self) -> tuple[list[Intent], tuple[model.Change, ...]]:
        """Plan intents that can share a commit; return them, and what is to be stored.

        Those that change nothing are done at once. Urgent ones are stored first, and alone.
        """
        batch: list[Intent] = []
        changes: list[model.Change] = []
        taken: set[Hashable] = set()
        looked_at = 0
        until = trio.current_time() + _PLANNING_S_MAX
        queue = self._urgent or self._waiting
        while queue and looked_at < self._batch_max and trio.current_time() < until:
            intent = queue[0]
            if batch and not (intent.keys and taken.isdisjoint(intent.keys)):
                break
            queue.popleft()
            looked_at += 1
            try:
                planned = intent.plan()
            except errors.RefusedError as error:
                self._end(intent, error)
                continue
            if not planned:
                self._end(intent, None)
                continue
            taken.update(intent.keys)
            batch.append(intent)
            changes += planned
            if not intent.keys:
                break
        return batch, tuple(changes)

    def _end(self, intent: Intent, error: errors.MetaServerError | None) -> None:
        for key in intent.keys:
            self._pending[key] -= 1
            if not self._pending[key]:
                del self._pending[key]
        intent.done(error)

    async def _end_all(
        self, intents: Iterable[Intent], error: errors.MetaServerError | None
    ) -> None:
        """Tell many, some in each turn of the loop: telling is answering."""
        for number, intent in enumerate(intents, start=1):
            self._end(intent, error)
            if not number % _ENDED_AT_ONCE:
                await trio.lowlevel.checkpoint()

    async def _turn_stale(self, intents: Sequence[Intent], error: errors.StoreError) -> None:
        """Refuse what was being stored and what waits: nothing can be planned any more."""
        self.is_stale = True
        waiting = [*self._urgent, *self._waiting]
        self._urgent.clear()
        self._waiting.clear()
        await self._end_all((*intents, *waiting), error)

    async def _load(self) -> None:
        """Load everything anew and write, trying until both have worked."""
        while True:
            await trio.sleep(self._pause_s)
            try:
                fresh = await self._executor.run(STORE_WORKER, self._load_registry)
                self._registry.adopt(fresh)
                written = (model.RaiseTimestamp(self._registry.timestamp_ms + 1),)
                await self._executor.run(STORE_WORKER, self._store.commit, written)
            except (errors.StoreUnavailableError, errors.StoreRefusedError) as error:
                self._count_failure()
                _log.debug("the store cannot be reached, or written", reason=str(error))
                continue
            self._registry.apply(written)
            self.is_stale = False
            _log.warning("the store is available again; all data was reloaded")
            self._on_loaded()
            return

    def _count_failure(self) -> None:
        """Count a failure of the store, and make the next pause longer."""
        self.failures += 1
        self._pause_s = min(max(self._pause_s * 2, _RELOAD_S_MIN), _RELOAD_S_MAX)

    def _load_registry(self) -> Registry:
        """Load in the executor's thread: with many subjects it takes a while."""
        return Registry(self._store.load())
