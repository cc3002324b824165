"""New lines of a file that another process appends to."""

from __future__ import annotations

from pathlib import Path


class LineTail:
    """Each whole line once, however the writes that made it were cut."""

    def __init__(self, path: Path, *, at_end: bool = False) -> None:
        """Begin at the first line, or after all that are there; the file may come later."""
        self._path = path
        self._rest = b""
        if at_end and path.exists():
            self._offset = path.stat().st_size
        else:
            self._offset = 0

    def new(self) -> list[bytes]:
        """Lines that were not there at the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines
