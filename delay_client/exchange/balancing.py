"""Balancing: which server of a lane gets a batch. Pure.

The least loaded one; failures in a row count as load; of equals the first is used. Choosing the
better of two at random helps where load is known late or in part. Here the requests in flight are
known exactly, the servers are few, and while little is in flight a subject's messages stay with one
group. A message whose id the user gave goes to the group that subject and id name, and elsewhere
only if that fails.
"""

import math

from delay_client.exchange.batches import Batch, BatchLink, Lane


def choose_link(lane: Lane, batch: Batch, now: float) -> BatchLink | None:
    """Return the link for a batch, if any has room.

    Messages with given ids wait for their home, unless it failed: then another gets them, and if
    its connection is lost it is made again.
    """
    home = lane.home
    if home is not None and home.server != batch.avoid:
        if home.is_hopeful:
            return home if home.has_room() else None
        home.is_missed = True
    return _choose_any(lane, batch, now)


def _choose_any(lane: Lane, batch: Batch, now: float) -> BatchLink | None:
    """Return the link for a batch: a probe that is due, else the least loaded, if any has room.

    The one that failed it last only if no other can take it, and probes are for batches that did
    not fail before, as long as any server of the lane takes more than probes.
    """
    chosen: BatchLink | None = None
    spare: BatchLink | None = None
    least = math.inf
    is_closed = False
    for link in lane.links:
        circuit = link.circuit
        if circuit.is_open:
            if now >= circuit.probe_at and not batch.attempts and link.takes_probe():
                return link
            continue
        is_closed = True
        if not link.has_room():
            continue
        if link.group == batch.held_for:
            return link
        if link.server == batch.avoid:
            spare = link
            continue
        load = (link.requests_in_flight + 1) * (circuit.failures + 1)
        if load < least:
            chosen, least = link, load
    if is_closed:
        return chosen or spare
    last_resort = [
        link for link in lane.links if now >= link.circuit.last_resort_at and link.takes_probe()
    ]
    others = [link for link in last_resort if link.server != batch.avoid]
    return next(iter(others or last_resort), None)
