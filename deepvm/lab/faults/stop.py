"""SIGSTOP: a rank that stands still, for a while (a straggler) or for ever (a hang)."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import ClassVar

from deepvm.lab.faults.fault import Fault, Strike, Victim


class Stop(Fault):
    """SIGSTOP: a rank stands still, and goes on after ``seconds``; all others wait for it, and nothing must be lost."""

    ends = False
    options: ClassVar[frozenset[str]] = frozenset({"rank", "seconds"})
    seconds = 1.0

    def strike_from_outside(self, strike: Strike, victim: Victim) -> None:
        """Stop it, wait, and let it go on."""
        process = victim.workers()[strike.rank]
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGSTOP)
            time.sleep(strike.seconds)
            os.kill(process, signal.SIGCONT)
