"""A data loader raises, as at a damaged file."""

from __future__ import annotations

from typing import ClassVar

from deepvm.lab.faults.fault import Fault, Moment, Strike, Worker


class DamagedSampleError(Exception):
    """What the loader raises."""


class LoaderError(Fault):
    """A rank's samples cannot be loaded: the error ends its process."""

    moment = Moment.LOADING
    options: ClassVar[frozenset[str]] = frozenset({"rank"})

    def strike_in_worker(self, strike: Strike, worker: Worker) -> None:
        raise DamagedSampleError(f"a sample of step {strike.step} cannot be read")
