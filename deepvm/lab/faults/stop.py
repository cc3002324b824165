"""SIGSTOP: a rank that stands still, for a while (a straggler) or for ever (a hang)."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import ClassVar

from deepvm.lab.faults.fault import Fault, FaultTarget, Strike


class Stop(Fault):
    """SIGSTOP: a rank stops for ``seconds``; all others wait, and nothing may be lost."""

    ends = False
    options: ClassVar[frozenset[str]] = frozenset({"rank", "seconds"})
    seconds = 1.0

    def strike_from_outside(self, strike: Strike, victim: FaultTarget) -> None:
        """Stop it, and let it continue after a while, in which it may be taken for dead."""
        process = victim.workers()[strike.rank]
        _signal(process, signal.SIGSTOP)
        victim.later(strike.seconds, lambda: _signal(process, signal.SIGCONT))


def _signal(process: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)
