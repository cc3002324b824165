"""The machine fails, and the newest checkpoint is damaged: cut off, or with another bit."""

import re
from collections.abc import Sequence
from pathlib import Path

from deepvm.lab.faults.fault import Fault, FaultInjection, FaultTarget


class _Damaged(Fault):
    damages = True
    options = frozenset()

    def strike_from_outside(self, strike: FaultInjection, attempt: FaultTarget) -> None:
        attempt.kill_all()
        files = [path for path in newest_checkpoint(attempt.folder) if path.stat().st_size]
        if files:
            largest = max(files, key=lambda path: path.stat().st_size)
            self.damage(largest)
            attempt.broken.append(str(largest.relative_to(attempt.folder)))

    def damage(self, path: Path) -> None:
        raise NotImplementedError


class Truncation(_Damaged):
    """Half of the file is missing, as after a crash before its data reached the disk."""

    def damage(self, path: Path) -> None:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)


class BitFlip(_Damaged):
    """One bit in the middle of the file has changed, as on a disk that has lost it silently."""

    def damage(self, path: Path) -> None:
        at = path.stat().st_size // 2
        with path.open("r+b") as file:
            file.seek(at)
            old = file.read(1)[0]
            file.seek(at)
            file.write(bytes([old ^ 1]))


def newest_checkpoint(folder: Path) -> Sequence[Path]:
    """The files of the newest checkpoint of a run: that whose name has the highest number."""
    checkpoints = folder / "checkpoints"
    inner = [path for path in checkpoints.glob("[!.]*") if path.is_dir() and _number(path) < 0]
    entries = [path for top in (checkpoints, *inner) for path in top.glob("[!.]*")]
    newest = max(map(_number, entries), default=-1)
    files = []
    for path in entries:
        if newest >= 0 and _number(path) == newest:
            files += [path, *path.rglob("*")]
    return [path for path in files if path.is_file()]


def _number(path: Path) -> int:
    digits = re.search(r"\d+", path.name)
    if digits:
        return int(digits[0])
    return -1
