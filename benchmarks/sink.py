"""A listener that does next to nothing: `python -m benchmarks.sink PORT`.

What bad peers take from a server that they do not even talk to. It reads a connection once, says
that it is done, and closes it when its peer does or after a second, as a delay server would.
Prints `ready`; ends with SIGTERM.
"""

import os
import selectors
import socket
import sys
import time
from collections import deque

_RECEIVE_BYTES = 65536
_LINGER_S = 1.0


def main(port: int) -> None:
    """Serve until killed."""
    with socket.create_server(("127.0.0.1", port), backlog=1024) as listening:
        listening.settimeout(0)
        waiting = selectors.DefaultSelector()
        waiting.register(listening, selectors.EVENT_READ)
        over: deque[tuple[float, socket.socket]] = deque()
        print("ready", flush=True)
        while True:
            for key, _ in waiting.select(0.05):
                if key.fileobj is listening:
                    _accept(listening, waiting)
                    continue
                peer = key.fileobj
                assert isinstance(peer, socket.socket)
                waiting.unregister(peer)
                try:
                    if peer.recv(_RECEIVE_BYTES):
                        peer.shutdown(socket.SHUT_WR)
                        over.append((time.monotonic() + _LINGER_S, peer))
                        continue
                except OSError:
                    pass
                peer.close()
            while over and over[0][0] <= time.monotonic():
                over.popleft()[1].close()


def _accept(listening: socket.socket, waiting: selectors.BaseSelector) -> None:
    while True:
        try:
            peer, _ = listening.accept()
        except OSError:
            return
        waiting.register(peer, selectors.EVENT_READ)


if __name__ == "__main__":
    os.nice(19)
    main(int(sys.argv[1]))
