"""Edits of the syntax tree of a function, and how they are put in force in a running process.

    drop("LogTail.sync", "file.sync()")
    swap("Committer._next_floor", "max(self._floor_minute, minute)", "minute")
    swap("Dispatch.run", "self._pacer.trusted_ms()", "_ + 50")
    before("Ingest._take", "self._under_way.append(...)", "self._answer(gathered.waiting)")

A target is the qualified name of a function, wherever its module is; "package:name" where that is
not enough. What is looked for is compared as a syntax tree, so layout, comments and lines say
nothing. In it `...` stands for any expression, `f(...)` for any arguments, and as a body for any
statements; in the new code `_` stands for the expression that was there. It has to be there once:
MutationError says what to do where it is not.
"""

import ast
import builtins
import contextlib
import copy
import dis
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Literal, NamedTuple

ROOT = Path(__file__).parents[2]
OURS = frozenset(path.parent.name for path in ROOT.glob("*/__init__.py"))
"""Packages whose functions can be edited."""
_INSIDE = ("__func__", "fget", "fset", "fdel", "func", "__wrapped__")
"""Where class methods, properties and decorated functions have the function itself."""
_LAYERS_MAX = 20


_Node = ast.FunctionDef | ast.AsyncFunctionDef


class MutationError(Exception):
    """An edit that does not fit the code any more; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of one function."""

    target: str
    old: str
    new: str
    place: Literal["instead", "before", "after"] = "instead"


def drop(target: str, old: str) -> Edit:
    """Take these statements out."""
    return Edit(target, old, "pass")


def swap(target: str, old: str, new: str) -> Edit:
    """Put an expression in the place of another, or statements in the place of others."""
    return Edit(target, old, new)


def before(target: str, old: str, new: str) -> Edit:
    """Put statements before these."""
    return Edit(target, old, new, "before")


def after(target: str, old: str, new: str) -> Edit:
    """Put statements after these."""
    return Edit(target, old, new, "after")


@dataclass(frozen=True, slots=True)
class _Function:
    """A function of a module, or of a class of it."""

    module: ModuleType
    name: str
    node: _Node

    @property
    def first_line(self) -> int:
        """The line that its code says."""
        return min(one.lineno for one in (self.node, *self.node.decorator_list))


def _functions(module: ModuleType, body: list[ast.stmt], names: str = "") -> Iterator[_Function]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield _Function(module, names + node.name, node)
        elif isinstance(node, ast.ClassDef):
            yield from _functions(module, node.body, f"{names}{node.name}.")


@cache
def _code_base() -> dict[str, list[_Function]]:
    """Return the functions of all imported modules of ours by their qualified names."""
    found: dict[str, list[_Function]] = {}
    for name, module in sorted(sys.modules.items()):
        if name.split(".")[0] in OURS and module.__file__ is not None:
            tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
            for function in _functions(module, tree.body):
                found.setdefault(function.name, []).append(function)
    return found


def _candidates(edit: Edit) -> list[_Function]:
    package, _, name = edit.target.rpartition(":")
    named = _code_base().get(name, [])
    return [one for one in named if f"{one.module.__name__}.".startswith(package)]


def _elsewhere(edit: Edit) -> str:
    """Tell where what an edit looks for is now: in functions of that name, or in others."""
    last = edit.target.rpartition(":")[2].split(".")[-1]
    functions = list(chain.from_iterable(_code_base().values()))
    alike = [one for one in functions if one.name.split(".")[-1] == last]
    for some in (alike, functions):
        found = [one.name for one in some if any(places(one.node, edit))]
        if found:
            return f"; it is in {', '.join(found[:3])}{' and others' * (len(found) > 3)}"
    return ", nor anywhere else: find the rule, and say how it is written now"


def _is_any(node: object) -> bool:
    if isinstance(node, ast.Expr):
        node = node.value
    return isinstance(node, ast.Constant) and node.value is ...


def _is_same(pattern: object, node: object) -> bool:
    """Compare what is looked for with a part of a tree."""
    if isinstance(pattern, list) and isinstance(node, list):
        is_any = len(pattern) == 1 and _is_any(pattern[0])
        return is_any or (len(pattern) == len(node) and all(map(_is_same, pattern, node)))
    if _is_any(pattern) and isinstance(node, ast.expr):
        return True
    if type(pattern) is not type(node):
        return False
    if not isinstance(pattern, ast.AST):
        return pattern == node
    fields = [field for field in pattern._fields if field != "ctx"]
    if isinstance(pattern, ast.Call) and len(pattern.args) == 1 and _is_any(pattern.args[0]):
        fields = ["func"]
    return all(_is_same(getattr(pattern, one, None), getattr(node, one, None)) for one in fields)


class Place(NamedTuple):
    """Where something was found: nodes in a list, or the one that a field has."""

    parent: ast.AST
    field: str
    first: int
    nodes: list[ast.AST]


def _wanted(edit: Edit) -> tuple[list[ast.AST], list[ast.AST]]:
    """Return what is looked for, and what is new: an expression each, or statements."""
    old, new = ast.parse(edit.old).body, ast.parse(edit.new).body
    if edit.place == "instead" and len(old) == len(new) == 1:
        [this], [that] = old, new
        if isinstance(this, ast.Expr) and isinstance(that, ast.Expr):
            return [this.value], [that.value]
    return [*old], [*new]


