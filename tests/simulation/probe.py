"""Looks whether a server in simulation holds no more in memory than its settings allow.

Promise 8 is the only one that neither peers nor the disk can see, so here, and only here, the
server's own counts are read. A look costs no step of any task; the world takes one whenever a
request reaches a broker.
"""

from collections.abc import Iterator

from delay_protocol.receivers.attaching import CREDIT_BYTES_MAX, CREDIT_ITEMS_MAX
from delay_server.server import DelayServer
from tests.simulation.witness import Witness

_ITEM_BYTES_MAX = 1 << 16
"""More than any item of the simulated producers has."""


class Probe:
    """Compares what one life of a server holds with its bounds."""

    def __init__(self, server: DelayServer, witness: Witness) -> None:
        self._server = server
        self._witness = witness

    def look(self) -> None:
        """Complain to the witness of every bound that is broken."""
        if not (self._server.ready.is_set() and self._server.is_master):
            return
        for what, held, bound in self._bounds():
            if held > bound:
                self._witness.complain(f"bounded: {held} {what}, at most {bound}")

    def look_at_the_end(self) -> None:
        """Complain of rows that are held though everything has left: they cost memory for good."""
        if not (self._server.ready.is_set() and self._server.is_master):
            return
        master = self._server.master
        master.handout.heed()
        held = int(master.handout._held_of.sum())
        # What is damaged is not handed out again.
        wanted = master.loader.held + master.undeliverable.count
        if held > wanted:
            self._witness.complain(f"bounded: {held} rows are held, by {wanted} messages")

    def _bounds(self) -> Iterator[tuple[str, int, int]]:
        """Yield what is held, how much of it, and how much it may be."""
        server = self._server
        config, sender = server.config.sender_config(), server.master.sender
        if not server.master.loader.filling.locked():
            # While it is, some more may have come that are just being thrown out again.
            yield (
                "entries in wheel and sender",
                server.master.loader.held,
                server.config.wheel.entries_max,
            )
        yield "entries in the sender", sender.unsent().total, config.entries_max
        lane_items = min(config.queue_lane_batches_min * config.batch_items, config.queue_items_max)
        # However much the others have there, each lane may have some turns' worth, and so may what
        # is late of it, which stands beside it.
        more = max(2 * len(sender.queued_by_lane()) - 1, 0) * lane_items
        for group in sender.status():
            # So may what goes alone, since receivers left with it.
            alone = sender.unsent().in_doubt if group.is_attached else 0
            most = config.queue_items_max + more + alone
            yield f"entries queued for {group.name}", group.queued, most
            yield (
                f"entries in flight to {group.name}",
                group.in_flight,
                CREDIT_ITEMS_MAX * max(group.window_requests, 1)
                if group.is_attached
                else config.in_flight_requests_max * config.batch_items,
            )
            # An item larger than the bound goes alone.
            yield (
                f"bytes in flight to {group.name}",
                group.in_flight_bytes,
                CREDIT_BYTES_MAX * max(group.window_requests, 1)
                if group.is_attached
                else max(config.in_flight_bytes_max, _ITEM_BYTES_MAX),
            )
