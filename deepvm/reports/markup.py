"""HTML in which every text is escaped unless it was made here."""

from __future__ import annotations

import json
from html import escape
from typing import Any

_EMPTY = frozenset({"br", "input", "meta"})
"""Elements without an end tag; those of SVG have one in HTML."""


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | float | bool | None) -> Html:
    """An element. Children that are not :class:`Html` are text.

    An attribute that is None or False is left out.

    ``class_`` stands for the attribute class, and ``aria_label`` for aria-label.
    """
    shown = "".join(_attribute(k.rstrip("_").replace("_", "-"), v) for k, v in attributes.items())
    inside = "".join(c if isinstance(c, Html) else escape(c) for c in children)
    return Html(f"<{name}{shown}>" if name in _EMPTY else f"<{name}{shown}>{inside}</{name}>")


def _attribute(name: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def joined(*parts: str) -> Html:
    """Elements and texts behind one another."""
    return Html("".join(p if isinstance(p, Html) else escape(p) for p in parts))


def table(caption: str, header: list[str], rows: list[list[str]], **attributes: str) -> Html:
    """A table whose first column heads its rows."""
    head = tag("tr", *(tag("th", h, scope="col") for h in header))
    body = (
        tag("tr", tag("th", row[0], scope="row"), *(tag("td", c) for c in row[1:])) for row in rows
    )
    return tag(
        "table", tag("caption", caption), tag("thead", head), tag("tbody", *body), **attributes
    )


def data_block(value: Any) -> Html:
    """A value as JSON that no script element ends at, whatever names it holds: it has no ``<``, ``>`` and ``&``."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(text)


def ascii_only(page: Html) -> Html:
    """The same page for any encoding, as character references.

    What stands in scripts and styles must be ASCII.
    """
    return Html(page.encode("ascii", "xmlcharrefreplace").decode())
