"""``deepvm help TOPIC``: text files, each one screen of 80 x 24."""

from functools import cache
from pathlib import Path

from deepvm.records import dataclass

_FOLDER = Path(__file__).with_name("topics")


@dataclass(frozen=True)
class Topic:
    """A topic; ``text``: its screen. ``aliases``: names that work but are not listed."""

    name: str
    line: str
    aliases: tuple[str, ...]
    text: str


@cache
def topics() -> dict[str, Topic]:
    """All topics by name."""
    by_name = {}
    for path in sorted(_FOLDER.glob("*.md")):
        line, aliases, text = path.read_text(encoding="utf-8").split("\n", 2)
        names = tuple(aliases.removeprefix("Also: ").split(", "))
        by_name[path.stem] = Topic(path.stem, line, names, f"{path.stem}: {line}\n{text}")
    return by_name


def find_topic(name: str) -> Topic | None:
    """A topic by any of its names."""
    wanted = name.casefold().replace("_", "-")
    return next((t for t in topics().values() if wanted in (t.name, *t.aliases)), None)