def places(function: ast.AST, edit: Edit) -> Iterator[Place]:
    """Yield where a function has what an edit looks for, in what it does."""
    old, _ = _wanted(edit)
    kind = ast.stmt if isinstance(old[0], ast.stmt) else ast.expr
    body = getattr(function, "body", [])
    below = chain.from_iterable(map(ast.walk, body))
    fields = ((node, *field) for node in below for field in ast.iter_fields(node))
    for parent, name, value in chain([(function, "body", body)], fields):
        nodes = value if isinstance(value, list) else [value]
        for first in range(len(nodes) - len(old) + 1):
            run = nodes[first : first + len(old)]
            if isinstance(run[0], kind) and _is_same(old, run):
                yield Place(parent, name, first, run)


class _Filled(ast.NodeTransformer):
    """Puts the expression that was found in the place of `_`."""

    def __init__(self, found: ast.AST) -> None:
        self._found = found

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return copy.deepcopy(self._found) if node.id == "_" else node


def put(edit: Edit, place: Place) -> None:
    """Put what is new at a place; tracebacks show the lines that were there."""
    new = [_Filled(place.nodes[0]).visit(node) for node in _wanted(edit)[1]]
    for node in chain.from_iterable(map(ast.walk, new)):
        ast.copy_location(node, place.nodes[0])
    value = getattr(place.parent, place.field)
    if isinstance(value, list):
        begin = place.first + len(place.nodes) * (edit.place == "after")
        end = place.first + len(place.nodes) * (edit.place != "before")
        value[begin:end] = new
    else:
        setattr(place.parent, place.field, new[0])


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _live(function: _Function) -> FunctionType:
    """Return the function object that everybody has, whatever decorators have put around it."""
    found: object = function.module
    for part in function.name.split("."):
        found = vars(found)[part]
    layers = [found]
    for one in layers:
        if isinstance(one, FunctionType) and _is_of(one.__code__, function):
            return one
        inner = (getattr(one, name, None) for name in _INSIDE)
        layers += [layer for layer in inner if layer is not None and len(layers) < _LAYERS_MAX]
    raise MutationError(f"{function.name} is inside something that hides it: name another one")


def _is_of(code: CodeType, function: _Function) -> bool:
    return (code.co_qualname, code.co_firstlineno) == (function.name, function.first_line)


def _compiled(function: _Function, node: _Node) -> CodeType:
    """Return the code of an edited function, in classes of the names that are around it."""
    around: ast.stmt = node
    for name in reversed(function.name.split(".")[:-1]):
        around = ast.ClassDef(name, bases=[], keywords=[], body=[around], decorator_list=[])
    tree = ast.fix_missing_locations(ast.Module([around], []))
    whole = compile(tree, str(function.module.__file__), "exec", dont_inherit=True)
    [code] = [code for code in _codes(whole) if _is_of(code, function)]
    return code


def _check_names(function: FunctionType, code: CodeType) -> None:
    for one in _codes(code):
        for step in dis.get_instructions(one):
            if step.opname in {"LOAD_GLOBAL", "LOAD_NAME"}:
                name = str(step.argval)
                if name not in function.__globals__ and not hasattr(builtins, name):
                    raise MutationError(
                        f"{code.co_qualname} does not know {name}: it was renamed, or is imported "
                        "no longer; write the new code with names that are there"
                    )


@dataclass(frozen=True, slots=True)
class Changed:
    """A function, and what it is to do instead: whoever has imported it has the edited one."""

    function: FunctionType
    code: CodeType
    whole: CodeType
    """What it does without the edit."""


@contextlib.contextmanager
def in_force(changes: tuple[Changed, ...]) -> Iterator[None]:
    """Edit this process in this block."""
    for one in changes:
        one.function.__code__ = one.code
    try:
        yield
    finally:
        for one in changes:
            one.function.__code__ = one.whole


@cache
def prepared(edits: tuple[Edit, ...]) -> tuple[Changed, ...]:
    """Return the functions that edits change, with their new code; nothing is changed yet.

    Raises MutationError if an edit does not fit.
    """
    edited: dict[_Function, _Node] = {}
    for edit in edits:
        functions = _candidates(edit)
        fitting = [one for one in functions for _ in places(edited.get(one, one.node), edit)]
        if not functions:
            raise MutationError(
                f"no function {edit.target} is imported by the simulation, to find {edit.old!r} in"
                + _elsewhere(edit)
            )
        if not fitting:
            raise MutationError(f"{edit.target} has no {edit.old!r}" + _elsewhere(edit))
        if len(fitting) > 1:
            where = ", ".join(f"{one.module.__name__}:{one.name}" for one in fitting)
            raise MutationError(
                f"{edit.old!r} is in {where}: name the package, or say more of what is around it"
            )
        [function] = fitting
        node = edited.setdefault(function, copy.deepcopy(function.node))
        [place] = places(node, edit)
        put(edit, place)
    found: list[Changed] = []
    for function, node in edited.items():
        live, code = _live(function), _compiled(function, node)
        if code.co_freevars != live.__code__.co_freevars:
            raise MutationError(f"{function.name}: its new code uses other variables of outside")
        _check_names(live, code)
        found.append(Changed(live, code, live.__code__))
    return tuple(found)
