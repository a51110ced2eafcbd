"""Network namespaces of the campaign: a place of its own for everybody, and links that break.

The whole campaign runs in namespaces of its own (`enter`): network, mounts and processes. All that
it makes in them, links, file systems and processes, is gone when its last process has ended, also
after Ctrl-C and SIGKILL. Each place is a star's point: its link ends at this process's namespace,
which forwards. What is cut is dropped there without a word, as a network does it.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.ports import closed_port

INSIDE: Final = "DELAYWHEEL_CAMPAIGN_INSIDE"
"""Set in the environment of the process that `enter` starts."""
_NEEDED: Final = ("ip", "unshare", "nsenter", "mount")
_DISK_BYTES: Final = 3 * 1024**3
"""Of a node's disk; a file with holes."""
_PR_SET_PDEATHSIG: Final = 1
_NAMED: Final = Path("/run/netns")


class NoNamespacesError(Exception):
    """Network namespaces cannot be made here; says why, and what would help."""


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=20)


def _unshared(*command: str) -> list[str]:
    mapped = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    return [
        *("unshare", *mapped, "--net", "--mount", "--pid", "--fork", "--kill-child"),
        *("--mount-proc", *command),
    ]


def why_no_namespaces() -> str:
    """Return why there can be no namespaces here, in a sentence; empty if there can."""
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if sys.platform != "linux" or missing:
        lacks = f" and {', '.join(missing)} (package iproute2 or util-linux)" if missing else ""
        return f"network namespaces cannot be tried here: they need Linux{lacks}"
    done = subprocess.run(
        _unshared("ip", "link", "add", "probe0", "type", "veth", "peer", "name", "probe1"),
        check=False,
        capture_output=True,
        text=True,
        timeout=20,
    )
    if done.returncode == 0:
        return ""
    said = done.stderr.strip().splitlines()
    return f"network namespaces are not allowed here: {said[-1] if said else 'unshare failed'}"


def enter(arguments: list[str]) -> int:
    """Run this program again in namespaces of its own; return its exit code."""
    with subprocess.Popen(
        _unshared(sys.executable, *arguments),
        env=os.environ | {INSIDE: "1"},
        preexec_fn=_die_with_parent,  # noqa: PLW1509 (there are no threads yet)
    ) as child:
        # The first process of a namespace takes no SIGTERM; the last one takes all with it.
        signal.signal(signal.SIGTERM, lambda *_: child.kill())
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:
                # It was told too: it ends what it has begun.
                continue


def _die_with_parent() -> None:
    """Have the kernel end this process when the one that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Place:
    """Somewhere processes run: an address of their own, and how a command gets there."""

    def __init__(self, name: str, host: str, wrapper: tuple[str, ...] = ()) -> None:
        self.name = name
        self.host = host
        self.wrapper = wrapper
        self._ports: dict[str, int] = {}

    def address(self, what: str) -> str:
        """Return the address of a listener of this place; the same one at each call."""
        if what not in self._ports:
            # In a namespace nobody else listens, so that any port is free there as well.
            self._ports[what] = closed_port()
        return f"{self.host}:{self._ports[what]}"


class Loopback:
    """No network of its own: everybody on this machine's loopback, and no link that breaks."""

    def place(self, name: str) -> Place:
        """Return a place."""
        return Place(name, "127.0.0.1")

    def disk(self, folder: Path) -> None:
        """Make a folder for the data of one node."""
        folder.mkdir(parents=True)

    def leave_disks(self) -> None:
        """Let go of all folders that were made so, so that they can be removed."""


class Namespaces(Loopback):
    """A namespace for each place. Only for a process that `enter` has started."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._places: dict[str, Place] = {}
        self._disks: list[Path] = []
        if os.environ.get(INSIDE) != "1":
            raise NoNamespacesError("this process is not in namespaces of its own")
        _NAMED.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "none", str(_NAMED))
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")
        _run("ip", "link", "set", "lo", "up")

    def disk(self, folder: Path) -> None:
        """Make a folder for the data of one node: a file system of its own, which can be full."""
        folder.mkdir(parents=True)
        image = folder.with_suffix(".image")
        with image.open("wb") as file:
            file.truncate(_DISK_BYTES)
        try:
            _run("mkfs.ext4", "-q", str(image))
            _run("mount", "-o", "loop", str(image), str(folder))
        except (subprocess.CalledProcessError, FileNotFoundError):
            # There are no loop devices for it here: in memory, then, where fsyncs cost nothing.
            image.unlink()
            _run("mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "none", str(folder))
        self._disks.append(folder)

    def leave_disks(self) -> None:
        """Take file systems from their folders; those in memory are gone."""
        for folder in self._disks:
            _run("umount", str(folder))
        self._disks.clear()

    def place(self, name: str) -> Place:
        """Make a place with a link to here; the same name is the same place."""
        if name in self._places:
            return self._places[name]
        number = len(self._numbers) + 1
        self._numbers[name] = number
        host, link = f"10.77.{number}.2", f"to-{name}"
        _run("ip", "netns", "add", name)
        for line in (
            f"ip link add {link} type veth peer name eth0 netns {name}",
            f"ip addr add 10.77.{number}.1/24 dev {link}",
            f"ip link set {link} up",
            f"ip -n {name} addr add {host}/24 dev eth0",
            f"ip -n {name} link set eth0 up",
            f"ip -n {name} link set lo up",
            f"ip -n {name} route add default via 10.77.{number}.1",
        ):
            _run(*line.split())
        place = Place(name, host, ("nsenter", f"--net={_NAMED / name}"))
        self._places[name] = place
        return place

    def set_link(self, name: str, *, up: bool) -> None:
        """Take the link of a place down, as a cable that is drawn, or up again."""
        _run("ip", "link", "set", f"to-{name}", "up" if up else "down")

    def cut(self, from_name: str, to_name: str) -> None:
        """Drop what one place sends to another; the other direction is left as it is."""
        self._rule("add", from_name, to_name)

    def mend(self, from_name: str, to_name: str) -> None:
        """Undo a cut."""
        self._rule("del", from_name, to_name)

    def _rule(self, verb: str, from_name: str, to_name: str) -> None:
        ends = (f"10.77.{self._numbers[name]}.2" for name in (from_name, to_name))
        begin, end = ends
        _run("ip", "rule", verb, "from", begin, "to", end, "blackhole", "priority", "100")
