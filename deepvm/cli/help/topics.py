"""``deepvm help TOPIC``: text files, each one screen of 80 x 24.

The first line is a summary, the second lists aliases.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).with_name("topics")


@dataclass(frozen=True)
class Topic:
    """A topic; ``text``: its screen. ``aliases``: names that work but are not listed."""

    name: str
    line: str
    aliases: tuple[str, ...]
    text: str


def _read(path: Path) -> Topic:
    line, aliases, text = path.read_text(encoding="utf-8").split("\n", 2)
    names = tuple(aliases.removeprefix("Also: ").split(", "))
    return Topic(path.stem, line, names, f"{path.stem}: {line}\n{text}")


@cache
def topics() -> dict[str, Topic]:
    """All topics by name."""
    return {path.stem: _read(path) for path in sorted(_FOLDER.glob("*.md"))}


def find_topic(name: str) -> Topic | None:
    """A topic by any of its names."""
    wanted = name.casefold().replace("_", "-")
    return next((t for t in topics().values() if wanted in (t.name, *t.aliases)), None)
