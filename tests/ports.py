"""Ports for processes that are told where to listen, or that nobody listens on."""

import itertools
import os
import re
import socket
from collections.abc import Iterator

# Below the range from which Linux takes the local ports of connections (32768 to 60999): between
# the choice of a port and a server's bind, or between two lives of a server, no connection of
# another test can take it.
_FIRST = 12_000
_PORTS_OF_A_WORKER = 2_000
_WORKERS = 10


def _ports_of_this_process() -> Iterator[int]:
    """Return the ports of this worker of pytest-xdist, from one that its process id chooses."""
    worker = re.fullmatch(r"gw(\d+)", os.environ.get("PYTEST_XDIST_WORKER", ""))
    # The last share is for processes that are no worker.
    share = int(worker[1]) % (_WORKERS - 1) if worker else _WORKERS - 1
    first = _FIRST + share * _PORTS_OF_A_WORKER
    turn = os.getpid() * 101 % _PORTS_OF_A_WORKER
    ports = range(first, first + _PORTS_OF_A_WORKER)
    return itertools.cycle([*ports[turn:], *ports[:turn]])


_ports = _ports_of_this_process()


def closed_port() -> int:
    """Return a port of the loopback on which nobody listens; another one at each call."""
    for port in itertools.islice(_ports, _PORTS_OF_A_WORKER):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise OSError("no free port is left for this process's servers")
