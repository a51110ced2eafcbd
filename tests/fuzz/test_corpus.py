"""The corpus holds: every input ever found keeps every promise, without atheris."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType

import pytest

from tests.fuzz import run as run_module
from tests.fuzz.all_targets import TARGETS
from tests.fuzz.corpus import FOLDER, Entry, parse, path_of, read_corpus, render
from tests.fuzz.run import ROOT
from tests.fuzz.seeds import inputs_of
from tests.fuzz.target import Target, TooLargeError, execute

INPUTS_MAX = 480
BYTES_MAX = 500 * 1024


def check(target: Target, data: bytes, folder: Path) -> None:
    """Run an input with its memory counted.

    A peak counts whatever else goes on in the process, and other tests leave things going on: for
    an input that took too much a process of its own decides.
    """
    try:
        execute(target, data, measure_memory=True)
    except TooLargeError:
        path = folder / f"{target.name}-input"
        path.write_bytes(data)
        alone = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.run", "--show", path],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
        )
        assert alone.returncode == 0, alone.stderr


@pytest.mark.parametrize("name", TARGETS)
def test_every_input_keeps_every_promise(name: str, tmp_path: Path) -> None:
    for data in inputs_of(name):
        check(TARGETS[name], data, tmp_path)


def test_what_takes_too_much_by_itself_breaks_in_a_process_of_its_own_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: bytes) -> None:
        assert bytes(4 << 20)

    greedy = replace(TARGETS["addresses"], name="greedy", run=run)
    with pytest.raises(AssertionError, match="KeyError: 'greedy'"):
        check(greedy, b"127.0.0.1:1", tmp_path)
    path = tmp_path / "greedy-input"
    monkeypatch.setattr(run_module, "TARGETS", {"greedy": greedy})
    with pytest.raises(TooLargeError):
        run_module.show(path)


LONG = 128 * 1024


@pytest.mark.parametrize("name", TARGETS)
def test_time_and_memory_grow_with_the_input_and_no_faster(name: str, tmp_path: Path) -> None:
    # What is repeated is the most work: the first bytes choose, the rest is the input proper.
    for data in sorted(inputs_of(name), key=len)[-3:]:
        choice, body = data[:1], data[1:] or b"\0"
        long = choice + (body * (LONG // len(body) + 1))[:LONG]
        check(TARGETS[name], long, tmp_path)


@pytest.mark.parametrize("name", TARGETS)
def test_an_input_of_one_target_breaks_no_other(name: str) -> None:
    for other in TARGETS:
        for entry in read_corpus(other):
            execute(TARGETS[name], entry.data)


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_of_a_target_reaches_the_decoders_it_is_there_for(name: str) -> None:
    target = TARGETS[name]
    called: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.add(frame.f_code)

    sys.setprofile(note)
    try:
        for data in inputs_of(target.name):
            target.run(data)
    finally:
        sys.setprofile(None)
    missed = [decoder.__qualname__ for decoder in target.decoders if decoder.__code__ not in called]
    assert missed == []


def test_every_corpus_belongs_to_a_target_and_none_is_missing() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(TARGETS)


def test_the_corpus_stays_small() -> None:
    entries = [entry for name in TARGETS for entry in read_corpus(name)]
    assert len(entries) <= INPUTS_MAX
    assert sum(path_of(name).stat().st_size for name in TARGETS) <= BYTES_MAX


def test_a_corpus_is_written_as_it_is_read() -> None:
    entries = [Entry("b", b""), Entry("a", bytes(range(256)) * 2), Entry("", b"x"), Entry("", b"")]
    text = render(entries)
    assert set(parse(text)) == set(entries)
    assert render(parse(text)) == text
    assert parse("# a remark\n\n" + text) == parse(text)
    with pytest.raises(ValueError, match="hex"):
        parse("zz\n")


@pytest.mark.parametrize("name", TARGETS)
def test_a_corpus_in_the_repository_is_in_the_order_in_which_it_is_written(name: str) -> None:
    assert path_of(name).read_text(encoding="ascii") == render(read_corpus(name))
