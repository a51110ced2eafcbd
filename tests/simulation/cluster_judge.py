"""What has to hold between the delay server, the meta server and broker groups, from outside.

The judge knows what producers, brokers and clients saw, what the store of the meta server held at
each moment (meta_store.py), and when the meta server could be asked by everybody (`Wellness`). It
knows nothing of what either server has in memory.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import trio

from delay_protocol.meta.requests import BrokerState, ClientType
from delay_server.settings.config import RoutesConfig
from meta_server.known import model
from tests.simulation import independent_reader as reader
from tests.simulation.gating import GateJudge, subjects_of
from tests.simulation.meta_peers import SimClient
from tests.simulation.meta_store import Moment
from tests.simulation.meta_witness import MetaWitness
from tests.simulation.witness import Receipt, Witness

CONVERGED_S = 150.0
"""In which everybody knows what the meta server says, once nothing is amiss: a dead connection is
noticed in 30 s, another one is tried within 10 s, and a subject is asked for every 60 s."""
TOLD_S = 40.0
"""In which everybody is told of a change, by a push, once all has been well for `CONVERGED_S` and
no connection was reset: without pushes it takes up to 60 s."""
LEFT_S = 40.0
"""In which what is due leaves, when a group of its subject is known and does its work: two requests
that time out, the waits after them, and a disk that stalls now and then."""
_CALM_BEFORE_S = 20.0
"""A group that did its work for so long is connected and trusted again."""
_KNOWN_S = 50.0
"""For which the route of a subject is kept at least after a message of it: routes.unused_ms is
never drawn below 60 s."""
_TURN_UNUSED = 2
"""A place is for another subject after so many times `routes.unused_ms`: one that is not used is
kept for so long, and more until the server has seen that, and loaded what waits for it."""
_SHOWN = 3


def turns_s(subjects: int, config: RoutesConfig) -> float:
    """Return in which each of so many subjects has had one of the places that there are for routes.

    The first ones have theirs at once.
    """
    return subjects // config.subjects_max * _TURN_UNUSED * config.unused_ms / 1000


class Wellness:
    """When the meta server answered everybody, with a store in order.

    Whoever makes trouble says so, for as long as it lasts.
    """

    def __init__(self) -> None:
        self._troubles: Counter[str] = Counter({"down": 1})
        self._since_s = math.inf
        self._times: list[tuple[float, float]] = []

    @property
    def since_s(self) -> float:
        """Since when all has been well; infinity while it is not."""
        return self._since_s

    def note(self, what: str, *, is_on: bool) -> None:
        """Note that there is a trouble of this name now, or that there is none (any more)."""
        self._count(what, int(is_on))

    def begin(self, what: str) -> None:
        """Note one trouble more of this name."""
        self._count(what, self._troubles[what] + 1)

    def end(self, what: str) -> None:
        """Note one trouble less of this name."""
        self._count(what, self._troubles[what] - 1)

    def _count(self, what: str, count: int) -> None:
        was_well = not self._troubles
        self._troubles[what] = count
        self._troubles = +self._troubles
        now_s = trio.current_time()
        if was_well and self._troubles:
            self._times.append((self._since_s, now_s))
            self._since_s = math.inf
        elif not was_well and not self._troubles:
            self._since_s = now_s

    def lasted(self, from_s: float, until_s: float) -> bool:
        """Say whether all was well from one time until another."""
        return any(began_s <= from_s and until_s <= ended_s for began_s, ended_s in self._all())

    def heard_until(self, at_s: float, resets_s: Sequence[float]) -> float:
        """Return the latest time of which everybody must know at this one; -infinity if none.

        `resets_s`: when connections were reset, ascending.
        """
        latest_s = -math.inf
        for began_s, ended_s in self._all():
            until_s = min(ended_s, at_s)
            if until_s - CONVERGED_S < began_s:
                continue
            place = bisect_left(resets_s, until_s - CONVERGED_S)
            is_whole = place == len(resets_s) or resets_s[place] > until_s
            latest_s = max(latest_s, until_s - (TOLD_S if is_whole else CONVERGED_S))
        return latest_s

    def _all(self) -> Iterator[tuple[float, float]]:
        yield from self._times
        if self._since_s < math.inf:
            yield self._since_s, math.inf


class ClusterJudge:
    """Holds what was seen against what the store said."""

    def __init__(
        self,
        witness: Witness,
        meta: MetaWitness,
        well: Wellness,
        counts: Counter[str],
        *,
        gating: GateJudge | None = None,
    ) -> None:
        """Count in `counts` how much there was to be judged; what `gating` holds back may wait."""
        self.well = well
        self._gating = gating
        self._witness = witness
        self._meta = meta
        self._counts = counts

    def check_found(
        self, clients: Collection[SimClient], *, group: str, address: str, since_s: float
    ) -> None:
        """Complain of clients that are not told of what is there, or of what is there no more.

        `group` is that of the delay server. Clients would be told of it if it were silent, too.
        """
        medium = self._meta.medium
        # What was kept late, after its server had loaded everything, it need not know.
        late = medium.late_after(medium.known_at(trio.current_time()))
        row = medium.row_at(model.BrokerGroup, group, Moment(len(medium.commits), late))
        if row is None or (row.master, row.state) != (address, BrokerState.RW):
            self._complain(f"found: the store has the delay server as {row}")
        for client in clients:
            for use, known in client.known.items():
                reply = known.reply
                if reply is None:
                    self._complain(f"found: {client.name} knows nothing of {use.subject}")
                elif use.client_type == ClientType.DELAY_PRODUCER:
                    told = [(info.name, info.master, info.state) for info in reply.groups]
                    if told != [(group, address, BrokerState.RW)]:
                        self._complain(f"found: {client.name} would send {use.subject} to {told}")
                elif not self._meta.was_right(use, reply, since_s):
                    self._complain(
                        f"found: {client.name} was told {reply} of {use.subject}, it is "
                        f"{self._meta.expected(use)}"
                    )
                self._counts["routes that clients knew at the end"] += 1

    def check_routed(self, resets_s: Sequence[float]) -> None:
        """Complain of messages that went where no route led since the server last must have heard.

        A server that has just begun knows nothing of before. `resets_s`: when connections were
        reset.
        """
        wrong: list[str] = []
        judged: dict[tuple[bytes, str, float], bool] = {}
        for receipt in self._witness.receipts:
            sent_s = receipt.at_s - self._witness.under_way_s
            heard_s = self.well.heard_until(sent_s, resets_s)
            began_s = self._witness.life_began(sent_s)
            since_s = max(heard_s, began_s)
            self._counts[
                "deliveries judged by routes "
                + ("of the last minutes" if heard_s > began_s else "since the start")
            ] += 1
            subject = reader.read_item(receipt.item).subject
            key = (subject, receipt.broker, since_s)
            if key not in judged:
                judged[key] = self._meta.was_routed(
                    subject.decode(), receipt.broker, since_s, receipt.at_s
                )
            if not judged[key]:
                wrong.append(
                    f"{receipt.message_id!r} of {subject!r} to {receipt.broker} at "
                    f"{receipt.at_s:.1f} s, not routed since {since_s:.1f} s"
                )
        if wrong:
            self._complain(f"routed: {len(wrong)} messages went where no route led: {_some(wrong)}")

    def check_stuck(self, calm_s: float) -> None:
        """Complain of what left late after the end of all faults."""
        clock = self._witness.clock
        now_s, now_ms = trio.current_time(), clock.now_ms()
        late: list[str] = []
        subjects = subjects_of(self._witness.items)
        for message_id, receipts in self._witness.receipts_by_id().items():
            acknowledged_s = self._witness.acknowledged.get(message_id)
            at_s = receipts[0].at_s
            if acknowledged_s is None or message_id in self._witness.lost or at_s < calm_s:
                continue
            due_ms = max(self._witness.due_ms[message_id], self._witness.floor_ms(calm_s))
            due_s = now_s - (now_ms - due_ms) / 1000
            from_s = max(due_s, acknowledged_s, calm_s)
            if self._gating and self._gating.is_gated(subjects[message_id], from_s - 1, at_s):
                continue
            self._counts[
                f"left after the faults, due {'since' if due_s > calm_s else 'before'}"
            ] += 1
            # Of a clock that was set before the server learns when it wakes.
            limit_s = CONVERGED_S + LEFT_S + self._witness.clock_heed_s
            if at_s > from_s + limit_s:
                late.append(f"{message_id!r} by {at_s - from_s:.1f} s")
        if late:
            self._complain(f"stuck: {len(late)} messages left late after all faults: {_some(late)}")

    def check_on_time(self, places: Mapping[str, Callable[[float], str]]) -> None:
        """Complain of what left late while a group of its subject was known and did its work.

        Known is what the server was told when all was well, and has had a use for since: also when
        nobody can be asked any more. `places` says where the broker of a group was at a time: a
        store that was set back, or an operator, may say something else.
        """
        receipts_of: dict[bytes, list[float]] = {}
        for receipt in self._witness.receipts:
            receipts_of.setdefault(reader.read_item(receipt.item).subject, []).append(receipt.at_s)
        late: list[str] = []
        for message_id, receipts in self._witness.receipts_by_id().items():
            if message_id in self._witness.acknowledged and message_id not in self._witness.lost:
                by_s = self._late_by(receipts[0], receipts_of, places)
                if by_s is not None:
                    late.append(f"{message_id!r} by {by_s:.1f} s")
        if late:
            self._complain(
                f"isolated: {len(late)} messages left late though a group of their subject was "
                f"known: {_some(late)}"
            )

    def _late_by(
        self,
        receipt: Receipt,
        receipts_of: Mapping[bytes, list[float]],
        places: Mapping[str, Callable[[float], str]],
    ) -> float | None:
        """Return by how much a message left late without any excuse; None if it did not."""
        witness = self._witness
        due_s = receipt.at_s - (receipt.wall_ms - witness.due_ms[receipt.message_id]) / 1000
        ready_s = max(due_s, witness.acknowledged[receipt.message_id])
        from_s = witness.served_from(ready_s)
        until_s = from_s + LEFT_S
        if witness.clock_was_set_between(from_s, max(receipt.at_s, until_s)):
            return None
        wall_ms = receipt.wall_ms - (receipt.at_s - from_s) * 1000
        if wall_ms < witness.floor_ms(from_s) or not witness.all_was_well(from_s, until_s):
            return None
        subject = reader.read_item(receipt.item).subject
        if self._gating and self._gating.is_gated(subject.decode(), ready_s - 1, receipt.at_s):
            return None
        known_s = self._known_from(receipts_of[subject], from_s)
        if known_s is None:
            return None
        since_s = from_s - _CALM_BEFORE_S
        if not any(
            witness.some_broker_was_calm([group], since_s, until_s)
            and places[group](since_s) == places[group](until_s) == master
            for group, master in self._meta.routed_all_along(subject.decode(), known_s, until_s)
        ):
            return None
        is_away = not self.well.lasted(from_s, until_s)
        self._counts[
            "had to be on time" + (" while the meta server was away" if is_away else "")
        ] += 1
        return receipt.at_s - from_s if receipt.at_s > until_s else None

    def _known_from(self, uses_s: list[float], at_s: float) -> float | None:
        """Return of which time on the routes of a subject count that are known at this one.

        `uses_s`: when messages of the subject left. None: it may be that no route is known.
        """
        began_s = self._witness.life_began(at_s)
        while True:
            heard_s = at_s - CONVERGED_S
            # A server that has just begun needs some time to ask.
            needed_s = at_s if began_s < heard_s else at_s + LEFT_S
            if self.well.lasted(heard_s, needed_s):
                return heard_s
            place = bisect_left(uses_s, at_s - _KNOWN_S)
            if place == len(uses_s) or not began_s < uses_s[place] < at_s:
                return None
            at_s = uses_s[place]

    def _complain(self, text: str) -> None:
        self._witness.complain(text)


def _some(cases: list[str]) -> str:
    return ", ".join(cases[:_SHOWN])
