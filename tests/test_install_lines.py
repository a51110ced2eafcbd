"""Every line that tells people to install something is one of a few forms, each of which works.

A form is what stands behind `pip install`, as it is typed in a checkout. The wheels of this tree
are on no index, so a form that takes one of them from there finds nothing.
"""

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
SECONDS_MAX: Final = 600

FORMS: Final = {
    "./distributions/client": "from delay_client import Client, Receiver",
    "./distributions/client .": "import delay_server.node, meta_server.wire.handlers",
    "./distributions/client '.[spark]'": "import pyspark_delaywheel, delaywheel.main, pyspark",
    "'psycopg[binary]>=3.3'": "import psycopg",
}
"""What each is good for, as code that runs in the environment."""

INSTALL: Final = re.compile(r"\bpip3?\b[^`\n]{0,40}?\binstall\s+")
TEXTS: Final = ("*.md", "docs/**/*.md", "deploy/*", "distributions/**/*.md", "examples/**/*.md")
SKIPPED: Final = {"tests", "build", "dist"}


def texts() -> Iterator[tuple[str, str]]:
    """Yield what may tell people to install something: pages, units, and strings of the code."""
    for path in (path for pattern in TEXTS for path in ROOT.glob(pattern)):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    for path in ROOT.glob("*/**/*.py"):
        folder = path.relative_to(ROOT).parts[0]
        if folder in SKIPPED or folder.startswith("."):
            continue
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield str(path.relative_to(ROOT)), node.value


def form_at(text: str, position: int) -> str:
    """Return the form that stands there, else what does stand there up to the end of its line."""
    rest = text[position:].partition("\n")[0]
    return next((form for form in FORMS if re.match(re.escape(form) + r"(?=$|[`;,)])", rest)), rest)


FOUND: Final = [
    (name, form_at(text, found.end())) for name, text in texts() for found in INSTALL.finditer(text)
]


def test_each_line_that_says_what_to_install_is_of_a_form_that_is_tried() -> None:
    assert [(name, form) for name, form in FOUND if form not in FORMS] == []
    assert {form for _, form in FOUND} == FORMS.keys()


@pytest.mark.parametrize(
    "text",
    [
        "-e '.[spark]'",
        "'delaywheel[spark]'",
        ".",
        "./distributions/client -e .",
        "./distributions/client '.[x]'",
    ],
)
def test_other_forms_are_told(text: str) -> None:
    assert form_at(f"pip install {text}\n", len("pip install ")) not in FORMS


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_what_people_are_told_to_install_can_be_installed_and_used(
    form: str, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    python = str(tmp_path / "env" / "bin" / "python")
    install = [python, "-m", "pip", "--quiet", "install", *shlex.split(form)]
    for command, folder in ((install, ROOT), ([python, "-c", FORMS[form]], tmp_path)):
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=SECONDS_MAX
        )
        assert done.returncode == 0, done.stderr
