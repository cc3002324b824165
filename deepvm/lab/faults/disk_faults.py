"""Disks that fail now and then, are full, or slow."""

from __future__ import annotations

from typing import ClassVar

from deepvm.lab.faults.disk import Faults
from deepvm.lab.faults.fault import DiskFault, FaultSchedule


class FailingDisk(DiskFault):
    """A share of writes and fsyncs fails with EIO, the first for sure: data may be missing."""

    options: ClassVar[frozenset[str]] = frozenset({"share", "seed"})

    def disk(self, when: FaultSchedule, seed: int) -> Faults:
        return Faults(eio=when.share or 0.0, seed=_mixed(when, seed))


class FullDisk(DiskFault):
    """A share of all writes, the first one for sure, finds no room left (ENOSPC)."""

    options: ClassVar[frozenset[str]] = frozenset({"share", "seed"})

    def disk(self, when: FaultSchedule, seed: int) -> Faults:
        return Faults(enospc=when.share or 0.0, seed=_mixed(when, seed))


class SlowDisk(DiskFault):
    """The disk takes so many MB in a second."""

    options: ClassVar[frozenset[str]] = frozenset({"mbps"})

    def disk(self, when: FaultSchedule, seed: int) -> Faults:
        return Faults(mbps=when.mbps, seed=seed)


def _mixed(when: FaultSchedule, seed: int) -> int:
    """Other draws for another seed of the matrix."""
    return seed + 1_000_003 * when.seed
