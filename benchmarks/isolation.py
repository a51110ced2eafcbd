"""What others notice of a broker group that is ill, and of a subject that is: a run for each case.

    python -m benchmarks isolation              all of them
    python -m benchmarks.isolation CASE …       some; --runs N as often as that

A delay server, four brokers, and a steady stream of messages that all were sent beforehand: so
nothing is measured but delivery. A run has three phases of one length. In the second one the first
broker group is ill, or a subject is. Lateness is from the due time to the arrival at a broker that
takes the message, by phase of the due time. Before each run there is one of a single phase in which
everything is well: the machine's own part. As long as that has a p99 above 10 ms it is repeated, up
to six times: then something else had the machine, and what follows says little.
"""

import argparse
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from benchmarks.ailing import POISON, REFUSED, TAKEN
from benchmarks.load import build_load, seconds_left, send_load
from benchmarks.processes import Ailing, DelayServer, MetaServer, Process
from delay_protocol.meta.requests import BrokerState
from meta_server.known.model import (
    BrokerGroup,
    Change,
    GroupKind,
    Route,
    SaveBrokerGroup,
    SaveRoute,
)
from meta_server.sql.databases import DatabaseSettings
from meta_server.sql.store import open_store

GROUPS: Final = 4
ILL: Final = 0
"""The group that is ill."""
RATE: Final = 6000
"""Messages a second of the steady stream."""
AIM_MS: Final = 10
"""What the p99 of lateness is to stay within."""
_PHASE_S: Final = 8.0
_CONTROLS_MAX: Final = 6
_PER_REQUEST: Final = 20
_LEAD_S: Final = 8.0
_LEAD_MESSAGES: Final = 50_000
"""Messages that can be made and sent in a second, at the least."""
_SETTLING_S: Final = 12.0
"""In which the last answers come, or are given up."""
_STEADY: Final = tuple(b"bench.subject%d" % number for number in range(10))
_OWN: Final = tuple(b"bench.own%d" % number for number in range(5))
_HOT: Final = (b"bench.hot",)
_COLD: Final = tuple(b"bench.cold%d" % number for number in range(2000))
_NOWHERE: Final = (b"bench.nowhere",)
_P = TypeVar("_P", bound=Process)
_PHASES: Final = ("before", "meanwhile", "after")


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Messages beside the steady stream."""

    subjects: tuple[bytes, ...]
    messages: int = 0
    """So many in all; if 0, an eighth of the steady rate."""
    phases: tuple[float, float] = (1.0, 2.0)
    """From when on and until when they are due, in phases."""
    routed_to: tuple[int, ...] | None = None
    """The broker groups that their subjects go to, none of them if that is empty; None: to all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What befalls whom."""

    fault: str = "well"
    """Of the first group in the second phase, if nothing else is said."""
    everywhere: bool = False
    """All groups have the fault, in all phases."""
    from_start: bool = False
    """The group has the fault from the start until the second phase."""
    beside: Beside | None = None

    @property
    def is_routed(self) -> bool:
        """Whether a meta server says where subjects go."""
        return self.beside is not None and self.beside.routed_to is not None

    @property
    def others(self) -> tuple[int, ...]:
        """The groups that are not to notice."""
        first = 0 if self.fault == "well" or self.everywhere else 1
        return tuple(range(first, GROUPS))


_ILLNESSES: Final = ("refusing", "black-hole", "slow", "rejecting")
_OWN_ALL_ALONG: Final = Beside(subjects=_OWN, phases=(0.0, 3.0), routed_to=(ILL,))

CASES: Final[dict[str, Case]] = {
    **{fault: Case(fault=fault) for fault in _ILLNESSES},
    **{f"{fault}-own": Case(fault=fault, beside=_OWN_ALL_ALONG) for fault in _ILLNESSES},
    "no-route": Case(beside=Beside(subjects=_NOWHERE, routed_to=())),
    "poisoned": Case(fault="poisoned", everywhere=True, beside=Beside(subjects=(POISON,))),
    "poisoned-at-one": Case(fault="poisoned", beside=Beside(subjects=(POISON,))),
    "blocking": Case(fault="blocking"),
    "overdue-at-its-broker": Case(
        fault="refusing",
        from_start=True,
        beside=Beside(subjects=_HOT, messages=1_000_000, phases=(-0.4, -0.3), routed_to=(ILL,)),
    ),
    "overdue": Case(beside=Beside(subjects=_HOT, messages=1_000_000, phases=(1.0, 1.0))),
    "overdue-cold": Case(beside=Beside(subjects=_COLD, messages=400_000, phases=(1.0, 1.0))),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Came:
    """Everything that came to brokers, side by side."""

    group: np.ndarray
    id: np.ndarray
    due_ms: np.ndarray
    late_ms: np.ndarray
    outcome: np.ndarray
    is_steady: np.ndarray


class Run:
    """One run of a case, or of its undisturbed twin."""

    def __init__(self, directory: Path, case: Case, *, phases: int, scale: float) -> None:
        self._directory = directory
        self._case = case
        self._phases = phases
        self._scale = scale
        self._phase_ms = int(_PHASE_S * 1000)
        beside = case.beside
        self._beside = 0
        if beside is not None:
            length = beside.phases[1] - beside.phases[0]
            self._beside = int((beside.messages or RATE * _PHASE_S * length / 8) * scale)
        self._steady = int(RATE * _PHASE_S * phases * scale)
        lead_s = _LEAD_S + (self._steady + self._beside) / _LEAD_MESSAGES
        self._began_ms = int(time.time() * 1000 + lead_s * 1000)
        self.status: dict[str, Any] = {}
        self.came = self._play()

    def _at(self, phases: float) -> int:
        return self._began_ms + int(phases * self._phase_ms)

    def _play(self) -> Came:
        """Send everything, let it be delivered, and return what came."""
        directory, case = self._directory, self._case
        with ExitStack() as processes:

            def started(process: _P) -> _P:
                processes.callback(process.kill)
                return process

            brokers = [started(self._broker(number)) for number in range(GROUPS)]
            ports = [broker.port for broker in brokers]
            if case.is_routed:
                assert case.beside is not None
                _fill_store(directory / "meta", ports, case.beside)
                meta = started(MetaServer(directory, directory / "meta"))
                server = started(DelayServer(directory, meta_port=meta.http_port))
            else:
                server = started(DelayServer(directory, broker_port=ports))
            self._send(server)
            time.sleep(max(self._at(self._phases) / 1000 - time.time(), 0))
            until = time.time() + _SETTLING_S
            self.status = server.status()
            while self.status["pending"] > self._stays and time.time() < until:
                time.sleep(0.5)
                self.status = server.status()
            server.stop()
            return _joined([broker.record() for broker in brokers])

    @property
    def _stays(self) -> int:
        """Return how many messages nobody is to get."""
        beside = self._case.beside
        return self._beside if beside is not None and beside.routed_to == () else 0

    def _broker(self, number: int) -> Ailing:
        case = self._case
        is_ill = case.everywhere or number == ILL
        from_ms, until_ms = self._at(1), self._at(2)
        if case.everywhere:
            from_ms, until_ms = 0, self._at(self._phases + 1) + int(_SETTLING_S * 1000)
        elif case.from_start:
            from_ms, until_ms = 0, self._at(1)
        return Ailing(
            self._directory,
            f"broker{number}",
            fault=case.fault if is_ill else "well",
            from_ms=from_ms,
            until_ms=until_ms,
        )

    def _send(self, server: DelayServer) -> None:
        beside = self._case.beside
        if beside is not None:
            first, last = (self._at(phase) for phase in beside.phases)
            rest = build_load(
                self._beside,
                per_request=_PER_REQUEST,
                due_from_ms=first,
                spread_ms=last - first,
                subjects=beside.subjects,
                first_number=self._steady,
            )
            send_load(server.address, rest, connections=2)
        steady = build_load(
            self._steady,
            per_request=_PER_REQUEST,
            due_from_ms=self._at(0),
            spread_ms=self._phases * self._phase_ms,
            subjects=_STEADY,
        )
        send_load(server.address, steady, connections=2)
        seconds_left(self._at(0))

    # -- what came of it ---------------------------------------------------------------------

    def lateness(self, phase: int, groups: Sequence[int]) -> np.ndarray:
        """Return how late each message of the steady stream came to these groups, in ms."""
        came = self.came
        chosen = np.isin(came.group, groups) & (came.outcome == TAKEN) & came.is_steady
        late: np.ndarray = came.late_ms[chosen & self._is_of(phase)]
        return late

    def _is_of(self, phase: int) -> np.ndarray:
        is_of: np.ndarray = (self.came.due_ms >= self._at(phase)) & (
            self.came.due_ms < self._at(phase + 1)
        )
        return is_of

    def rate(self, phase: int, groups: Sequence[int]) -> float:
        """Return how many messages a second of the steady stream came to these groups then."""
        came = self.came
        arrived_ms = came.due_ms + came.late_ms
        chosen = np.isin(came.group, groups) & (came.outcome == TAKEN) & came.is_steady
        then = (arrived_ms >= self._at(phase)) & (arrived_ms < self._at(phase + 1))
        return float((chosen & then).sum() / _PHASE_S)

    def figures(self) -> Iterator[tuple[str, object]]:
        """Yield what others noticed, and what became of the rest."""
        others, came = self._case.others, self.came
        whole = self.rate(0, others)
        for phase, name in enumerate(_PHASES):
            late = self.lateness(phase, others)
            rate = self.rate(phase, others)
            yield f"    {name}", f"{rate:,.0f}/s ({rate / whole:.2f}); {spread(late)}"
        by_group = [_p99(self.lateness(1, [number])) for number in others]
        yield "    p99 meanwhile by group", ", ".join(by_group)
        if ILL not in others:
            yield "    taken over", self._taken_over()
        beside = came.late_ms[~came.is_steady & (came.outcome == TAKEN)]
        if self._beside:
            taken = f"{len(beside):,} of {self._beside:,} taken"
            yield "    of the subjects beside", f"{taken}; {spread(beside)}"
        kept = came.id[came.outcome != REFUSED]
        doubts = sum(group["possible_duplicates"] for group in self.status["brokers"].values())
        steady = len(np.unique(came.id[came.is_steady & (came.outcome == TAKEN)]))
        yield (
            "    possible duplicates, came twice",
            f"{doubts:,}, {len(kept) - len(np.unique(kept)):,}",
        )
        early, dead = int((came.late_ms < 0).sum()), self.status["dead"]["pending"]
        yield (
            "    not delivered, early, dead letters",
            f"{self._steady - steady:,}, {early:,}, {dead:,}",
        )

    def _taken_over(self) -> str:
        """Say what the others took meanwhile of the share of the group that was ill."""
        came = self.came
        meanwhile = self._is_of(1) & came.is_steady & (came.outcome == TAKEN)
        by_others = meanwhile & (came.group != ILL)
        over = int(by_others.sum()) - int(meanwhile.sum()) * len(self._case.others) // GROUPS
        tried = came.id[(came.group == ILL) & (came.outcome != TAKEN)]
        again = len(np.intersect1d(tried, came.id[by_others]))
        by_ill = int((meanwhile & (came.group == ILL)).sum())
        return f"{over:,}, of them {again:,} after a try; the ill one took {by_ill:,}"


def _joined(records: Sequence[np.ndarray]) -> Came:
    """Return what came to each group as one."""
    whole = np.concatenate(records)
    return Came(
        group=np.repeat(np.arange(len(records)), [len(one) for one in records]),
        id=whole["id"],
        due_ms=whole["due_ms"],
        late_ms=whole["arrived_ms"] - whole["due_ms"],
        outcome=whole["outcome"],
        is_steady=np.isin(whole["subject"], np.array(_STEADY)),
    )


def _p99(late: np.ndarray) -> str:
    return f"{np.quantile(late, 0.99):.1f}" if len(late) else "none"


def spread(late: np.ndarray) -> str:
    """Return how values are spread, in ms."""
    if not len(late):
        return "none came"
    shares = (0.5, 0.99, 0.999, 1.0)
    told = ", ".join(
        f"p{share * 100:g} {value:.1f}"
        for share, value in zip(shares, np.quantile(late, shares), strict=True)
    )
    over = int((late > AIM_MS).sum())
    return f"{told} ms, {over:,} of {len(late):,} later than {AIM_MS} ms"


def _fill_store(data: Path, ports: Sequence[int], beside: Beside) -> None:
    """Make a meta server's store in which these subjects have a route of their own."""
    assert beside.routed_to is not None
    data.mkdir(parents=True)
    settings = DatabaseSettings(url=f"sqlite:///{data / 'meta.db'}")
    store = open_store(settings, now_ms=0, chance=random.Random(1))
    names = tuple(f"bench{number}" for number in range(len(ports)))
    masters = [f"127.0.0.1:{port}" for port in ports]
    changes: list[Change] = [
        SaveBrokerGroup(_group(name, master, BrokerState.RW))
        for name, master in zip(names, masters, strict=True)
    ]
    changes.append(SaveBrokerGroup(_group("away", "127.0.0.1:1", BrokerState.NRW)))
    changes.append(SaveRoute(Route(name="bench.", is_prefix=True, groups=names, is_chosen=False)))
    own = tuple(names[number] for number in beside.routed_to) or ("away",)
    changes += [
        SaveRoute(Route(name=subject.decode(), groups=own, is_chosen=False))
        for subject in beside.subjects
    ]
    store.commit(changes)
    store.close()


