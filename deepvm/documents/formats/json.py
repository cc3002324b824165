"""JSON with exact decimals in, readable text out."""

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from deepvm.core.json_types import JsonDict
from deepvm.documents.tree import FileSyntaxError, Tree
from deepvm.errors import Issue

_WIDTH = 120


def load(text: str, number: Callable[[str], Any] = Decimal) -> Tree:
    """Read JSON. NaN and infinities are left to validation."""
    # ``number`` reads decimals: a float would change the last digits of prices. Raises
    # FileSyntaxError.
    repeated = False

    def as_object(pairs: list[tuple[str, Any]]) -> JsonDict:
        nonlocal repeated
        result = dict(pairs)
        repeated = repeated or len(result) < len(pairs)
        return result

    if not text.strip():
        raise FileSyntaxError("is empty")
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
    # Lines are only needed for messages, and PyYAML is slow: it reads the text when one is made
    tree = Tree(value, lambda: _as_yaml(text).lines)
    if repeated:
        tree.issues = _as_yaml(text).issues or [Issue("a key is repeated (expected it once)")]
    return tree


def _as_yaml(text: str) -> Tree:
    from deepvm.documents.formats import yaml

    try:
        # JSON may be indented with tabs, which YAML refuses; lines stay the same
        return yaml.load(text.replace("\t", " "))
    except FileSyntaxError:
        return Tree(None, dict)


def format_document(document: object) -> str:
    """JSON with a newline at the end."""
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
