"""What a terminal changes.

Lines fit its width, commands that people copy stay whole, and color marks what matters.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import TextIO

USUAL_WIDTH = 80
BEST, WARNING, ERROR = "1;32", "33", "1;31"
"""Colors, as a terminal reads them.

They mark the first row of a ranking, what to be careful with, and what went wrong.
"""

_COPIED = (
    r"\(?'(?:deepvm|pip|aws|-|\|)[^'\n]*'\S*",  # 'deepvm catalog refresh', '| less -S'
    r"(?:->|[Ee]xample:) +deepvm .*",
    r"(?<=you mean )(?:--|'?deepvm )[^?\n]*\?",
    r"pip install (?:-e )?'[^'\n]*'\S*",
    r"\{\".*\}\S*",  # the example of a JSON file
)
_PIECE = re.compile(rf"\s*(?:{'|'.join(_COPIED)}|\S+)")


def width_of(stream: TextIO) -> int:
    """Columns of the terminal behind a stream, or of ``COLUMNS``.

    0 if it is no terminal: lines stay whole.
    """
    if not stream.isatty():
        return 0
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(stream.fileno()).columns or USUAL_WIDTH
    except (OSError, ValueError):
        return USUAL_WIDTH


def coloured(stream: TextIO) -> bool:
    """Whether to use color.

    On a terminal that can show it, or with ``FORCE_COLOR``, never with ``NO_COLOR``.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")


def paint(text: str, colour: str, stream: TextIO) -> str:
    """The text in a colour, if the stream takes one.

    Each line by itself, so that a pager keeps it.
    """
    if not coloured(stream):
        return text
    return "\n".join(f"\x1b[{colour}m{line}\x1b[0m" for line in text.split("\n"))


def room_of(text: str) -> int:
    """Columns that a text takes: letters of some scripts take two, some marks none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # slow to load

    return cell_len(text)


def pieces(text: str) -> list[str]:
    """The parts of a text that stay whole: words and commands."""
    return [piece.strip() for piece in _PIECE.findall(text)]


def wrapped(line: str, width: int, indent: str = "  ") -> list[str]:
    """Lines of at most ``width`` columns.

    Words, options, paths and commands are never broken, but stand out.
    """
    if line.startswith("  deepvm "):
        return [line]  # a command to be copied
    lines: list[str] = []
    for piece in _PIECE.findall(line):
        if lines and room_of(lines[-1] + piece) <= width:
            lines[-1] += piece
        else:
            lines.append(indent + piece.lstrip() if lines else piece)
    return lines or [""]


_SIGNS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {127: 0x2421}
_TURNS = dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD)


def visible(text: str) -> str:
    """A user's text with signs for control characters and for what changes the text's direction."""
    return text.translate(_SIGNS | _TURNS)


_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colors, and where the cursor goes
    # Titles, links, clipboards
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-OQ-WYZ\\`-~]"
)


def without_controls(text: str) -> str:
    """A text that a terminal only shows.

    No control sequence is left, and of a progress bar its last state.
    """
    if text.isprintable():
        return text
    lines = _SEQUENCE.sub("", text).split("\n")
    return visible("\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines))


def fitted(text: str, stream: TextIO) -> str:
    """A text of one line or several as a stream shows it."""
    text = without_controls(text)
    width = width_of(stream)
    return "\n".join(
        part for line in text.split("\n") for part in (wrapped(line, width) if width else [line])
    )


def print_lines(lines: Sequence[str], stream: TextIO | None = None) -> None:
    """Write sentences, one a line.

    A terminal's width is kept, with an indent, and doubts are in colour.
    """
    stream = stream or sys.stdout
    for line in lines:
        text = fitted(line, stream)
        stream.write(
            f"{paint(text, WARNING, stream) if line.startswith(('! ', 'Doubt: ')) else text}\n"
        )
