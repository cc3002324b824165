"""The reader of files that users write: text, tree with lines, pydantic model, issues."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from deepvm.documents.files import FileError, load_tree, read_file
from deepvm.documents.formats import json
from deepvm.documents.issues import expected, issues_of, rule_issues
from deepvm.documents.tree import FileSyntaxError, KeyPath, Tree
from deepvm.errors import CatalogFormatError, Issue

Model = TypeVar("Model", bound=BaseModel)
Rules = Iterable[tuple[KeyPath, str]]
"""Violations of rules about several fields: the key to change, and why."""


@dataclass(frozen=True)
class FileFormat(Generic[Model]):
    """One kind of file.

    Attributes:
        model: what it is read into.
        expected: what belongs there, for messages about another thing.
        load: text to tree.
        rules: checked where the model accepts the file.
        error: raised with all issues.
    """

    model: type[Model]
    expected: str
    load: Callable[[str], Tree] = json.load
    rules: Callable[[Model], Rules] | None = None
    error: FileError = CatalogFormatError

    def read(self, path: str | os.PathLike[str]) -> Model:
        """Read a file; raises ``error`` or, if it is not readable text, CatalogFormatError."""
        return self.parse(read_file(Path(path), self.expected), path)

    def read_plain(self, path: str | os.PathLike[str]) -> Any:
        """As :meth:`read`, but returns plain data."""
        tree = self.tree(read_file(Path(path), self.expected), path)
        self.validated(tree, path)
        return tree.value

    def parse(self, text: str, name: str | os.PathLike[str]) -> Model:
        """Read a text that errors call ``name``."""
        return self.validated(self.tree(text, name), name)

    def tree(self, text: str, name: str | os.PathLike[str]) -> Tree:
        """The document as plain data."""
        return load_tree(text, name, self.expected, self.load, self.error)

    def validated(self, tree: Tree, name: str | os.PathLike[str]) -> Model:
        """The model of a document."""
        issues = list(tree.issues)
        try:
            model = self.model.model_validate(tree.value)
        except ValidationError as error:
            if not isinstance(tree.value, dict):
                issues.append(Issue(f"not an object (expected {self.expected})"))
            else:
                issues += issues_of(error, self.model, tree)
        else:
            if self.rules:
                issues += rule_issues(self.rules(model), tree)
        if issues:
            raise self.error(os.fspath(name), issues)
        return model

    def line_of(self, path: Path, key: str) -> int:
        """The line of a key such as ``machines.type`` in a file, 0 if it is not there."""
        try:
            tree = self.load(read_file(path, self.expected))
        except (OSError, CatalogFormatError, FileSyntaxError):
            return 0
        return tree.line(tuple(key.split(".")))

    def describe(self, *path: str | int) -> str:
        """What a key may be."""
        return expected(self.model, path)
