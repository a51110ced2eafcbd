"""The engine without a JVM: tasks one after the other, or in some processes of their own."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context

from spark_tools.judge.account import TaskResult
from spark_tools.run.reconcile import Engine, Task


def local_engine(processes: int) -> Engine:
    """Return an engine that works in so many processes; with 1, in this one."""

    def run(tasks: Sequence[Task]) -> Iterator[TaskResult]:
        if processes == 1 or len(tasks) < 2:
            return (task() for task in tasks)
        return _in_processes(tasks, min(processes, len(tasks)))

    return run


def _in_processes(tasks: Sequence[Task], processes: int) -> Iterator[TaskResult]:
    """Yield results as they come; of each process two at most are under way or not taken."""
    rest = iter(tasks)
    # A forked child would share what threads of this process hold locked: pyarrow has some.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        under_way: set[Future[TaskResult]] = set()
        for task in rest:
            under_way.add(pool.submit(_call, task))
            if len(under_way) >= 2 * processes:
                done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                yield from (one.result() for one in done)
        while under_way:
            done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            yield from (one.result() for one in done)


def _call(task: Callable[[], TaskResult]) -> TaskResult:
    return task()
