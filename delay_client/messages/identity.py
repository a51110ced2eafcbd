"""The client's id at a meta server, which stays the same over restarts of the process."""

import hashlib
import os
import socket
import sys


def client_id() -> str:
    """Return `host@@md5` of the program and where it runs, as QMQ's clients call themselves.

    It is a name for operators, not a secret and no proof.
    """
    program = f"{os.path.abspath(sys.argv[0])}\0{sys.executable}"
    digest = hashlib.md5(program.encode(errors="replace"), usedforsecurity=False).hexdigest()
    return f"{socket.gethostname()[:100]}@@{digest}"
