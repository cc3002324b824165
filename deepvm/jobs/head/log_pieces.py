"""Logs of a remote controller as objects: pieces of files, in the order in which they grew."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from deepvm.jobs.cloud import Objects
from deepvm.jobs.head.mirror import LOGS, packed, unpacked
from deepvm.jobs.history.log_files import FOLDER

_MOST = 4_000_000
"""Bytes of a piece, before they are compressed."""
_AT_ONCE = 8
_LEAST_FREED = 1_000_000
_PIECES_PER_S, _MOST_S = 100, 30.0
"""After so many pieces they are at least 1 s apart, after twice as many 2 s, up to the most."""


class LogPieces:
    """Sends new log lines of a remote controller, from where the last process stopped."""

    def __init__(self, folder: Path, objects: Objects, head: int) -> None:
        self._folder = folder / FOLDER
        self._objects = objects
        self._prefix = f"{LOGS}{head:06}-"
        self._sent_s = float("-inf")
        self._sent: dict[str, int] | None = None
        self._freed: dict[str, int] = {}
        self._number = 0

    def send(self, *, last: bool = False) -> None:
        """Write what is new; ``last``: also a line that has no end.

        Raises UnknownError, RefusedError, OSError.

        The more pieces there are the rarer they become, so that there are never tens of thousands.
        What trainers print meanwhile is for the next time: where they print without a pause this
        would not return.
        """
        if self._sent is None:
            self._sent = self._resumed()
        now_s = time.monotonic()
        if not last and now_s - self._sent_s < min(self._number / _PIECES_PER_S, _MOST_S):
            return
        self._sent_s = now_s
        for _ in itertools.count() if last else range(_AT_ONCE):
            texts, sent, is_full = self._next(self._sent, last)
            if not texts:
                return
            self._number += 1
            piece = packed({"texts": texts, "sent": sent})
            self._sent = None  # if its reply is lost, it is looked up whether the piece is there
            self._objects.put(f"{self._prefix}{self._number:08}", piece)
            self._sent = sent
            self._free(sent)
            if not is_full and not last:
                return

    def _free(self, sent: dict[str, int]) -> None:
        """Punch out what was sent: the disk is small, and trainers may print for weeks.

        The files keep their sizes, as they may still be written to.
        """
        for machine, size in sent.items():
            if size - self._freed.get(machine, 0) >= _LEAST_FREED:
                self._freed[machine] = size
                words = ["fallocate", "--punch-hole", "--offset", "0", "--length", str(size)]
                # Where that cannot be done the disk has to be large enough
                with suppress(OSError):
                    subprocess.run(
                        [*words, self._folder / f"{machine}.log"], capture_output=True, check=False
                    )

    def _resumed(self) -> dict[str, int]:
        keys = self._objects.keys(self._prefix)
        if not keys:
            return {}
        self._number = max(self._number, int(keys[-1].rpartition("-")[2]))
        found = self._objects.get(keys[-1])
        if found is None:
            return {}
        return dict(unpacked(found.data)["sent"])

    def _next(
        self, before: dict[str, int], last: bool
    ) -> tuple[dict[str, str], dict[str, int], bool]:
        """The texts of a piece, how much of each file is sent with it, and whether more is left."""
        texts = dict[str, str]()
        sent = dict(before)
        left = _MOST
        for file in sorted(self._folder.glob("*.log")):
            with file.open("rb") as stream:
                stream.seek(sent.get(file.stem, 0))
                data = stream.read(left)
            is_full = len(data) == left
            if is_full or not last:
                data = data[: data.rfind(b"\n") + 1]
            if data:
                texts[file.stem] = data.decode("utf-8", "replace")
                sent[file.stem] = sent.get(file.stem, 0) + len(data)
                left -= len(data)
            if is_full:
                return texts, sent, True
        return texts, sent, False


def fetch_logs(folder: Path, objects: Objects, after: str) -> Iterator[str]:
    """Add the pieces behind ``after`` to the logs of a job, and say which was added.

    Raises UnknownError, OSError.
    """
    for key in objects.keys(LOGS, after):
        found = objects.get(key)
        if found is None:
            continue
        (folder / FOLDER).mkdir(exist_ok=True)
        for machine, text in unpacked(found.data)["texts"].items():
            name = f"{Path(machine).name}.log"
            with (folder / FOLDER / name).open("a", encoding="utf-8") as file:
                file.write(text)
        yield key
