"""A store that was set back or lost: how that shows, and with which record a group goes on. Pure.

    it shows by      a group of which the file of records has nothing (record_file.py)
                     a node that was told a newer record than the store has, or another one of the
                     same epoch and version
    meanwhile        the record does not change, nobody is elected, and no node of the group is
                     registered; the master goes on by promises
    it ends when     the master that the newest record told names says that it may send, or
                     all nodes of the group have spoken, those in sync with the same disks, or
                     an operator gives up what is known to the others
    it goes on with  the newest record told, in a version above all that may have been told

A master that may send has no successor: a later record needs a vote of one who promised it, its own
handover, or its own proposal, and it does not send without the promise of those whom it proposes.
If the store is empty only the nodes themselves know how many there were.
"""

from collections.abc import Collection
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from delay_protocol.nodes import registration
from meta_server.known.errors import NotFoundError, NotNowError, RefusedError, StateError
from meta_server.known.model import Change, DelayGroup, Save, audited
from meta_server.known.record_file import VERSIONS_SKIPPED, raised
from meta_server.known.registry import Registry

RECOVER = "delay-group.recover"
"""In the audit: the store was set back, and has taken the newest record that is known."""


class Newest(NamedTuple):
    """The newest record of a group that is known, and who has not spoken."""

    group: DelayGroup
    shows: str
    """The sign that the store does not have it, or may not have it."""
    may_send: bool
    """True if its master says that it may send."""
    missing: list[str]

    @property
    def sentence(self) -> str:
        """The nodes that are waited for."""
        master = self.group.record.master
        sender = "" if master is None else f"{master.node_id} says that it may send, or "
        return (
            f"{self.shows}; the group goes on when {sender}these have spoken: "
            f"{', '.join(self.missing)}; or by `delaywheel admin recover "
            f"{self.group.name}`"
        )


