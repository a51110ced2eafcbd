"""The map stays true: what the layout, the names and the module docstrings promise a reader.

Matters of form that no linter knows. Each test names every offender at once.
"""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

PACKAGES = tuple(sorted(path.parent.name for path in ROOT.glob("*/__init__.py")))

NOT_OURS = {".git", ".venv", "__pycache__", "build", "dist"}
"""Directories that make, git and tools fill; other hidden ones but .ci are caches."""

SAYS_NOTHING = {"base", "common", "facade", "helper", "helpers", "manager", "misc", "util", "utils"}

SCENARIOS = {
    "contract",
    "crash",
    "damage",
    "delivery",
    "examples",
    "failover",
    "failover_campaign",
    "fuzz",
    "golden",
    "processes",
    "proof",
    "qmq_java",
    "simulation",
}
"""Folders of tests that run the whole and so mirror no single module."""

OPENS_FILES = {"storage/disk/disk.py"}
"""The modules of the server that may open files themselves; others get a Disk."""

OUTSIDE_THE_SERVER = {"delaywheel", "tests", "benchmarks", "examples"}


def our_files() -> Iterator[Path]:
    """Yield every file of the repository as a path relative to it."""
    folders = [ROOT]
    while folders:
        for path in sorted(folders.pop().iterdir()):
            hidden = path.name.startswith(".") and path.name != ".ci"
            if not path.is_dir():
                yield path.relative_to(ROOT)
            elif path.name not in NOT_OURS and not hidden and not path.is_symlink():
                folders.append(path)


def python_files() -> list[Path]:
    return [path for path in our_files() if path.suffix == ".py"]


def text_of(path: Path) -> str | None:
    """Return the text of a file, or None of one that is not text."""
    try:
        return (ROOT / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def tree_of(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_bytes())


def calls_in(path: Path) -> Iterator[tuple[ast.Call, str]]:
    """Yield every call of a module with the name that is called, as it is written."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


def test_every_module_says_what_it_is_for() -> None:
    assert [str(path) for path in python_files() if not ast.get_docstring(tree_of(path))] == []


def test_no_file_or_folder_has_a_name_that_says_nothing() -> None:
    assert [
        str(path)
        for path in our_files()
        if SAYS_NOTHING & {part.split(".")[0] for part in path.parts}
    ] == []


def test_every_test_file_mirrors_a_module() -> None:
    strays = []
    for path in python_files():
        match path.parts:
            case ("tests", package, *_, name) if name.startswith("test_") and package in PACKAGES:
                mirrored = Path(*path.parts[1:-1], name.removeprefix("test_"))
                if not (ROOT / mirrored).exists():
                    strays.append(f"{path} mirrors {mirrored}, which does not exist")
            case ("tests", folder, *_, name) if (
                name.startswith("test_") and folder not in SCENARIOS
            ):
                strays.append(f"{path}: {folder} is neither a package nor a folder of scenarios")
    assert strays == []


def test_a_package_front_door_has_no_logic() -> None:
    logic = []
    for package in PACKAGES:
        for node in tree_of(Path(package, "__init__.py")).body:
            match node:
                case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
                    pass
                case ast.Assign(targets=[ast.Name(id="__all__")]):
                    pass
                case _:
                    logic.append(f"{package}/__init__.py:{node.lineno}")
    assert logic == []


def test_no_channel_is_unbounded() -> None:
    unbounded = []
    for path in python_files():
        for call, name in calls_in(path):
            if name.endswith("open_memory_channel") or "open_memory_channel[" in name:
                bounds = [*call.args, *(keyword.value for keyword in call.keywords)]
                if any(
                    ast.unparse(bound) in {"math.inf", "inf", "float('inf')"} for bound in bounds
                ):
                    unbounded.append(f"{path}:{call.lineno}")
    assert unbounded == []


def test_the_server_opens_files_through_its_disk_only() -> None:
    opened = [
        f"{path}:{call.lineno}"
        for path in python_files()
        if str(path) not in OPENS_FILES and path.parts[0] not in OUTSIDE_THE_SERVER
        for call, name in calls_in(path)
        if name in {"open", "io.open", "os.open"}
    ]
    assert opened == []


# Put together from halves, so that this file does not name what it forbids.
REGISTRY_HOSTS = re.compile(
    r"\b("
    + "|".join(
        re.escape(name + ending)
        for name, ending in (
            ("pypi", ".org"),
            ("pythonhosted", ".org"),
            ("anaconda", ".org"),
            ("npmjs", ".org"),
            ("crates", ".io"),
            ("proxy.golang", ".org"),
            ("docker", ".io"),
        )
    )
    + ")",
    re.IGNORECASE,
)

MACHINE_PATHS = re.compile(r"(?<![\w.~/-])/(home|root|Users|work|tmp|opt|mnt)/\w")
"""Directories of somebody's machine; /proc, /dev, /usr/bin/env and /var/lib are everywhere."""


@pytest.mark.parametrize("forbidden", [REGISTRY_HOSTS, MACHINE_PATHS], ids=["registries", "paths"])
def test_nothing_names_a_registry_or_a_path_of_one_machine(forbidden: re.Pattern[str]) -> None:
    found = []
    for path in our_files():
        text = text_of(path)
        for number, line in enumerate((text or "").splitlines(), start=1):
            if match := forbidden.search(line):
                found.append(f"{path}:{number}: {match[0]}")
    assert found == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("data lies in /" + "home/somebody/data", True),
        ('Path("/' + 'tmp/x")', True),
        ("see ../shared/work/notes.md and a/tmp/b", False),
        ("/usr/bin/env bash, /proc/self/fd, /var/lib/delaywheel", False),
    ],
)
def test_the_pattern_of_machine_paths_finds_them_and_nothing_else(line: str, found: bool) -> None:
    assert bool(MACHINE_PATHS.search(line)) is found


