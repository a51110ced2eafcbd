"""What is installed: the client alone, and the server with it, have no file in common."""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
CLIENT: Final = {"delay_client", "delay_protocol"}
PYTHONS: Final = ("3.11", "3.12", "3.13")
DISTRIBUTIONS_MAX: Final = 5
BYTES_MAX: Final = 8_000_000

TRY: Final = """
import asyncio, importlib.metadata, json, pathlib, sys
import delay_client, delay_protocol
from delay_client import Client, Receiver, Unavailable, TimedOut

async def main():
    async with Client(["127.0.0.1:1"]) as client:
        try:
            await client.send("a.b", "text", delay=1, timeout=0.2)
        except (Unavailable, TimedOut) as error:
            return type(error).__name__

found = [one.metadata["Name"] for one in importlib.metadata.distributions()]
home = pathlib.Path(delay_client.__file__).parents[1]
own = [file for one in found for file in importlib.metadata.files(one) or () if one != "pip"]
print(json.dumps({
    "said": asyncio.run(main()),
    "found": sorted(set(found) - {"pip", "setuptools"}),
    "bytes": sum(path.stat().st_size for file in own if (path := home / file).is_file()
                 and "__pycache__" not in path.parts),
    "typed": [(home / name / "py.typed").is_file() for name in ("delay_client", "delay_protocol")],
}))
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with both wheels, made of this tree."""
    folder = tmp_path_factory.mktemp("wheels")
    for source in (ROOT / "distributions" / "client", ROOT):
        _pip(sys.executable, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source)
    return folder


def _pip(python: str | Path, *arguments: str | Path) -> None:
    words = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _wheel(wheels: Path, name: str) -> Path:
    (found,) = wheels.glob(f"{name}-[0-9]*.whl")
    return found


def _files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def _environment(python: str, folder: Path) -> Path:
    """Return the Python of an empty environment."""
    subprocess.run([python, "-m", "venv", folder], check=True, capture_output=True)
    return folder / "bin" / "python"


@pytest.mark.process
def test_no_file_is_in_both_and_each_package_is_in_one(wheels: Path) -> None:
    client, server = (_files(_wheel(wheels, name)) for name in ("delaywheel_client", "delaywheel"))
    assert client & server == set()
    assert {name.partition("/")[0] for name in client} == CLIENT
    assert not {name.partition("/")[0] for name in server} & CLIENT
    in_tree = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert {name.partition("/")[0] for name in server} == in_tree - CLIENT - {
        *("tests", "benchmarks", "examples")
    }
    assert {"delay_client/py.typed", "delay_protocol/py.typed"} <= client


@pytest.mark.process
@pytest.mark.parametrize(
    "version", [PYTHONS[0], *(pytest.param(one, marks=pytest.mark.long) for one in PYTHONS[1:])]
)
def test_the_client_is_small_and_runs_alone(wheels: Path, tmp_path: Path, version: str) -> None:
    python = _python(version)
    home = _environment(python, tmp_path / "env")
    _pip(home, "install", _wheel(wheels, "delaywheel_client"))
    told = subprocess.run(
        [home, "-c", TRY], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert found["said"] in {"Unavailable", "TimedOut"}
    assert found["typed"] == [True, True]
    assert len(found["found"]) <= DISTRIBUTIONS_MAX, found["found"]
    assert found["bytes"] <= BYTES_MAX


@pytest.mark.process
@pytest.mark.long
def test_the_server_brings_the_client_of_its_version(wheels: Path, tmp_path: Path) -> None:
    home = _environment(sys.executable, tmp_path / "env")
    _pip(home, "install", "--find-links", wheels, _wheel(wheels, "delaywheel"))
    told = subprocess.run(
        [home, "-m", "delaywheel", "--version"],
        check=False, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert "0.1.0" in told.stdout, told.stderr


def _python(version: str) -> str:
    """Return a Python of a version; skip the test where there is none that runs."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    found = shutil.which(f"python{version}")
    homes = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in (found, *map(str, homes)):
        if candidate and not subprocess.run([candidate, "-c", ""], check=False).returncode:
            return candidate
    pytest.skip(f"no Python {version} here")
