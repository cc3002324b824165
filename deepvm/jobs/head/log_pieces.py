"""Logs of a head as objects: pieces of all machines' files, in the order in which they grew."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deepvm.jobs.cloud import Objects, UnknownError
from deepvm.jobs.head.mirror import LOGS
from deepvm.jobs.history.log_files import FOLDER

_MOST = 4_000_000
"""Bytes of a piece, before they are compressed."""
_PIECES_PER_S, _MOST_S = 100, 30.0
"""After so many pieces they are at least a second apart, after twice as many two, and so on to the most."""


class LogPieces:
    """Passes on what is new in the logs of one head; goes on where the process before this one had got to."""

    def __init__(self, folder: Path, objects: Objects, head: int) -> None:
        """``folder``: of the job."""
        self._folder, self._objects, self._prefix = folder / FOLDER, objects, f"{LOGS}{head:06}-"
        self._sent_s = float("-inf")
        self._sent: dict[str, int] | None = None
        self._number = 0

    def send(self, *, last: bool = False) -> None:
        """Write what is new; ``last``: also a line that has no end. Raises UnknownError, RefusedError, OSError.

        The more pieces there are the rarer they become: nobody fetches tens of thousands of them.
        """
        if self._sent is None:
            self._sent = self._resumed()
        now_s = time.monotonic()
        if not last and now_s - self._sent_s < min(self._number / _PIECES_PER_S, _MOST_S):
            return
        self._sent_s = now_s
        while True:
            piece, sent = self._next(self._sent, last)
            if not piece:
                return
            self._number += 1
            data = json.dumps({"texts": piece, "sent": sent}).encode()
            self._sent = None  # if its reply is lost, it is looked up whether the piece is there
            self._objects.put(f"{self._prefix}{self._number:08}", gzip.compress(data, 5, mtime=0))
            self._sent = sent

    def _resumed(self) -> dict[str, int]:
        keys = self._objects.keys(self._prefix)
        if not keys:
            return {}
        self._number = max(self._number, int(keys[-1].rpartition("-")[2]))
        found = self._objects.get(keys[-1])
        return {} if found is None else dict(_read(found.data)["sent"])

    def _next(self, before: dict[str, int], last: bool) -> tuple[dict[str, str], dict[str, int]]:
        piece, sent, size = dict[str, str](), dict(before), 0
        for file in sorted(self._folder.glob("*.log")):
            with file.open("rb") as stream:
                stream.seek(sent.get(file.stem, 0))
                data = stream.read(_MOST - size)
            if not (last and size + len(data) < _MOST):
                data = data[: data.rfind(b"\n") + 1]
            if data:
                piece[file.stem] = data.decode("utf-8", "replace")
                sent[file.stem] = sent.get(file.stem, 0) + len(data)
                size += len(data)
            if size >= _MOST:
                break
        return piece, sent


def fetch_logs(folder: Path, objects: Objects, after: str) -> Iterator[str]:
    """Add the pieces behind ``after`` to the logs of a job, and say which was added. Raises UnknownError, OSError."""
    for key in objects.keys(LOGS, after):
        found = objects.get(key)
        if found is None:
            continue
        (folder / FOLDER).mkdir(exist_ok=True)
        for machine, text in _read(found.data)["texts"].items():
            with (folder / FOLDER / f"{Path(machine).name}.log").open("a", encoding="utf-8") as file:
                file.write(text)
        yield key


def _read(data: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(gzip.decompress(data)))
    except (OSError, EOFError, ValueError) as error:
        raise UnknownError(f"a piece of the logs cannot be read: {error}") from None
