"""Files as trees, before any model: what users wrote, or an error that names file and line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from deepvm.documents.tree import FileSyntaxError, Tree
from deepvm.errors import CatalogFormatError, Issue, JobFormatError
from deepvm.io.safe_read import read_text

FileError = type[CatalogFormatError] | type[JobFormatError]


def read_file(path: Path, expected: str) -> str:
    """The text of a file that must exist. Raises CatalogFormatError."""
    try:
        return read_text(path, expected)
    except FileNotFoundError:
        issue = Issue(f"does not exist (expected {expected})")
        raise CatalogFormatError(path, [issue]) from None


def load_tree(
    text: str,
    name: str | os.PathLike[str],
    expected: str,
    load: Callable[[str], Tree],
    error: FileError = CatalogFormatError,
) -> Tree:
    """The document of a text that errors call ``name``. Raises ``error``."""
    try:
        return load(text)
    except FileSyntaxError as caught:
        issue = Issue(f"{caught.issue} (expected {expected})", caught.issue.line)
        raise error(os.fspath(name), [issue]) from None


def read_object(path: Path, expected: str, load: Callable[[str], Tree]) -> Tree:
    """The tree of a file that holds an object, each key once. Raises CatalogFormatError."""
    tree = load_tree(read_file(path, expected), path, expected, load)
    issues = list(tree.issues)
    if not isinstance(tree.value, dict):
        issues.append(Issue(f"not an object (expected {expected})"))
    if issues:
        raise CatalogFormatError(path, issues)
    return tree
