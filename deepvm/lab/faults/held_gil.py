"""A thread holds the interpreter lock forever: no Python code runs, nor signal handlers."""

from __future__ import annotations

import ctypes
from typing import ClassVar

from deepvm.lab.faults.fault import Fault, Moment, Strike, Worker

_FOR_EVER_S = 10**6


class HeldGil(Fault):
    """A thread holds the interpreter lock forever, in C's ``sleep`` called without releasing it."""

    moment = Moment.REDUCING
    options: ClassVar[frozenset[str]] = frozenset({"rank"})

    def strike_in_worker(self, strike: Strike, worker: Worker) -> None:
        ctypes.PyDLL(None).sleep(_FOR_EVER_S)
