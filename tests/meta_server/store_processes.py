"""What the tests of the store run in processes of their own: a writer to kill, and a racer."""

import random
import sys
from uuid import UUID

from msgspec.structs import replace

from delay_protocol.nodes.registration import GroupRecord, Master, Phase
from meta_server.known import model
from meta_server.known.errors import ConflictError
from meta_server.sql.databases import read_url
from meta_server.sql.store import SqlStore, open_store


def _open(url: str) -> SqlStore:
    return open_store(read_url(url), chance=random.Random(0))


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def write(url: str, start: int) -> None:
    """Save one subject after another with its route and audit; print each when it is durable."""
    store = _open(url)
    _say("ready")
    for number in range(start, sys.maxsize):
        name = f"s{number}"
        entry = model.AuditEntry(at_ms=number, actor="writer", action="subject.add", target=name)
        store.commit(
            [
                model.Save(model.Subject(name=name)),
                model.Save(model.Route(name=name, groups=("g",))),
                model.Audit(entry),
            ]
        )
        _say(number)


def race(url: str, node_id: str, wins: int) -> None:
    """Make itself the master of a group again and again; print each (epoch, version) it won."""
    store = _open(url)
    _say("ready")
    sys.stdin.readline()
    while wins:
        [group] = store.load().of(model.DelayGroup)
        before = (group.record.epoch, group.record.version)
        record = GroupRecord(
            epoch=before[0] + 1,
            version=before[1] + 1,
            master=Master(node_id=node_id, incarnation=1),
            in_sync={node_id: UUID(int=before[0])},
            min_isr=1,
            phase=Phase.ACTIVE,
        )
        after = replace(group, record=record)
        entry = model.AuditEntry(at_ms=1, actor=node_id, action="elect", target=str(record.epoch))
        try:
            store.commit([model.Save(after, over=group.etag), model.Audit(entry)])
        except ConflictError:
            continue
        _say(*before)
        wins -= 1


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", url, start]:
            write(url, int(start))
        case ["race", url, node_id, wins]:
            race(url, node_id, int(wins))
