"""YAML, and so JSON, with the line of every key."""

import re
from typing import Any

import yaml

from deepvm.core.json_types import JsonDict
from deepvm.documents.tree import FileSyntaxError, KeyPath, Tree, dotted
from deepvm.errors import Issue

MAX_CHARACTERS = 1_000_000
# With aliases written out: a few lines of them can stand for billions
MAX_VALUES, MAX_DEPTH = 20_000, 40


def load(text: str) -> Tree:
    """Read YAML. Raises FileSyntaxError."""
    if len(text) > MAX_CHARACTERS:
        raise FileSyntaxError(f"more than {MAX_CHARACTERS} characters")
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        line = text.count("\n", 0, getattr(error, "position", 0))
        if mark := getattr(error, "problem_mark", None):
            line = mark.line
        raise FileSyntaxError(f"not YAML: {_reason(error)}", line + 1) from None
    if root is None:
        raise FileSyntaxError("is empty")
    reader = _Reader()
    try:
        value = reader.plain(root, ())
    except FileSyntaxError:
        raise
    except (yaml.YAMLError, RecursionError, ValueError, AttributeError, LookupError) as error:
        raise FileSyntaxError(f"not YAML: {_reason(error)}", reader.line) from None
    return Tree(value, lambda: reader.lines, issues=reader.issues)


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "lists or objects are nested too deeply"
    lines = str(getattr(error, "problem", None) or error).splitlines()
    # What is quoted there may be a secret
    hint = r"\1 (put a text that starts with ! or * in quotes)"
    return re.sub(r"(^|alias|tag|handle|:) ?'.*", hint, "".join(lines[:1])).strip()[:100]


class _Reader:
    def __init__(self) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.issues: list[Issue] = []
        self.line = 1
        self._loader = yaml.SafeLoader("")

    def plain(self, node: yaml.Node, path: KeyPath) -> Any:
        self.line = node.start_mark.line + 1
        self.lines.setdefault(path, self.line)  # a value of a mapping has the line of its key
        if len(self.lines) > MAX_VALUES or len(path) > MAX_DEPTH:
            raise FileSyntaxError(
                "too many values, or nested too deeply, with aliases written out", self.line
            )
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(child, (*path, row)) for row, child in enumerate(node.value)]
        return self._loader.construct_object(node, deep=True)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> JsonDict:
        result: JsonDict = {}
        for key, child in node.value:
            name = str(key.value)
            below = (*path, name)
            line = key.start_mark.line + 1
            if name in result:
                label = dotted(below)
                self.issues.append(
                    Issue(f"repeated key {label} (expected every key once)", line, label)
                )
            self.lines[below] = line
            result[name] = self.plain(child, below)
        return result
