"""Refuse banned words in lines that a change adds.

``python scripts/wording.py [BASE]`` compares the working tree with BASE, or with ``origin/main``,
or with the previous commit, and exits 1 if an added line holds a banned word. Lines that show such
a word on purpose end with ``# wording: allowed``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
BANNED = (
    "told",
    "beside",
    "nobody",
    "somebody",
    "anew",
    "taken back",
    "lent",
    "loan",
    "borrow",
    "heed",
    "begun",
    "at hand",
    "of one's own",
    "whatever",
    "goes on",
    "front door",
    "in place of",
    "takes back",
    "whoever",
    "wish",
)
"""Words of this project's early pages that the field does not use; identifiers count as words."""
CEILINGS = {
    "anew": 3,
    "begun": 55,
    "blow": 13,
    "by itself": 12,
    "commit record": 11,
    "deaf": 18,
    "fate": 2,
    "fates": 6,
    "floor": 74,
    "go on": 5,
    "gone on": 5,
    "hear": 34,
    "heard": 63,
    "lives": 323,
    "newcomers": 3,
    "of which": 38,
    "room": 69,
    "said": 4,
    "set aside": 20,
    "that which": 2,
    "told": 8,
    "went on": 7,
    "whatever": 5,
    "wish": 3,
}
"""How often product and pages may still have these words. The numbers only fall."""
_PRODUCT = (
    "deepvm/**/*.py",
    "deepvm/**/*.md",
    "deepvm/**/*.j2",
    "data/documents/*.json",
    "docs/**/*.md",
    "*.md",
    "Makefile",
)
_PATTERN = re.compile(rf"(?<![a-z])({'|'.join(BANNED)})(?![a-z])", re.IGNORECASE)
_ALLOWED = "# wording: allowed"
_FILES = ("*.py", "*.md", "Makefile")


def added_lines(base: str) -> Iterator[tuple[str, str]]:
    """(file, line) of each line that the working tree adds to ``base``."""
    command = ["git", "diff", "--unified=0", "--no-color", base, "--", *_FILES]
    path = ""
    for line in subprocess.check_output(command, cwd=ROOT, text=True).splitlines():
        if line.startswith("+++ "):
            path = line.removeprefix("+++ b/")
        elif line.startswith("+"):
            yield path, line[1:]


def banned_words(line: str) -> list[str]:
    """The banned words in a line, lowercase."""
    if line.rstrip().endswith(_ALLOWED):
        return []
    return [word.lower() for word in _PATTERN.findall(line.replace("_", " "))]


def words_of_the_product() -> Counter[str]:
    """How often each banned word, and each with a ceiling, is in the product and its pages."""
    words = "|".join({*BANNED, *CEILINGS})
    pattern = re.compile(rf"(?<![a-z])({words})(?![a-z])", re.IGNORECASE)
    paths = (path for glob in _PRODUCT for path in ROOT.glob(glob))
    texts = (path.read_text(encoding="utf-8").replace("_", " ") for path in paths)
    return Counter(word.lower() for text in texts for word in pattern.findall(text))


def default_base() -> str:
    """The newest commit that this branch shares with origin/main; without one, the last commit."""
    command = ["git", "merge-base", "HEAD", "origin/main"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return found.stdout.strip() or "HEAD"


def main() -> None:
    """Print the banned words in added lines."""
    base = sys.argv[1] if len(sys.argv) > 1 else default_base()
    this_file = Path(__file__).relative_to(ROOT).as_posix()
    found = [
        f"{path}: {word!r} in: {line.strip()}"
        for path, line in added_lines(base)
        if path != this_file
        for word in banned_words(line)
    ]
    if found:
        sys.exit(
            "\n".join([*found, "banned words: use those of docs/internals/reference/glossary.md"])
        )


if __name__ == "__main__":
    main()
