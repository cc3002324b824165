"""What a failed script has printed last, in the order in which its author reads it."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_MAX_LINES = 40
_MAX_ERROR_LINES = 10
_LINES_BEFORE = 5  # Of the output before a traceback
_START = re.compile(r"(?P<mark>(\[[a-z]*\d+\]: ?)?)Traceback \(most recent call last\):\s*")
_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)')
_LIBRARIES = ("site-packages", "dist-packages")


@dataclass
class _Frame:
    file: str
    line: str
    name: str
    source: list[str] = field(default_factory=list)

    def lines(self, folder: Path) -> list[str]:
        place = self.file.removeprefix(f"{folder}/")
        return [f"  {place}, line {self.line}, in {self.name}", *self.source]


def own_frames_first(lines: Iterable[str], folder: Path) -> list[str]:
    """The end of an output; its last traceback starts with the error and the script's own frames.

    ``folder``: of the script's code. Frames of libraries are left out, but for the innermost.
    """
    all_lines = list(lines)
    starts = [n for n, line in enumerate(all_lines) if _START.fullmatch(line)]
    if not starts:
        return all_lines[-_MAX_LINES:]
    begin = starts[-1]
    mark = _START.fullmatch(all_lines[begin])
    assert mark is not None
    body = [line.removeprefix(mark["mark"]) for line in all_lines[begin + 1 :]]
    frames, end = _frames(body)
    own = [frame for frame in frames if _is_own(frame, folder)]
    if not own or len(body) == end:
        return all_lines[-_MAX_LINES:]
    error, after = body[end:][:_MAX_ERROR_LINES], body[end:][_MAX_ERROR_LINES:]
    found = [*error, *(line for frame in own for line in frame.lines(folder))]
    last = frames[-1]
    if last is not own[-1]:
        left_out = len(frames) - len(own)
        place = f"{_short(last.file)}, line {last.line}, in {last.name}"
        found.append(f"  raised in {place} ({left_out} frames of libraries are left out)")
    before = all_lines[max(begin - _LINES_BEFORE, 0) : begin]
    return [*before, *found, *after][-_MAX_LINES:]


def _frames(body: Sequence[str]) -> tuple[list[_Frame], int]:
    """The frames of a traceback, and where its error starts."""
    frames: list[_Frame] = []
    for number, line in enumerate(body):
        match = _FRAME.fullmatch(line)
        if match:
            frames.append(_Frame(match["file"], match["line"], match["name"]))
        elif not line.startswith("  "):
            return frames, number
        elif frames and not set(line) <= set(" ^~"):
            frames[-1].source.append(line)
    return frames, len(body)


def _is_own(frame: _Frame, folder: Path) -> bool:
    path = folder / frame.file  # Scripts are started by their relative names
    if frame.file.startswith("<") or any(part in _LIBRARIES for part in path.parts):
        return False
    return path.is_relative_to(folder)


def _short(file: str) -> str:
    """A library's file without where it is installed."""
    for part in _LIBRARIES:
        file = file.rpartition(f"{part}/")[2]
    return file
