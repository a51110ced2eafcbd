"""What a program prints in processes of its own, which hash strings differently."""

import os
import subprocess
import sys
from collections.abc import Sequence


def printed(program: str, *, hash_seeds: Sequence[str] = ("0", "1")) -> list[list[str]]:
    """Run a program once for each PYTHONHASHSEED; return the words that each run prints."""
    return [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        for seed in hash_seeds
    ]
