"""TOML with the line of every key at its top."""

from __future__ import annotations

import re
import sys

from deepvm.documents.tree import FileSyntaxError, KeyPath, Tree

_KEY = re.compile(r"""\s*\[*\s*["']?([^"'\s=.\]]+)["']?\s*[=.\]]""")


def load(text: str) -> Tree:
    """Read TOML. Raises FileSyntaxError, which names places and keys, never values."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        value = tomllib.loads(text)
    except RecursionError:
        raise FileSyntaxError("not TOML: nested too deeply") from None
    except ValueError as error:
        raise FileSyntaxError(f"not TOML: {error}") from None
    return Tree(value, lambda: _lines(text))


def _lines(text: str) -> dict[KeyPath, int]:
    lines: dict[KeyPath, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if match := _KEY.match(line):
            lines.setdefault((match[1],), number)
    return lines