class SetBacks:
    """The records that nodes were told, of each group: those that the store knows, and others."""

    def __init__(self, registry: Registry, *, unproven: Collection[str], groups_max: int) -> None:
        """Begin with the groups of which nothing shows that the store has the newest record."""
        self._registry = registry
        self._groups_max = groups_max
        self._suspects = {*unproven}
        """Groups of which nothing shows that the store has the newest record."""
        self._reported: dict[str, dict[str, registration.NodeRegister]] = {
            name: {} for name in unproven
        }
        """By group and node, by what it registered last: all that was told of any record."""

    def told(self, request: registration.NodeRegister) -> str:
        """Note what a node was told; return why its group's record is not the newest, if not.

        Raises NotNowError where too many groups are spoken of, RefusedError for what cannot be.
        """
        name, group = request.group, self._registry.delay_groups.get(request.group)
        told = None if request.told is None else request.told.record
        if told is not None and max(told.epoch, told.version) > registration.COUNTED_MAX:
            raise RefusedError("it says that it was told an epoch or version that no group reaches")
        if group is None and request.told is None and name not in self._reported:
            return ""
        if name not in self._reported and len(self._reported) >= self._groups_max:
            raise NotNowError(f"nodes of {self._groups_max} groups have spoken, which is the limit")
        if group is not None and group.log_uuid != request.log_uuid:
            # It was told of another log.
            request = msgspec.structs.replace(request, told=None)
        self._reported.setdefault(name, {})[request.node_id] = request
        return self.why_behind(name)

    def stored(self, group: DelayGroup) -> None:
        """Note that a record is stored: meanwhile no other than the newest is."""
        self._suspects.discard(group.name)

    def why_behind(self, name: str) -> str:
        """Return why the record of a group is not taken for the newest; empty if it is."""
        newest = self._newest(name)
        return "" if newest is None else newest.sentence

    def all_behind(self) -> dict[str, str]:
        """Return the groups of which the store has not the newest record, and what shows it."""
        return {name: why for name in sorted(self._reported) if (why := self.why_behind(name))}

    def _newest(self, name: str) -> Newest | None:
        """Return the newest record of a group if it is not known to be the store's."""
        reported, group = self._reported.get(name), self._registry.delay_groups.get(name)
        if reported is None:
            return None
        found, by = group, ""
        for one in reported.values():
            # Of two with one epoch and version it is the one that was told.
            if one.told and (found is None or registration.is_older(found.record, one.told.record)):
                by = one.node_id
                found = DelayGroup(
                    name=one.group,
                    cluster=one.cluster,
                    log_uuid=one.log_uuid,
                    record=one.told.record,
                )
        if found is None or (found == group and name not in self._suspects):
            return None
        record = found.record
        if found == group:
            shows = "this meta server has no file that shows that its store was not set back"
        else:
            has = "nothing" if group is None else _pair_text(group.record)
            shows = f"{by} was told {_pair_text(record)}, and this store has {has}: it was set back"
        known = {*record.in_sync}
        for one in reported.values():
            known.update(one.told.nodes if one.told else ())
        if group is not None:
            known.update(node.node_id for node in self._registry.nodes_in(group.cluster, name))
        missing = sorted(node for node in known if not _has_spoken(reported.get(node), record))
        master = None if record.master is None else reported.get(record.master.node_id)
        return Newest(found, shows, _may_send(master, record), missing)

    def plan_heal(self, name: str, *, now_ms: int) -> tuple[Change, ...]:
        """Return what stores the newest record; nothing while too little is known."""
        newest = self._newest(name)
        if newest is None or not (newest.may_send or not newest.missing):
            return ()
        actor = "the meta server, by what nodes were told"
        return self._plan(newest, newest.group.record, actor=actor, now_ms=now_ms)

    def plan_recover(
        self, name: str, *, lose_messages: bool, actor: str, now_ms: int
    ) -> tuple[Change, ...]:
        """Return what has a group go on without those who are missing: an election begins.

        Where none of those in sync has spoken it begins again with the next node that registers.
        Raises NotFoundError, or StateError if it is not to be done.
        """
        newest = self._newest(name)
        if newest is None and name not in self._registry.delay_groups:
            raise NotFoundError(f"no node has spoken of a delay group {name!a}")
        if newest is None:
            raise StateError(f"{name} has its newest record: nothing is to be recovered")
        missing = ", ".join(newest.missing)
        if not lose_messages:
            raise StateError(
                f"{newest.shows}. {missing} have not spoken: start them, since what only they have "
                "is lost otherwise, or say that messages may be lost (--lose-messages)"
            )
        record = newest.group.record
        in_sync = {
            node: disk for node, disk in record.in_sync.items() if node not in newest.missing
        }
        record = msgspec.structs.replace(
            record,
            # Who is missing may know of later ones.
            epoch=record.epoch + VERSIONS_SKIPPED,
            master=None,
            in_sync=in_sync,
            min_isr=min(record.min_isr, max(len(in_sync), 1)),
            phase=registration.Phase.ELECTING,
        )
        return self._plan(newest, record, actor=actor, now_ms=now_ms)

    def _plan(
        self, newest: Newest, record: registration.GroupRecord, *, actor: str, now_ms: int
    ) -> tuple[Change, ...]:
        """Return what stores a record; where clients find it follows when its master registers."""
        group = self._registry.delay_groups.get(newest.group.name)
        after = replace(newest.group, record=raised(record, group))
        path = f"{after.cluster}/{after.name}"
        entry = audited(RECOVER, path, group, after, actor=actor, at_ms=now_ms)
        return (Save(after, over=None if group is None else group.etag), entry)


def _pair_text(record: registration.GroupRecord) -> str:
    return f"epoch {record.epoch}, version {record.version}"


def _has_spoken(node: registration.NodeRegister | None, record: registration.GroupRecord) -> bool:
    """Return True if a node has registered, with its disk in sync if it has one."""
    return node is not None and node.storage_uuid == record.in_sync.get(
        node.node_id, node.storage_uuid
    )


def _may_send(node: registration.NodeRegister | None, record: registration.GroupRecord) -> bool:
    """Return True if a node says as the master of a record that it may send by that record."""
    return (
        node is not None
        and record.master == registration.Master(node_id=node.node_id, incarnation=node.incarnation)
        and _has_spoken(node, record)
        and node.told is not None
        and node.told.record == record
        and node.stands.may_send
    )
