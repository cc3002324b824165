"""The machine fails, and the newest checkpoint is damaged: cut off, or with another bit."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from deepvm.lab.faults.fault import Fault, FaultTarget, Strike


class _Damaged(Fault):
    damages = True

    def strike_from_outside(self, strike: Strike, victim: FaultTarget) -> None:
        """Kill all processes, then damage the largest file of the newest checkpoint."""
        victim.kill_all()
        found = [path for path in newest_checkpoint(victim.folder) if path.stat().st_size]
        if found:
            largest = max(found, key=lambda path: path.stat().st_size)
            self.damage(largest)
            victim.broken.append(str(largest.relative_to(victim.folder)))

    @abstractmethod
    def damage(self, path: Path) -> None:
        """Change a file."""


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
    entries = [(number, path) for path in _entries(folder) if (number := _number(path)) is not None]
    if not entries:
        return []
    highest = max(number for number, _ in entries)
    found: list[Path] = []
    for number, path in entries:
        if number == highest:
            found += [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
    return found


def _entries(folder: Path) -> list[Path]:
    checkpoints = folder / "checkpoints"
    inner = [path for path in checkpoints.glob("*") if path.is_dir() and _number(path) is None]
    return [
        path
        for place in (checkpoints, *inner)
        for path in place.glob("*")
        if not path.name.startswith(".")
    ]


def _number(path: Path) -> int | None:
    digits = "".join(c if c.isdigit() else " " for c in path.name).split()
    return int(digits[0]) if digits else None
