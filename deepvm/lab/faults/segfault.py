"""A rank dies of a segmentation fault, as of a bug in an extension or a driver."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from typing import ClassVar

from deepvm.lab.faults.fault import Fault, Moment, Strike, Worker


class Segfault(Fault):
    """A rank reads from address 0, in C."""

    moment = Moment.REDUCING
    options: ClassVar[frozenset[str]] = frozenset({"rank"})

    def strike_in_worker(self, strike: Strike, worker: Worker) -> None:
        """Die.

        Torch's or Python's own handler of the signal, if any, is put aside, and no core is dumped.
        """
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        ctypes.string_at(0)
        os._exit(1)
