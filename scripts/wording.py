"""Refuse banned words in lines that a change adds.

``python scripts/wording.py [BASE]`` compares the working tree with BASE, or with ``origin/main``,
or with the previous commit, and exits 1 if an added line holds a banned word. Lines that show such
a word on purpose end with ``# wording: allowed``.
"""

from __future__ import annotations

import re
import subprocess
import sys
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
)
"""Words of this project's early pages that the field does not use; identifiers count as words."""
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
            "\n".join([*found, "banned words: say it in the terms of docs/reference/glossary.md"])
        )


if __name__ == "__main__":
    main()
