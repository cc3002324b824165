"""Faults that a rank meets in its own process: it exits, crashes, raises or hangs."""

import ctypes
import os
import resource
import signal
import time

from deepvm.lab.faults.fault import Disk, Fault, FaultInjection, Moment

CODE = 137
_FOR_EVER_S = 10**6


class Exit(Fault):
    """Exit code 137, as of a process that was killed, without any clean-up."""

    moment = Moment.BOUNDARY

    def strike_in_worker(self, strike: FaultInjection, disk: Disk) -> None:
        os._exit(CODE)


class Segfault(Fault):
    """A rank reads from address 0, in C."""

    moment = Moment.REDUCING

    def strike_in_worker(self, strike: FaultInjection, disk: Disk) -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        ctypes.string_at(0)
        os._exit(1)


class HeldGil(Fault):
    """A thread holds the interpreter lock forever, in C's ``sleep`` called without releasing it."""

    moment = Moment.REDUCING

    def strike_in_worker(self, strike: FaultInjection, disk: Disk) -> None:
        ctypes.PyDLL(None).sleep(_FOR_EVER_S)


class HungCollective(Fault):
    """A rank does not join a gradient exchange; its other threads keep connections open."""

    moment = Moment.REDUCING

    def strike_in_worker(self, strike: FaultInjection, disk: Disk) -> None:
        time.sleep(_FOR_EVER_S)


class DamagedSampleError(Exception):
    """What the loader raises."""


class LoaderError(Fault):
    """A rank's samples cannot be loaded: the error ends its process."""

    moment = Moment.LOADING

    def strike_in_worker(self, strike: FaultInjection, disk: Disk) -> None:
        raise DamagedSampleError(f"a sample of step {strike.step} cannot be read")
