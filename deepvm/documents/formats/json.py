"""JSON with exact decimals in, readable text out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import islice
from json.decoder import JSONArray, JSONObject  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any

from deepvm.documents.tree import FileSyntaxError, KeyPath, Tree, dotted
from deepvm.errors import Issue

MAX_REPEATED = 1000
_WIDTH = 120


def load(text: str, number: Callable[[str], Any] = Decimal) -> Tree:
    """Read JSON; ``number`` reads decimals. NaN and infinities are left to validation.

    Raises FileSyntaxError.
    """
    repeated = False

    def as_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        result = dict(pairs)
        repeated = repeated or len(result) < len(pairs)
        return result

    try:
        value = json.loads(
            text, parse_float=number, parse_constant=float, object_pairs_hook=as_object
        )
    except json.JSONDecodeError as error:
        raise FileSyntaxError(f"not JSON: {error.msg}", error.lineno) from None
    except RecursionError:
        raise FileSyntaxError("not JSON: lists or objects are nested too deeply") from None
    except (ValueError, ArithmeticError):
        raise FileSyntaxError("not JSON: a number has too many digits") from None
    tree = Tree(value, lambda: dict(_lines(text)))
    if repeated:
        tree.issues = list(islice(_repeated(text), MAX_REPEATED))
    return tree


def _repeated(text: str) -> Iterator[Issue]:
    seen = set()
    for path, line in _lines(text):
        if path in seen:
            key = dotted(path)
            yield Issue(f"repeated key {key} (expected every key once)", line, key)
        seen.add(path)


def _lines(text: str) -> Iterator[tuple[KeyPath, int]]:
    """The path and line of every value, in the order of the text."""
    line = 1
    before = 0
    try:
        for path, index in _walk(_positions(text), ()):
            line += text.count("\n", before, index)
            before = index
            yield path, line
    except RecursionError:
        return


def _positions(text: str) -> Any:
    """The document; each object is a tuple of (key, (position, value)), each list a list of those."""

    def marked(scan: Callable[[str, int], tuple[Any, int]]) -> Any:
        def scan_marked(string: str, index: int) -> tuple[Any, int]:
            value, end = scan(string, index)
            return (index, value), end

        return scan_marked

    decoder: Any = json.JSONDecoder(object_pairs_hook=tuple)
    decoder.parse_object = lambda start, strict, scan, *rest: JSONObject(
        start, strict, marked(scan), *rest
    )
    decoder.parse_array = lambda start, scan, *rest: JSONArray(start, marked(scan), *rest)
    decoder.scan_once = py_make_scanner(decoder)
    return decoder.decode(text)


def _walk(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
    if isinstance(value, tuple):
        pairs = iter(value)
    elif isinstance(value, list):
        pairs = iter(enumerate(value))
    else:
        return
    for step, (index, child) in pairs:
        yield (*path, step), index
        yield from _walk(child, (*path, step))


def load_exact(text: str) -> dict[str, Any]:
    """Read JSON of our own (an embedded catalog) with its decimals exact."""
    document: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return document


def format_document(document: object) -> str:
    """JSON with a newline at the end.

    What fits into 120 columns stands on one line, the rest is indented.
    """
    return _format(document, "") + "\n"


def _format(value: object, indent: str) -> str:
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if len(line) + len(indent) < _WIDTH or not isinstance(value, (dict, list)):
        return line
    deeper = indent + "  "
    if isinstance(value, dict):
        parts = [
            f"{deeper}{json.dumps(k, ensure_ascii=False)}: {_format(v, deeper)}"
            for k, v in value.items()
        ]
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    return "[\n" + ",\n".join(deeper + _format(v, deeper) for v in value) + f"\n{indent}]"
