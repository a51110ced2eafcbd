"""Whether there is a Java that Spark can run on."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping

JAVA_LEAST = 17
_SECONDS_MAX = 60
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def why_no_java(environment: Mapping[str, str]) -> str | None:
    """Return one sentence on what is missing and how to get it; None if Spark can start.

    Looks where Spark does: in JAVA_HOME if it is set, else in PATH.
    """
    home = environment.get("JAVA_HOME")
    if home:
        where, program = f"JAVA_HOME ({home})", os.path.join(home, "bin", "java")
    else:
        where = "PATH"
        program = shutil.which("java", path=environment.get("PATH", os.defpath)) or ""
    found = _version_of(program)
    if found is not None and found >= JAVA_LEAST:
        return None
    has = "has none" if found is None else f"has Java {found}"
    return (
        f"Spark needs Java {JAVA_LEAST} or newer, and {where} {has}: apt-get install "
        f"openjdk-{JAVA_LEAST}-jre-headless, set JAVA_HOME, or use --engine local, which needs none"
    )


def _version_of(program: str) -> int | None:
    """Return the feature release of a Java, None if it does not run or is none."""
    if not program:
        return None
    try:
        done = subprocess.run(  # noqa: S603 (the program that Spark is about to run)
            [program, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=_SECONDS_MAX,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search((done.stderr + done.stdout).decode(errors="replace"))
    return int(match[1]) if match else None
