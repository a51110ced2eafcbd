"""One target under atheris, in a process of its own: libFuzzer ends the process it runs in.

    python -m tests.fuzz.atheris_child TARGET PACKAGE,PACKAGE LIBFUZZER_ARGUMENT...

The packages are instrumented as they are imported, so nothing of ours is imported before. Every
256th input is run with its memory counted.
"""

import itertools
import sys

import atheris

_MEASURED_EVERY = 256


def main(arguments: list[str]) -> None:
    """Fuzz until libFuzzer has had enough; never returns."""
    name, packages, *options = arguments
    with atheris.instrument_imports(include=packages.split(",")):
        from tests.fuzz.all_targets import TARGETS  # noqa: PLC0415 - instrumented as imported
        from tests.fuzz.target import execute  # noqa: PLC0415 - after what it is there for
    target = TARGETS[name]
    counter = itertools.count(1)

    def run(data: bytes) -> None:
        execute(target, data, measure_memory=next(counter) % _MEASURED_EVERY == 0)

    atheris.Setup([sys.argv[0], *options], run)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
