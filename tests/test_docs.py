"""The documentation names only what exists: modules, classes, functions, files, headings.

A name is written `package/module.py::Name` or `package/module.py::Class.method`.
"""

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parent.parent

CODE_NAME = re.compile(r"(?P<file>[\w./-]+\.py)::(?P<name>[A-Za-z_][\w.]*)")

CODE_FILE = re.compile(r"`(?P<file>[\w-]+(?:/[\w.-]+)*/[\w-]+\.py)`")
"""A module with its folder, in code quotes; one without a folder is an example's."""

LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)(?:\s+\"[^\"]*\")?\)")

FENCE = re.compile(r"^ {0,3}(```|~~~).*?^ {0,3}\1\s*$", re.MULTILINE | re.DOTALL)

RESULTS_WORDS_MAX = 6000
"""Words of performance.md, reliability.md and testing.md together."""

PAGES = sorted(
    page for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md") for page in ROOT.glob(pattern)
)


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return the dotted names that a module defines at its top level and in its classes."""
    return frozenset(_names(ast.parse(path.read_bytes()).body, ""))


def _names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        match node:
            case ast.ClassDef(name=name):
                yield prefix + name
                yield from _names(node.body, f"{prefix}{name}.")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield prefix + name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield prefix + name
            case ast.Assign(targets=targets):
                yield from (prefix + name.id for name in targets if isinstance(name, ast.Name))
            case ast.If() | ast.Try():
                yield from _names(node.body, prefix)
                yield from _names(node.orelse, prefix)


def missing_names(text: str) -> list[str]:
    """Return the code names and code files written in a text that do not exist."""
    missing = []
    for found in CODE_NAME.finditer(text):
        path = ROOT / found["file"]
        if not path.is_file():
            missing.append(f"{found[0]}: there is no such file")
        elif found["name"].rstrip(".") not in names_in(path):
            missing.append(f"{found[0]}: there is no such name in it")
    missing += [
        f"{found['file']}: there is no such file"
        for found in CODE_FILE.finditer(text)
        if not (ROOT / found["file"]).is_file()
    ]
    return missing


def headings_of(text: str) -> set[str]:
    """Return the anchors of a page's headings, as hosts of Markdown make them."""
    anchors: set[str] = set()
    for line in FENCE.sub("", text).splitlines():
        if found := re.match(r"#{1,6}\s+(.*?)\s*#*$", line):
            plain = re.sub(r"[^\w\- ]", "", found[1].lower().replace("`", ""))
            anchor = plain.replace(" ", "-")
            number = 1
            while anchor in anchors:
                anchor = f"{plain.replace(' ', '-')}-{number}"
                number += 1
            anchors.add(anchor)
    return anchors


def broken_links(page: Path, text: str) -> list[str]:
    """Return the relative links of a page that lead nowhere."""
    broken = []
    for found in LINK.finditer(FENCE.sub("", text)):
        target, _, anchor = unquote(found["target"]).partition("#")
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        path = (page.parent / target) if target else page
        if target and not path.exists():
            broken.append(f"{found['target']}: there is no such file")
        elif not path.resolve().is_relative_to(ROOT):
            broken.append(f"{found['target']}: leads out of the repository")
        elif anchor and path.suffix == ".md":
            there = text if path == page else path.read_text(encoding="utf-8")
            if anchor not in headings_of(there):
                broken.append(f"{found['target']}: there is no such heading")
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_names_and_relative_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert missing_names(text) == []
    assert broken_links(page, text) == []


def test_the_runbook_has_a_section_for_each_alert() -> None:
    rules = (ROOT / "deploy" / "alerts.yml").read_text(encoding="utf-8")
    alerts = re.findall(r"^ *- alert: (\w+)", rules, re.MULTILINE)
    runbook = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    found = re.findall(r"^### (\w+)$(.*?)(?=^##)", runbook, re.MULTILINE | re.DOTALL)
    sections = {title: body for title, body in found if title.startswith("Delaywheel")}
    assert alerts
    assert list(sections) == alerts
    for alert, body in sections.items():
        parts = re.findall(r"\*(\w+)\.?\*", body)
        assert [part.lower() for part in parts][:3] == ["symptom", "look", "do"], alert


def test_each_alert_has_a_summary_and_leads_to_its_section() -> None:
    rules = (ROOT / "deploy" / "alerts.yml").read_text(encoding="utf-8")
    anchors = headings_of((ROOT / "docs" / "operating.md").read_text(encoding="utf-8"))
    name, *texts = re.split(r"^ *- alert: (\w+)$", rules, flags=re.MULTILINE)[1:]
    for alert, text in zip([name, *texts[1::2]], texts[::2], strict=True):
        assert re.search(r'^ +summary: "\S.+"$', text, re.MULTILINE), alert
        [url] = re.findall(r"^ +runbook_url: (\S+)$", text, re.MULTILINE)
        assert url == f"file:/usr/share/doc/delaywheel/operating.md#{alert.lower()}"
        assert alert.lower() in anchors


def test_the_pages_of_results_are_short() -> None:
    """They have the last figures alone; words are counted as `wc -w` counts them."""
    pages = [ROOT / "docs" / f"{name}.md" for name in ("performance", "reliability", "testing")]
    words = {page.name: len(page.read_text(encoding="utf-8").split()) for page in pages}
    assert sum(words.values()) <= RESULTS_WORDS_MAX, words


@pytest.mark.parametrize("page", ["README.md", "docs/services.md"])
def test_no_name_is_undefined_in_a_whole_example(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert examples
    for code in examples:
        nodes = list(ast.walk(ast.parse(code)))
        names = [node for node in nodes if isinstance(node, ast.Name)]
        known = {*dir(builtins), *(one.id for one in names if isinstance(one.ctx, ast.Store))}
        for node in nodes:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    known.add(name)
                case ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                    known.add(name)
                case ast.alias(name=name, asname=alias):
                    known.add(alias or name)
        assert {one.id for one in names} <= known, code


def test_no_page_says_what_is_so_for_now() -> None:
    """Nobody looks for "today" and "not yet" when they have become false. Code may have them."""
    for page in (ROOT / "docs").rglob("*.md"):
        text = re.sub(r"`[^`]*`", "", FENCE.sub("", page.read_text(encoding="utf-8")))
        assert re.findall(r"(?i)\b(?:today|not\s+yet)\b", text) == [], page


def test_a_decision_has_at_most_25_lines_and_the_changelog_40() -> None:
    for page in (ROOT / "CHANGELOG.md", *(ROOT / "docs" / "decisions").glob("*.md")):
        lines = page.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= (40 if page.name == "CHANGELOG.md" else 25), page.name
        assert max(map(len, lines)) <= 120, page.name


def test_a_name_that_does_not_exist_is_found() -> None:
    assert missing_names("`storage/disk/disk.py::Disk.open`, `storage/disk/disk.py`") == []
    assert len(missing_names("`storage/disk/disk.py::Floppy`")) == 1
    assert len(missing_names("`storage/disk/disk.py::Disk.eject`")) == 1
    assert len(missing_names("`storage/floppy.py::Disk` and `storage/floppy.py`")) == 2


def test_a_link_that_leads_nowhere_is_found() -> None:
    page = ROOT / "docs" / "page.md"
    text = "# A `first` page\n\n## Why, then?\n"
    links = "[up](../Makefile) [here](#why-then) [out](https://x.test)"
    assert broken_links(page, text + links) == []
    assert broken_links(page, "```\n[in code](nowhere.md)\n```\n") == []
    assert len(broken_links(page, "[a](nowhere.md) [b](#no-heading)")) == 2
