"""What modules import, and what they load by name; each file is read once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

LOADERS = {"import_module", "__import__", "resolve_name"}
"""Functions that import what a string names."""


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def found_in(path: Path) -> tuple[tuple[tuple[str, bool], ...], tuple[str, ...]]:
    """A module's import statements, and what it loads by name."""
    by_name: tuple[str, ...] = ()
    if any(loader in path.read_text() for loader in LOADERS):
        by_name = tuple(loads(parsed(path)))
    return tuple(statements(parsed(path))), by_name


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """The statements below a node, without their expressions, which are most of a tree."""
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, block, ()):
            yield child
            yield from _within(child)


def statements(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """(dotted name, whether it stands at the top of the module) of every import statement."""
    top = {id(node) for node in tree.body}
    typing_only = {
        id(child)
        for node in _within(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for child in _within(node)
    }
    for node in _within(tree):
        at_top = id(node) in top and id(node) not in typing_only
        if isinstance(node, ast.Import):
            yield from ((alias.name, at_top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import of {node.module}"
            yield from ((f"{node.module}.{alias.name}", at_top) for alias in node.names)


def loads(tree: ast.Module) -> Iterator[str]:
    """The module that each call of a loader names; empty where the name is computed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            function, name = node.func, node.args[0]
            if getattr(function, "attr", getattr(function, "id", "")) in LOADERS:
                yield str(name.value).partition(":")[0] if isinstance(name, ast.Constant) else ""
