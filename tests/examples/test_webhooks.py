"""The receivers of webhooks in Node and Go take what is signed, by the standard's libraries."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.gateway.webhooks.test_endpoint import OTHER, Rig, play
from tests.gateway.webhooks.test_settings import FIELDS
from tests.ports import closed_port
from tests.processes.real_processes import READY_S, ROOT, until

pytestmark = [pytest.mark.process, pytest.mark.long]

MADE_S = 120


def program(name: str, *places: str) -> str:
    found = shutil.which(name) or next(filter(os.path.exists, places), None)
    if found is None:
        pytest.skip(f"{name} is not on this machine")
    return found


def fetch(words: Sequence[str], folder: Path) -> None:
    """Get the library; skip the test where it cannot be had."""
    try:
        subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=MADE_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"the library cannot be had here: {error} {error.stderr!r}"[:500])


def node(folder: Path) -> list[str]:
    fetch([program("npm"), "install", "--no-audit", "--no-fund"], folder)
    return [program("node"), "receiver.mjs"]


def go(folder: Path) -> list[str]:
    compiler = program("go", "/usr/local/go/bin/go")
    fetch([compiler, "mod", "download"], folder)
    subprocess.run(
        [compiler, "build", "-o", "receiver", "."], cwd=folder, check=True, timeout=MADE_S
    )
    return ["./receiver"]


@contextmanager
def running(words: Sequence[str], folder: Path, secret: str) -> Iterator[tuple[IO[str], str]]:
    """Run a receiver; give what it prints, and its URL."""
    port = closed_port()
    process = subprocess.Popen(
        [*words, str(port)],
        cwd=folder,
        env=os.environ | {"WEBHOOK_SECRET": secret},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert until(lambda: _listens(port), seconds=READY_S)
        yield process.stdout, f"http://127.0.0.1:{port}/"
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("language", [node, go])
def test_a_receiver_takes_what_is_signed_with_its_secret_alone(
    tmp_path: Path, language: Callable[[Path], list[str]]
) -> None:
    folder = tmp_path / "webhooks"
    shutil.copytree(ROOT / "examples" / "webhooks", folder)
    words = language(folder)
    [secret] = FIELDS["secrets"]
    with running(words, folder, secret) as (printed, url):

        async def test(rig: Rig) -> None:
            await rig.start("well", url=url, tries=1)
            await rig.start("exchanged", url=url, tries=1, secrets=(OTHER, secret))
            await rig.start("wrong", url=url, tries=1, secrets=(OTHER,))
            for subject in ("well", "exchanged", "wrong"):
                await rig.client.send(subject, {"for": subject}, delay=0, message_id=subject)
            await rig.cluster.advance()
            assert {one.subject for one in rig.cluster.done} == {"well", "exchanged"}
            [dead] = rig.cluster.refused
            assert (dead.subject, "EndpointError: 401" in dead.reason) == ("wrong", True)
            lines = [await asyncio.to_thread(printed.readline) for _ in range(2)]
            said = sorted(line.split(maxsplit=2)[1:] for line in lines)
            assert [(name, json.loads(body)) for name, body in said] == [
                ("exchanged", {"for": "exchanged"}),
                ("well", {"for": "well"}),
            ]

        play(test)
