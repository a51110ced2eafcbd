"""A target: some decoders under any bytes, what must hold for them, and what they may take.

A target is a function of bytes that raises if a decoder breaks a promise: an error that is not one
of ours, a value that does not come back, a difference to the slow reference. `execute` adds the two
promises that all targets share: time and memory are bounded by the input.
"""

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound=Exception)

SECONDS_BASE: Final = 1.0
SECONDS_PER_BYTE: Final = 20e-6
"""CPU time of one input, the target's own checks included. Decoders take a hundredth of it; this is
for what hangs, or grows with the square of the input."""

MEMORY_BASE: Final = 512 * 1024
"""Bytes that any input may take at its peak: reading windows, caches, a first numpy call."""


class TooSlowError(AssertionError):
    """An input took more time than one of its size may."""


class TooLargeError(AssertionError):
    """An input made a decoder allocate more than one of its size may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One fuzz target.

    name: of its function. run: takes any bytes. decoders: the public functions it is there for;
    each is called by an input of the corpus. packages: what is instrumented for coverage. size_max:
    the longest input that the fuzzer makes. memory_per_byte: bytes that a byte of input may take at
    the peak, copies of the target's own included. memory_base: what any input may take besides.
    """

    name: str
    run: Callable[[bytes], None]
    decoders: tuple[Callable[..., Any], ...]
    packages: tuple[str, ...]
    size_max: int = 1024
    memory_per_byte: int = 200
    memory_base: int = MEMORY_BASE

    def memory_max(self, size: int) -> int:
        """Return the bytes that an input of this size may take at its peak."""
        return self.memory_base + self.memory_per_byte * size

    def seconds_max(self, size: int) -> float:
        """Return the CPU seconds that an input of this size may take."""
        return SECONDS_BASE + SECONDS_PER_BYTE * size


def target(
    *,
    decoders: tuple[Callable[..., Any], ...],
    packages: tuple[str, ...],
    **bounds: int,
) -> Callable[[Callable[[bytes], None]], Target]:
    """Make a function the target of its name; bounds: as a Target has them, where not its own."""
    return lambda run: Target(
        name=run.__name__, run=run, decoders=decoders, packages=packages, **bounds
    )


def execute(target: Target, data: bytes, *, measure_memory: bool = False) -> None:
    """Run one input; raise whatever the target raises, TooSlowError or TooLargeError."""
    if measure_memory:
        tracemalloc.start()
    begin = time.process_time()
    try:
        target.run(data)
        seconds = time.process_time() - begin
        peak = tracemalloc.get_traced_memory()[1] if measure_memory else 0
    finally:
        if measure_memory:
            tracemalloc.stop()
    if peak > target.memory_max(len(data)):
        raise TooLargeError(f"{peak} bytes for {len(data)} of input")
    # Bookkeeping of allocations takes its time too.
    if seconds > target.seconds_max(len(data)) * (4 if measure_memory else 1):
        raise TooSlowError(f"{seconds:.3f} s for {len(data)} bytes of input")


def attempt(
    errors: type[Exception] | tuple[type[Exception], ...],
    function: Callable[P, T],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> T | None:
    """Return the result, or None if one of the errors was raised that the decoder may raise."""
    try:
        return function(*args, **kwargs)
    except errors:
        return None


def fault_of(
    error_type: type[E], function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs
) -> E | None:
    """Return the error of this type that was raised, or None if there was none."""
    try:
        function(*args, **kwargs)
    except error_type as error:
        return error
    return None


def is_text(data: bytes) -> bool:
    """Whether bytes are UTF-8."""
    return attempt(UnicodeDecodeError, data.decode) is not None


def byte_at(data: bytes, place: int) -> int:
    """Return a byte of the input that chooses something; 0 beyond its end."""
    return data[place] if place < len(data) else 0
