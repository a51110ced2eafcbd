"""What the peers of a simulated meta server saw, and the judge of each thing that they were told.

The judge knows what peers saw and what the store holds (`meta_store.Medium`, with its history), and
nothing of the meta server's memory. It works out by itself, from QMQ's protocol and the rules of
the design, what an answer has to be: of an answer it is known between which two moments it was
given, so it has to be right for the store as it was at one of them.

Names of promises that complaints begin with: right (an answer), stable, time (timestamps), kept,
record, role, refused, alive, dead, pushed, told (controls), answered, bounded, serves.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import UUID

import trio

from delay_protocol.meta.requests import (
    BrokerGroupInfo,
    BrokerRequestType,
    BrokerState,
    ClientRegisterReply,
    ClientType,
    OnlineState,
)
from delay_protocol.nodes.controls import Controls
from delay_protocol.nodes.registration import NodeRegister, NodeRegistered, NodeRole
from meta_server.known import model
from tests.simulation.meta_store import (
    Medium,
    Moment,
    record_of,
)

CLUSTER = "c1"
"""Of all delay servers."""
CONTROLS_WITHIN_S = 1.0
"""In which a node that is connected is told what is paused."""
_COMPLAINTS_MAX = 20
_CALM_S = 60.0
"""When nothing has been amiss for so long everybody is connected."""
_ARRIVES_S = 2.0
"""What comes when nothing is amiss was sent so long ago at most."""
_WRITABLE = (BrokerState.RW, BrokerState.W)
_LOOK_S = 0.5
"""How exactly the meta server looks at silence."""
_TAKEN_OFF_S = 3.0
"""From the end of a time-out until the store says so, when nothing is amiss."""
_WAITED_S = 8.0
"""How long what is new may wait for the store."""
_ON_ITS_WAY_S = 60.0
"""What was sent may arrive so much later: stalled in a link that is silent, or in a stopped
machine."""


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a subject, as a client registers it."""

    client_type: int
    subject: str
    consumer_group: str
    client_id: str

    @property
    def routed(self) -> str:
        """The real subject: the middle of a retry subject."""
        if self.subject.startswith(("%RETRY%", "%DEAD_RETRY%")):
            return self.subject.split("%")[2]
        return self.subject


@dataclass(slots=True)
class Said:
    """Something that a broker said, or the server heard."""

    sent_s: float
    what: BrokerRequestType
    state: BrokerState
    address: str
    acknowledged_s: float = math.inf


@dataclass(slots=True)
class Lease:
    """A node that was told that it is master."""

    process: object
    """Who: a process, not only its identity."""
    until_s: float


Groups = tuple[BrokerGroupInfo, ...]


@dataclass(slots=True, kw_only=True)
class Rules:
    """Settings that the judge has to know."""

    delay_groups_per_subject: int
    groups_per_subject: int
    broker_timeout_s: float
    new_subjects_per_second: float
    new_subjects_burst: float


