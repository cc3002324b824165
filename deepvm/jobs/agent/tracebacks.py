"""What a failed script has printed last, in the order in which its author reads it."""

import re
from collections.abc import Iterable
from pathlib import Path

_MAX_LINES = 40
_MAX_ERROR_LINES = 10
_LINES_BEFORE = 5  # Of the output before a traceback
_START = re.compile(r"(?P<rank>(\[[a-z]*\d+\]: ?)?)Traceback \(most recent call last\):\s*")
_FRAME = re.compile(
    r' +File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<name>.+)\n'
    r'(?P<source>(?:  (?!File ").*\n)*)'
)
_PLACE = r"\g<file>, line \g<line>, in \g<name>"
_MARKS = frozenset(" ^~")  # Below the source of a frame
_LIBRARIES = re.compile(r".*(site|dist)-packages/")


def own_frames_first(lines: Iterable[str], folder: Path) -> list[str]:
    """The end of an output; its last traceback starts with the error and the script's own frames.

    ``folder``: of the script's code. Frames of libraries are left out, but for the innermost.
    """
    all_lines = list(lines)
    starts = [number for number, line in enumerate(all_lines) if _START.fullmatch(line)]
    start = max(starts, default=len(all_lines))
    rank = "".join(_START.sub(r"\g<rank>", line) for line in all_lines[start : start + 1])
    text = "".join(f"{line.removeprefix(rank)}\n" for line in all_lines[start + 1 :])
    frames = []
    end = 0
    while frame := _FRAME.match(text, end):
        frames.append(frame)
        end = frame.end()
    own = [frame for frame in frames if _is_own(frame["file"], folder)]
    error = text[end:].splitlines()
    if not own or not error:
        return all_lines[-_MAX_LINES:]
    own_lines = []
    for frame in own:
        place = frame.expand(_PLACE).removeprefix(f"{folder}/")
        own_lines.append(f"  {place}")
        sources = frame["source"].splitlines()
        own_lines += [line for line in sources if not _MARKS.issuperset(line)]
    last = frames[-1]
    if last is not own[-1]:
        place = _LIBRARIES.sub("", last.expand(_PLACE))
        libraries = len(frames) - len(own)
        own_lines.append(f"  raised in {place} ({libraries} frames of libraries are left out)")
    before = all_lines[max(start - _LINES_BEFORE, 0) : start]
    first, after = error[:_MAX_ERROR_LINES], error[_MAX_ERROR_LINES:]
    return [*before, *first, *own_lines, *after][-_MAX_LINES:]


def _is_own(file: str, folder: Path) -> bool:
    path = folder / file  # Scripts are started by their relative names
    is_library = file.startswith("<") or _LIBRARIES.match(str(path))
    return not is_library and path.is_relative_to(folder)
