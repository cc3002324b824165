"""A rank leaves out a collective that all others wait in."""

from __future__ import annotations

import time
from typing import ClassVar

from deepvm.lab.faults.fault import Fault, Moment, Strike, Worker

_FOR_EVER_S = 10**6


class HungCollective(Fault):
    """A rank does not join a gradient exchange; its other threads keep connections open."""

    moment = Moment.REDUCING
    options: ClassVar[frozenset[str]] = frozenset({"rank"})

    def strike_in_worker(self, strike: Strike, worker: Worker) -> None:
        time.sleep(_FOR_EVER_S)
