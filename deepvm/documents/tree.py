"""A file as plain data, with the line of every value, or an error that names file and line."""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from deepvm.errors import CatalogFormatError, Issue, JobFormatError
from deepvm.io.safe_read import StrPath, read_text
from deepvm.records import dataclass

KeyPath: TypeAlias = tuple[str | int, ...]  # Keys and list positions from the top of a document


class FileSyntaxError(ValueError):
    """A text is not of its format; ``line`` is 0 where the parser does not tell."""

    def __init__(self, reason: str, line: int = 0) -> None:
        self.issue = Issue(reason, line)
        super().__init__(reason)


def dotted(path: KeyPath) -> str:
    """A key as people write it: ``machines.count``; nothing after = or :, which may be secret."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
            continue
        if text:
            text += "."
        if not step.isprintable():
            step = repr(step)
        text += re.split("[=:]", step, maxsplit=1)[0][:60]
    return text


def shown(value: Any) -> str:
    """A value for a message, at most 60 characters; containers by their size."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 256:  # Python writes no such number
        return "a huge number"
    if isinstance(value, str):
        text = repr(value[:60])
    elif value is None or isinstance(value, bool):
        text = json.dumps(value)
    else:
        text = str(value)
    if len(text) > 60:
        return f"{text[:56]}..."
    return text


@dataclass
class Tree:
    """A document. ``label``: how messages name a path."""

    value: Any
    read_lines: Callable[[], Mapping[KeyPath, int]]
    label: Callable[[KeyPath], str] = dotted
    issues: Sequence[Issue] = ()
    secret: str = ""  # The key whose values no message shows

    @cached_property
    def lines(self) -> Mapping[KeyPath, int]:
        return self.read_lines()

    def line(self, path: KeyPath) -> int:
        """The line of a key, or of the nearest one above it; 0 if there is none."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return 0

    def refusal(self, path: KeyPath, value: Any, expected: str) -> Issue:
        return self.issue(path, f"{self.naming(path, value)} (expected {expected})")

    def naming(self, path: KeyPath, value: Any) -> str:
        """The start of a message about a value, which it shows if it is no secret."""
        message = f"invalid value for {self.label(path)}"
        if self.secret in path[:1]:
            return message
        return f"{message}: {shown(value)}"

    def issue(self, path: KeyPath, message: str) -> Issue:
        return Issue(message, self.line(path), self.label(path))


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
    name: StrPath,
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
