"""A rank ends itself at a step's boundary: the failure model of ECRL (4.5)."""

from __future__ import annotations

import os
from typing import ClassVar

from deepvm.lab.faults.fault import Fault, Moment, Strike, Worker

CODE = 137


class Exit(Fault):
    """Exit code 137, as of a process that was killed, without any clean-up."""

    moment = Moment.BOUNDARY
    options: ClassVar[frozenset[str]] = frozenset({"rank"})

    def strike_in_worker(self, strike: Strike, worker: Worker) -> None:
        os._exit(CODE)