def _group(name: str, master: str, state: BrokerState) -> BrokerGroup:
    return BrokerGroup(name=name, kind=GroupKind.NORMAL, master=master, state=state)


def measure(
    directory: Path, scale: float, names: Sequence[str] = (), runs: int = 1
) -> Iterator[tuple[str, object]]:
    """Yield the figures of all cases, or of some."""
    for name in names or CASES:
        for _ in range(runs):
            yield from _measure_case(directory / name, name, CASES[name], scale)


def _measure_case(
    directory: Path, name: str, case: Case, scale: float
) -> Iterator[tuple[str, object]]:
    yield name, ""
    for _ in range(_CONTROLS_MAX):
        late, rate = _undisturbed(directory, scale)
        yield "    undisturbed", f"{rate:,.0f}/s; {spread(late)}"
        if np.quantile(late, 0.99) <= AIM_MS:
            break
    directory.mkdir()
    yield from Run(directory, case, phases=len(_PHASES), scale=scale).figures()
    shutil.rmtree(directory)


def _undisturbed(directory: Path, scale: float) -> tuple[np.ndarray, float]:
    """Return the lateness and the rate of one phase in which everything is well."""
    directory.mkdir()
    run = Run(directory, Case(), phases=1, scale=scale)
    shutil.rmtree(directory)
    return run.lateness(0, range(GROUPS)), run.rate(0, range(GROUPS))


def main() -> None:
    """Measure the cases that are named."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("cases", nargs="*", help=", ".join(CASES))
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full rate")
    parser.add_argument("--runs", type=int, default=1)
    options = parser.parse_args()
    unknown = [name for name in options.cases if name not in CASES]
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}")
    with tempfile.TemporaryDirectory(prefix="delaywheel-bench-") as directory:
        for name, value in measure(Path(directory), options.scale, options.cases, options.runs):
            print(f"  {name:<40} {value}", flush=True)


if __name__ == "__main__":
    main()
