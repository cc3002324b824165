"""The public catalogs of prices: add a module of the same name in `public`, and a line here."""

from __future__ import annotations

SOURCES = {
    # by name, what it is called in messages; the first one is asked where no other source answers
    "skypilot": "skypilot-catalog",
    "gpuhunt": "gpuhunt",
}

TITLES = frozenset(SOURCES.values())


def address_variable(name: str) -> str:
    """The variable of the environment that names a copy of a source."""
    return f"DEEPVM_{name.upper()}_URL"


ADDRESS_VARIABLES = tuple(address_variable(name) for name in SOURCES)
