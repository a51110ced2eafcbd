"""Processes of QMQ's Java: told what to do by lines, they say what happens by lines.

Built by `make java` into the directory that QMQ_JAVA names; the sources stand beside this.
"""

import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

BUILT: Final = Path(os.environ.get("QMQ_JAVA", "") or "nowhere").absolute()
"""Where `make java` has put the programs and QMQ's libraries."""
READY_S: Final = 30.0
HOST: Final = "java-host"
"""What the brokers call themselves to the meta server."""


def missing() -> str:
    """Return why the programs cannot be run; "" if they can."""
    if not os.environ.get("QMQ_JAVA"):
        return "QMQ_JAVA is not set: `make java` downloads QMQ's libraries, builds and runs these"
    if shutil.which("java") is None:
        return "there is no java (OpenJDK 8 or later)"
    for part in ("client", "broker"):
        if not (BUILT / part / "classes").is_dir():
            return f"{BUILT / part / 'classes'} is not there: run `make java`"
    return ""


class JavaProcess:
    """One life of a Java program. What it says is kept, word by word."""

    def __init__(self, main: str, *arguments: str, class_path: str, log: Path) -> None:
        self.said: list[list[str]] = []
        self.log_path = log
        self._more = threading.Condition()
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [
                    *("java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                    *("-Dorg.slf4j.simpleLogger.defaultLogLevel=info",),
                    *("-Dorg.slf4j.simpleLogger.showDateTime=true",),
                    *("-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",),
                    *("-Dqmq.ip=127.0.0.1", f"-Dqmq.host={HOST}"),
                    *("-cp", class_path, main, *arguments),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=log.parent,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._more:
                if line.startswith("> "):
                    self.said.append(line[2:].split())
                self._more.notify_all()
        with self._more:
            self._more.notify_all()

    def tell(self, *words: object) -> None:
        """Have it do something; return when it has."""
        assert self.process.stdin is not None
        before = len(self.all("done"))
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        assert self.wait_for(lambda: len(self.all("done")) > before, seconds=20), (
            f"{words} was not done; {self.log()[-3000:]}"
        )

    def all(self, *words: str) -> list[list[str]]:
        """Return what it said that begins with these words."""
        return [said for said in list(self.said) if said[: len(words)] == list(words)]

    def wait_for(self, condition: Callable[[], bool], *, seconds: float) -> bool:
        """Wait until a condition on what was said holds; return whether it does."""
        deadline = time.monotonic() + seconds
        with self._more:
            while not condition():
                left = deadline - time.monotonic()
                if left <= 0:
                    return condition()
                self._more.wait(min(left, 0.2))
        return True

    def log(self) -> str:
        """Return what the processes with this log wrote to standard error."""
        return self.log_path.read_text(errors="replace")

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.process.kill()
        self._end()

    def end(self) -> None:
        """End it by the end of its input."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._end()

    def _end(self) -> None:
        self.process.wait(10)
        self._reader.join(10)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@contextlib.contextmanager
def _gone_afterwards(process: JavaProcess) -> Iterator[JavaProcess]:
    try:
        if not process.wait_for(lambda: bool(process.all("ready")), seconds=READY_S):
            raise AssertionError(f"not ready; {process.log()[-3000:]}")
        yield process
    finally:
        if process.process.poll() is None:
            process.kill()


def _address_url(http: str) -> str:
    """Return what QMQ's programs are told of a meta server."""
    return f"http://{http}/meta/address"


@contextlib.contextmanager
def java_client(http: str, log: Path, *, libraries: str = "client") -> Iterator[JavaProcess]:
    """Run QMQ's client; whatever happens, it is gone afterwards."""
    class_path = f"{BUILT}/client/classes:{BUILT}/{libraries}/*"
    process = JavaProcess("Client", _address_url(http), "shop", class_path=class_path, log=log)
    with _gone_afterwards(process):
        yield process


def broker_process(http: str, port: int, log: Path, *, before: str = "") -> JavaProcess:
    """Start a broker, or a delay server, on QMQ's libraries, with others `before` them."""
    class_path = f"{BUILT}/broker/classes:{before}{BUILT}/broker/*"
    return JavaProcess("Broker", _address_url(http), str(port), class_path=class_path, log=log)


@contextlib.contextmanager
def java_broker(http: str, port: int, log: Path) -> Iterator[JavaProcess]:
    """Run a broker; whatever happens, it is gone afterwards."""
    with _gone_afterwards(broker_process(http, port, log)) as process:
        yield process


@contextlib.contextmanager
def java_delay_server(http: str, port: int, log: Path) -> Iterator[JavaProcess]:
    """Run a delay server; whatever happens, it is gone afterwards.

    What asks for routes is of the client's version: in that of the published broker libraries every
    first request fails (it has no request type), and it asks 60 s after the start only.
    """
    with _gone_afterwards(broker_process(http, port, log, before=f"{BUILT}/client/*:")) as process:
        yield process