def test_every_dependency_is_locked_with_hashes_and_without_an_index() -> None:
    for name in ("requirements.lock", "requirements-dev.lock", "requirements-fuzz.lock"):
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        assert not [line for line in lines if "://" in line or line.startswith("-")], name
        pins = [number for number, line in enumerate(lines) if re.match(r"[a-z0-9]", line)]
        assert pins, name
        assert all("--hash=sha256:" in lines[number + 1] for number in pins), name


def test_both_locks_pin_the_same_versions() -> None:
    def pins(name: str) -> set[str]:
        text = (ROOT / name).read_text(encoding="utf-8")
        return {line.split()[0] for line in text.splitlines() if re.match(r"[a-z0-9]", line)}

    assert pins("requirements.lock") <= pins("requirements-dev.lock")


def modules_of_packages() -> dict[str, Path]:
    return {
        ".".join(path.with_suffix("").parts).removesuffix(".__init__"): path
        for path in python_files()
        if path.parts[0] in PACKAGES
    }


def imports_of(path: Path, modules: Collection[str]) -> set[str]:
    """Return the modules of ours that a file imports, wherever it does, for typing too."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found & set(modules)


def circles_of(imports: Mapping[str, Collection[str]]) -> list[str]:
    """Return the modules that import themselves by way of others; a package is none of them."""
    left = {module: set(others) - {module} for module, others in imports.items()}
    while leaves := [module for module, others in left.items() if not others & left.keys()]:
        for module in leaves:
            del left[module]
    # What only leads into a circle is no part of one.
    while roots := left.keys() - set().union(*left.values()):
        for module in roots:
            del left[module]
    return sorted(left)


def test_no_import_goes_round_in_a_circle() -> None:
    modules = modules_of_packages()
    packages = {name for name, path in modules.items() if path.name == "__init__.py"}
    imports = {
        name: imports_of(path, modules.keys() - packages)
        for name, path in modules.items()
        if name not in packages
    }
    assert len(imports) > 300
    assert circles_of(imports) == []


def test_a_circle_is_found() -> None:
    imports = {"a": ["b"], "b": ["c"], "c": ["b"], "d": ["a"], "e": []}
    assert circles_of(imports) == ["b", "c"]


def test_no_folder_of_a_package_has_more_than_twenty_files() -> None:
    files = modules_of_packages().values()
    folders = Counter(path.parent for path in files if path.name != "__init__.py")
    assert {str(folder): count for folder, count in folders.items() if count > 20} == {}


def code_lines_of(path: Path) -> int:
    """Return the lines of a module without docstrings, comments and blanks."""
    told: set[int] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(value=ast.Constant(value=str())) as text, *_]:
                    told |= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    lines = enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1)
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in told
        for number, line in lines
    )


def test_nothing_is_larger_than_its_size() -> None:
    """Compare with `[tool.delaywheel.size]`: what needs room takes it from the same package."""
    sizes: Counter[str] = Counter()
    for path in our_files():
        if path.suffix == ".py" and path.parts[0] in PACKAGES:
            sizes[path.parts[0]] += code_lines_of(path)
        elif path.suffix == ".py" and path.parts[0] == "tests":
            sizes["lines of tests"] += (ROOT / path).read_text(encoding="utf-8").count("\n")
        elif path.suffix == ".md" and path.parts[0] in {"docs", "README.md", "CHANGELOG.md"}:
            sizes["words of docs"] += len((ROOT / path).read_text(encoding="utf-8").split())
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    most: dict[str, int] = settings["tool"]["delaywheel"]["size"]
    assert set(sizes) == set(most)
    assert {what: f"{n} of {most[what]}" for what, n in sizes.items() if n > most[what]} == {}