class MetaWitness:
    """Everything that peers saw, judged as it comes and once more at the end."""

    def __init__(self, medium: Medium, rules: Rules) -> None:
        self.medium = medium
        self.rules = rules
        self.complaints: list[str] = []
        self.counts: Counter[str] = Counter()
        """Answers, pushes, registrations, refusals."""
        self.latest_ms = -(2**63)
        """The latest timestamp that any client has seen."""
        self.told: dict[str, tuple[int, int]] = {}
        """By group: the highest epoch and version that any node was told."""
        self.controls_version = 0
        """The highest version of controls that any node was told."""
        self.said: dict[str, list[Said]] = {}
        """By broker group."""
        self.away: dict[str, list[tuple[float, float]]] = {}
        """By broker group: from when until when nobody spoke for it."""
        self.starts_s: list[float] = []
        """When the meta server began to answer."""
        self.calm: list[tuple[float, float]] = []
        """From when until when it lived, with a store in order and no link silent."""
        self.stalls: list[tuple[float, float]] = []
        """When everything stood still, and for how long."""
        self._calm_since: float | None = None
        self._was_set_back = False
        self._ranks: dict[tuple[str, frozenset[tuple[str, int]]], tuple[str, ...]] = {}
        self._masters: dict[tuple[str, int], tuple[object, ...]] = {}
        self._roles: dict[tuple[str, str, str], NodeRole] = {}
        self._leases: dict[str, list[Lease]] = {}

    def complain(self, what: str) -> None:
        """Note a broken promise."""
        if len(self.complaints) < _COMPLAINTS_MAX:
            self.complaints.append(f"{what} (at {trio.current_time():.3f} s)")

    # -- what the world says -----------------------------------------------------------------

    def be_calm(self, *, calm: bool) -> None:
        """Note that from now on nothing is amiss, or that something is."""
        now = trio.current_time()
        if calm and self._calm_since is None:
            self._calm_since = now
        elif not calm and self._calm_since is not None:
            self.calm.append((self._calm_since, now))
            self._calm_since = None

    def calm_seconds(self) -> float:
        """Return for how long nothing has been amiss."""
        since = self._calm_since
        return 0.0 if since is None else trio.current_time() - since

    # -- clients -----------------------------------------------------------------------------

    def answered(
        self, use: Use, reply: ClientRegisterReply, *, since_s: float, floor_ms: int, pushed: bool
    ) -> None:
        """Judge an answer that was given not before `since_s`.

        floor_ms: the latest timestamp that anybody had seen by then.
        """
        self.counts["pushes" if pushed else "answers"] += 1
        if reply.timestamp_ms < floor_ms:
            self.complain(
                f"time: {use.client_id} was told {reply.timestamp_ms}, after {floor_ms} was told"
            )
        if not self._was_set_back:
            self.latest_ms = max(self.latest_ms, reply.timestamp_ms)
        first, last = self.medium.known_at(since_s), len(self.medium.commits)
        candidates = list(self._moments(use.routed, first, last))
        fitting = [moment for moment in candidates if self._fits(use, reply, moment)]
        if not fitting:
            self.complain(
                f"right: {use} was told {_shown(reply)}; of {len(candidates)} moments since "
                f"{since_s:.3f} s none says so, the last one {self.expected(use)}"
            )
        elif use.client_type == ClientType.DELAY_PRODUCER and len(candidates) == 1:
            self._remember_rank(use.routed, reply.groups, fitting[0])

    def _moments(self, subject: str, first: int, last: int) -> Iterator[Moment]:
        """Yield the moments at which what is routed may have been another one."""
        medium = self.medium
        found = {first}
        for key in medium.keys(model.BrokerGroup):
            found.update(medium.changed_in(model.BrokerGroup, key, first, last))
        for key in medium.keys(model.Route):
            if key[1] or key[0] == subject:
                found.update(medium.changed_in(model.Route, key, first, last))
        yield from map(Moment, sorted(found))
        if late := medium.late_after(first):
            yield from (Moment(number, late) for number in sorted(found))

    def expected(self, use: Use) -> str:
        """Return what the store says now, for people."""
        now = Moment(len(self.medium.commits))
        if use.client_type == ClientType.DELAY_PRODUCER:
            return f"some of {sorted(self._pool(now)[0])}"
        return f"{[(group.name, group.state.name) for group in self._normal(use, now)]}"

    def was_right(self, use: Use, reply: ClientRegisterReply, since_s: float) -> bool:
        """Say whether an answer is what the store says, or said since then.

        When a group was changed last is not told anew if nothing else is.
        """
        first, last = self.medium.number_at(since_s), len(self.medium.commits)
        return any(
            self._fits(use, reply, moment, exactly=False)
            for moment in self._moments(use.routed, first, last)
        )

    def was_routed(self, subject: str, group: str, since_s: float, until_s: float) -> bool:
        """Say whether a producer of a subject may have gone by a route to this group in this time.

        Where it has no group, by the route before: only a push takes the last group away, and who
        is away then gets none.
        """
        use = Use(ClientType.PRODUCER, subject, "", "")
        first, last = self.medium.known_at(since_s), self.medium.number_at(until_s)
        told = self._names(use, first, last)
        if not all(told):
            told += [names for names in self._names(use, 0, first) if names][-1:]
        return any(group in names for names in told)

    def _names(self, use: Use, first: int, last: int) -> list[set[str]]:
        return [
            {info.name for info in self._normal(use, moment)}
            for moment in self._moments(use.routed, first, last)
        ]

    def routed_all_along(
        self, subject: str, since_s: float, until_s: float
    ) -> set[tuple[str, str]]:
        """Return the groups, with addresses, of which a producer was told all this time."""
        use = Use(ClientType.PRODUCER, subject, "", "")
        first, last = self.medium.known_at(since_s), self.medium.number_at(until_s)
        told = [
            {(info.name, info.master) for info in self._normal(use, moment)}
            for moment in self._moments(use.routed, first, last)
        ]
        return set.intersection(*told)

    def store_set_back(self) -> None:
        """Note that the store is what it was before: timestamps may begin there as well."""
        self.latest_ms = -(2**63)
        self._was_set_back = True

    def _fits(
        self, use: Use, reply: ClientRegisterReply, moment: Moment, *, exactly: bool = True
    ) -> bool:
        groups = self._normal(use, moment)
        if reply.online_state is not OnlineState.ONLINE:
            return False
        if use.client_type != ClientType.DELAY_PRODUCER:
            return _told(reply.groups, exactly=exactly) == _told(groups, exactly=exactly)
        pool, takes = self._pool(moment)
        if len(reply.groups) != min(self.rules.delay_groups_per_subject, len(pool)):
            return False
        for info in reply.groups:
            group = pool.get(info.name)
            state_told = group.state if takes and group else BrokerState.RW
            if group is None:
                return False
            wanted = (_info(group, state_told),)
            if _told((info,), exactly=exactly) != _told(wanted, exactly=exactly):
                return False
        ranked = self._ranks.get((use.routed, _weighed(pool)))
        return ranked is None or ranked == tuple(info.name for info in reply.groups)

    def _normal(self, use: Use, moment: Moment) -> Groups:
        """Return what a client has to get that is no delay producer."""
        medium = self.medium
        groups = []
        for name in self._route(use.routed, moment):
            group = medium.row_at(model.BrokerGroup, name, moment)
            if group is None or group.is_retired or group.state is BrokerState.NRW:
                continue
            if use.client_type == ClientType.PRODUCER and group.is_read_only:
                continue
            groups.append(_info(group, group.state))
        return tuple(groups)

    def _route(self, subject: str, moment: Moment) -> tuple[str, ...]:
        medium = self.medium
        own: model.Route | None = medium.row_at(model.Route, (subject, False), moment)
        if own is not None:
            return own.groups
        for length in range(len(subject), -1, -1):
            prefix: model.Route | None = medium.row_at(
                model.Route, (subject[:length], True), moment
            )
            if prefix is not None:
                return prefix.groups
        return ()

    def _pool(self, moment: Moment) -> tuple[dict[str, model.BrokerGroup], bool]:
        """Return the delay groups of which a producer gets some, and whether they take messages."""
        rows = (
            self.medium.row_at(model.BrokerGroup, key, moment)
            for key in self.medium.keys(model.BrokerGroup)
        )
        known = {
            group.name: group
            for group in rows
            if group is not None
            and group.kind is model.GroupKind.DELAY
            and not group.is_retired
            and group.master
        }
        open_to_it = {name: group for name, group in known.items() if not group.is_read_only}
        taking = {name: group for name, group in open_to_it.items() if group.state in _WRITABLE}
        return taking or open_to_it or known, bool(taking)

    def _remember_rank(self, subject: str, groups: Groups, moment: Moment) -> None:
        pool, _ = self._pool(moment)
        weighed = _weighed(pool)
        names = tuple(group.name for group in groups)
        self._ranks.setdefault((subject, weighed), names)
        # A group that goes away is replaced for its own subjects only.
        for (other, pool_then), names_then in self._ranks.items():
            gone = pool_then - weighed
            if other != subject or weighed - pool_then or len(gone) != 1:
                continue
            [(name, _)] = gone
            if name not in names_then and names_then != names:
                self.complain(
                    f"stable: {subject} went from {names_then} to {names} because {name} went"
                )

    # -- brokers -----------------------------------------------------------------------------

    def broker_says(
        self, group: str, what: BrokerRequestType, state: BrokerState, address: str
    ) -> Said:
        """Note what the master of a group sends now."""
        said = Said(trio.current_time(), what, state, address)
        self.said.setdefault(group, []).append(said)
        return said

    def broker_heard(self, group: str, said: Said) -> None:
        """Judge an acknowledgement: the store has to have had what was said."""
        said.acknowledged_s = trio.current_time()
        self.counts["broker registrations"] += 1
        state = {
            BrokerRequestType.ONLINE: BrokerState.RW,
            BrokerRequestType.OFFLINE: BrokerState.NRW,
        }.get(said.what, said.state)
        first, last = self.medium.known_at(said.sent_s), len(self.medium.commits)
        moments = {first, *self.medium.changed_in(model.BrokerGroup, group, first, last)}
        rows = [self.medium.row_at(model.BrokerGroup, group, number) for number in moments]
        if not any(row and (row.master, row.state) == (said.address, state) for row in rows):
            now = rows and rows[-1]
            self.complain(
                f"kept: {said.what.name} of {group} at {said.address} was acknowledged, and the "
                f"store never said {state.name}: {now}"
            )

    def gone(self, group: str, since_s: float, until_s: float) -> None:
        """Note that nobody spoke for a group in this time."""
        self.away.setdefault(group, []).append((since_s, until_s))

    # -- nodes -------------------------------------------------------------------------------

    def node_registered(
        self,
        process: object,
        request: NodeRegister,
        reply: NodeRegistered,
        *,
        sent_s: float,
        floor: tuple[int, int],
    ) -> None:
        """Judge the role that a node was given; floor: what anybody had been told by then."""
        self.counts["node registrations"] += 1
        medium, record = self.medium, reply.record
        name = f"{request.node_id} of {request.group}"
        pair = (record.epoch, record.version)
        if pair < floor:
            self.complain(f"record: {name} was told {pair} after {floor} was told")
        self.told[request.group] = max(pair, self.told.get(request.group, pair))
        first, last = medium.known_at(sent_s), len(medium.commits)
        moments = {first, *medium.changed_in(model.DelayGroup, request.group, first, last)}
        rows = [medium.row_at(model.DelayGroup, request.group, number) for number in moments]
        if not any(row is not None and row.record == record for row in rows):
            self.complain(f"kept: {name} was told {pair}, which the store did not say")
        key = (request.cluster, request.group, request.node_id)
        moments = {first, *medium.changed_in(model.DelayNode, key, first, last)}
        nodes = [medium.row_at(model.DelayNode, key, number) for number in moments]
        is_kept = any(
            node is not None
            and (node.storage_uuid, node.incarnation, node.boot_id, node.address)
            == (request.storage_uuid, request.incarnation, request.boot_id, request.address)
            and node.last_epoch == request.last_epoch
            for node in nodes
        )
        if not is_kept:
            self.complain(f"kept: {name} was told that it is registered, and the store has it not")
        if self._roles.setdefault(key, reply.role) is not reply.role:
            self.complain(f"role: {name} was {self._roles[key].name}, is now {reply.role.name}")
        if reply.role is NodeRole.MASTER:
            self._judge_master(process, request, reply, sent_s)

    def _judge_master(
        self, process: object, request: NodeRegister, reply: NodeRegistered, sent_s: float
    ) -> None:
        record = reply.record
        name = f"{request.node_id} of {request.group}"
        master = record.master
        who = (request.node_id, request.storage_uuid, request.incarnation, request.boot_id)
        if master is None or (master.node_id, master.incarnation) != (who[0], who[2]):
            self.complain(f"record: {name} was told that it is master, the record says {master}")
        if record.in_sync.get(request.node_id) != request.storage_uuid:
            self.complain(f"record: {name} was told that it is master and is not in sync")
        if self._masters.setdefault((request.group, record.epoch), who) != who:
            self.complain(
                f"record: epoch {record.epoch} of {request.group} has two masters: {who} and "
                f"{self._masters[request.group, record.epoch]}"
            )
        if record.epoch < request.last_epoch:
            self.complain(f"record: {name} has epoch {request.last_epoch}, told {record.epoch}")
        now = trio.current_time()
        leases = self._leases.setdefault(request.group, [])
        for lease in leases:
            if lease.process is not process and lease.until_s > now:
                self.complain(f"record: two processes of {request.group} were let in")
        leases[:] = [lease for lease in leases if lease.process is not process]
        leases.append(Lease(process, sent_s + 2.5 * reply.again_ms / 1000))

    def node_ended(self, process: object) -> None:
        """Note that a process is dead: its lease is worth nothing."""
        for leases in self._leases.values():
            leases[:] = [lease for lease in leases if lease.process is not process]

    # -- controls of delay servers -------------------------------------------------------------

    def controls_told(
        self,
        node: tuple[str, str, str],
        told: Controls | None,
        *,
        before: Controls | None,
        storage_uuid: UUID,
        sent_s: float,
        floor: int,
    ) -> None:
        """Judge what a node was told of its cluster's controls: a document, or nothing new.

        before: what it was told before on this connection; floor: the highest version that any node
        had been told when it asked.
        """
        medium, now = self.medium, trio.current_time()
        cluster, _group, name = node
        self.counts["controls told" if told else "no other controls"] += 1
        is_calm = self.calm_seconds() > _CALM_S
        since_s = max(sent_s, now - _ARRIVES_S) if is_calm else sent_s
        first, last = medium.known_at(since_s), len(medium.commits)
        moments = [first, *medium.controls_in(cluster, first, last)]
        document = before if told is None else told
        if document is None or document not in [medium.controls_at(cluster, at) for at in moments]:
            self.complain(
                f"told: {name} was told {document}; of {len(moments)} moments since "
                f"{since_s:.3f} s none says so, the last one {medium.controls_at(cluster, last)}"
            )
        elif told is not None and told == before:
            self.complain(f"told: {name} was told {told.version} again, which it knew")
        elif told is not None and told.version < floor:
            self.complain(f"told: {name} was told {told.version}, after {floor} was told")
        elif is_calm and before is not None:
            at_s = now - CONTROLS_WITHIN_S
            known = medium.controls_at(cluster, medium.known_at(at_s))
            if sent_s < at_s and known.version > before.version:
                self.complain(f"told: {name} heard late that {known.version} is the version")
        if told is not None:
            self.controls_version = max(self.controls_version, told.version)
        moments = [first, *medium.changed_in(model.DelayNode, node, first, last)]
        rows = [medium.row_at(model.DelayNode, node, at) for at in moments]
        if not any(row is not None and row.storage_uuid == storage_uuid for row in rows):
            self.complain(f"told: {name} was told controls and is not registered: {rows}")

    def controls_unanswered(self, name: str, sent_s: float) -> None:
        """Note that a node was not answered in the time in which it has to be."""
        if self.calm_seconds() > _CALM_S + trio.current_time() - sent_s:
            self.complain(f"answered: {name} asked for controls at {sent_s:.3f} s")

    def has_controls(self, told: Controls | None, since_s: float) -> bool:
        """Say whether this is what the store says of the only cluster, or said since then."""
        medium = self.medium
        first, last = medium.known_at(since_s), len(medium.commits)
        moments = [first, *medium.controls_in(CLUSTER, first, last)]
        return told in [medium.controls_at(CLUSTER, at) for at in moments]

    def controls_changed(
        self, cluster: str, what: str, fits: Callable[[Controls], bool], *, since_s: float
    ) -> None:
        """Judge that an operator was told that controls are as he wants; he asked at `since_s`."""
        self.counts["controls changed"] += 1
        medium = self.medium
        first, last = medium.number_at(since_s), len(medium.commits)
        moments = [first, *medium.controls_in(cluster, first, last)]
        if not any(fits(medium.controls_at(cluster, at)) for at in moments):
            self.complain(
                f"kept: a change of controls ({what}) was acknowledged, and the store never had "
                f"it: {medium.controls_at(cluster, last)}"
            )

    def judge_controls(self) -> None:
        """Every version has its successor and its entry in the audit, in the same commit."""
        for number, _, row in self._own_saves():
            if not isinstance(row, model.ClusterControls):
                continue
            cluster, version = row.cluster, row.version
            before = self.medium.controls_at(cluster, number - 1)
            if version != before.version + 1:
                self.complain(f"told: controls went from {before.version} to {version}")
            entries = [
                one.entry
                for one in self.medium.commits[number - 1].changes
                if isinstance(one, model.Audit) and "-rule." in one.entry.action
            ]
            if not any(entry.target.startswith(f"{cluster}/") for entry in entries):
                self.complain(f"kept: version {version} of controls has no entry in the audit")

    # -- at the end --------------------------------------------------------------------------

    def judge_store(self) -> None:
        """Judge everything that was ever kept."""
        self.be_calm(calm=False)
        self._judge_records()
        self._judge_routes()
        self._judge_silence()
        self._judge_moves()
        self._judge_deaths()
        self._judge_new_subjects()
        self.judge_controls()

    def _own_saves(self) -> Iterator[tuple[int, float, model.Row]]:
        for commit in self.medium.commits:
            if not commit.foreign:
                for change in commit.changes:
                    if isinstance(change, model.Save):
                        yield commit.number, commit.at_s, change.row

    def _judge_records(self) -> None:
        for number, _, row in self._own_saves():
            if not isinstance(row, model.DelayGroup):
                continue
            name = row.name
            before = self.medium.row_at(model.DelayGroup, name, number - 1)
            if before is None:
                continue
            if record_of(row) <= record_of(before):
                self.complain(f"record: {name} went from {record_of(before)} to {record_of(row)}")
            old, new = before.record, row.record
            if old.master != new.master and old.epoch == new.epoch:
                self.complain(f"record: {name} has another master in the same epoch {new.epoch}")
            if len(new.in_sync) < new.min_isr or set(new.in_sync) - set(old.in_sync):
                self.complain(f"record: {name} has {sorted(new.in_sync)} in sync")

    def _judge_routes(self) -> None:
        rules = self.rules
        for number, _, row in self._own_saves():
            if not isinstance(row, model.Route) or not row.is_chosen:
                continue
            new = row
            before: model.Route | None = self.medium.row_at(
                model.Route, (new.name, False), number - 1
            )
            old = () if before is None else before.groups
            if new.groups[: len(old)] != old or len(set(new.groups)) != len(new.groups):
                self.complain(f"stable: the route of {new.name} went from {old} to {new.groups}")
            added = new.groups[len(old) :]
            if not all(self._might_take(name, number) for name in added):
                self.complain(f"right: {new.name} was routed to {added}, of which one is away")
            counting = [name for name in old if not self._might_be_gone(name, number)]
            if added and len(counting) + len(added) > rules.groups_per_subject:
                self.complain(f"stable: {new.name} has {old}, which is enough, and got {added}")

    def _might_take(self, name: str, number: int) -> bool:
        """Say whether a group could be routed to when a commit was planned."""
        return any(
            group is not None
            and group.kind is model.GroupKind.NORMAL
            and not group.is_retired
            and group.state is not BrokerState.NRW
            for group in self._lately(name, number)
        )

    def _might_be_gone(self, name: str, number: int) -> bool:
        """Say whether a group did not count when a commit was planned."""
        return any(group is None or group.is_retired for group in self._lately(name, number))

    def _lately(self, name: str, number: int) -> list[model.BrokerGroup | None]:
        """Return a group as it was while a commit was planned and waited for the store."""
        planned_s = self.medium.commits[number - 1].at_s - _WAITED_S
        first = min(self.medium.number_at(planned_s), number - 1)
        moments = {first, *self.medium.changed_in(model.BrokerGroup, name, first, number - 1)}
        # What the store kept late is not known to a server that has loaded everything before.
        changed = self.medium.changed_in(model.BrokerGroup, name, 0, number - 1)
        moments |= {one - 1 for one in self.medium.late_after(0).intersection(changed)}
        return [self.medium.row_at(model.BrokerGroup, name, moment) for moment in moments]

    def _judge_silence(self) -> None:
        """No group that is spoken for falls silent, also not because the meta server restarted."""
        for number, at_s, row in self._own_saves():
            if not isinstance(row, model.BrokerGroup):
                continue
            name = row.name
            before = self.medium.row_at(model.BrokerGroup, name, number - 1)
            was_there = before is not None and before.state is not BrokerState.NRW
            if not was_there or row.state is not BrokerState.NRW:
                continue
            said = [one for one in self.said.get(name, ()) if one.sent_s <= at_s]
            if any(
                one.state is BrokerState.NRW and one.sent_s > at_s - _ON_ITS_WAY_S for one in said
            ):
                continue
            heard_s = [one.sent_s for one in said if one.acknowledged_s <= at_s]
            since_s = max([*heard_s, *(start for start in self.starts_s if start <= at_s)])
            stalled_s = sum(
                seconds for when, seconds in self.stalls if when + seconds > since_s and when < at_s
            )
            silent_s = at_s - since_s - stalled_s
            if silent_s < self.rules.broker_timeout_s - _LOOK_S:
                self.complain(
                    f"alive: {name} was taken off at {at_s:.3f} s, {silent_s:.3f} s after it was "
                    "heard of or the meta server began"
                )

    def _judge_moves(self) -> None:
        """No group that is spoken for from its address gets another one.

        But by its record, which says where its master is.
        """
        for number, at_s, row in self._own_saves():
            if not isinstance(row, model.BrokerGroup):
                continue
            name, now = row.name, row
            before = self.medium.row_at(model.BrokerGroup, name, number - 1)
            if before is None or name in self.medium.rows[model.DelayGroup]:
                continue
            if before.master == now.master or before.state is BrokerState.NRW:
                continue
            heard_s = max(
                (
                    one.sent_s
                    for one in self.said.get(name, ())
                    if one.address == before.master and one.acknowledged_s < at_s - _WAITED_S
                ),
                default=-math.inf,
            )
            if at_s - heard_s < self.rules.broker_timeout_s:
                self.complain(
                    f"alive: {name} went from {before.master} to {now.master} at {at_s:.3f} s, "
                    f"{at_s - heard_s:.3f} s after the former was heard of"
                )

    def _judge_deaths(self) -> None:
        """A group that nobody speaks for is off within the time-out, and a little more."""
        needed_s = self.rules.broker_timeout_s + _TAKEN_OFF_S
        for name, times in self.away.items():
            for gone_s, back_s in times:
                for calm_from, calm_to in self.calm:
                    begins_s = max(gone_s + 1.0, calm_from)
                    stalled_s = sum(
                        seconds
                        for when, seconds in self.stalls
                        if begins_s <= when + seconds and when <= begins_s + needed_s
                    )
                    off_s = begins_s + needed_s + stalled_s
                    if off_s > min(back_s, calm_to):
                        continue
                    number = self.medium.number_at(off_s)
                    group = self.medium.row_at(model.BrokerGroup, name, number)
                    if group is not None and group.state is not BrokerState.NRW:
                        self.complain(
                            f"dead: {name} is gone since {gone_s:.3f} s and {group.state.name} "
                            f"at {off_s:.3f} s"
                        )

    def _judge_new_subjects(self) -> None:
        """New subjects come no faster than the settings say."""
        rules = self.rules
        # Poured when they came, kept up to so much later.
        most = rules.new_subjects_burst + rules.new_subjects_per_second * _WAITED_S + 1
        level = before_s = 0.0
        for _, at_s, row in self._own_saves():
            if not isinstance(row, model.Subject):
                continue
            if any(before_s < start <= at_s for start in self.starts_s):
                level = 0.0
            level = max(level - (at_s - before_s) * rules.new_subjects_per_second, 0.0) + 1
            before_s = at_s
            if level > most:
                self.complain(f"bounded: {level:.0f} new subjects at once, at most {most:.0f}")
                return

    def subjects(self) -> int:
        """Return how many subjects the store has."""
        return len(self.medium.rows[model.Subject])


def _info(group: model.BrokerGroup, state: BrokerState) -> BrokerGroupInfo:
    return BrokerGroupInfo(
        name=group.name, master=group.master, updated_ms=group.updated_ms, state=state
    )


def _told(groups: Groups, *, exactly: bool) -> tuple[object, ...]:
    return groups if exactly else tuple((info.name, info.master, info.state) for info in groups)


def _weighed(pool: dict[str, model.BrokerGroup]) -> frozenset[tuple[str, int]]:
    return frozenset((group.name, group.weight) for group in pool.values())


def _shown(reply: ClientRegisterReply) -> str:
    groups = [(info.name, info.master, info.updated_ms, info.state.name) for info in reply.groups]
    return f"{reply.online_state.name} {groups}"
