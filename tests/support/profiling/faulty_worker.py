"""The real worker with a fault in one process: ``FAULT`` says ``KIND RANK``."""

from __future__ import annotations

import os
import signal
import sys
import time

from deepvm.profiling.eflops import eflops_worker

KIND, RANK = os.environ["FAULT"].split()


def fail() -> None:
    if KIND == "raise":
        raise RuntimeError("the fan has stopped\nand more")
    if KIND == "memory":
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB.")
    if KIND == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if KIND == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if KIND == "exit":
        os.write(2, b"something last\n")
        os._exit(7)
    if KIND == "hang":
        time.sleep(3600)


def main() -> None:
    if KIND == "early":
        os._exit(0)
    if KIND == "silent":
        time.sleep(3600)
    from deepvm.profiling.workload.train_step import Ranks

    original, count = Ranks.slowest, 0

    def slowest(self: Ranks, seconds: float) -> float:
        nonlocal count
        count += 1
        if count == 3 and int(sys.argv[2]) == int(RANK):
            fail()
        return original(self, seconds)

    Ranks.slowest = slowest  # type: ignore[method-assign]
    eflops_worker.main()


if __name__ == "__main__":
    main()
