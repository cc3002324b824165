"""Pushes over MPI: rank 0 receives, takes the time, and can tell which sender died (ULFM).

Messages go between rank 0 and one sender only, so that only a dead sender's own messages fail.
"""

import json
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, islice
from typing import Any

from deepvm.core.json_types import JsonObject
from deepvm.profiling.hosts.machine import boot_id
from deepvm.profiling.hosts.watchdog import emit
from deepvm.profiling.saturation.transfer_tcp import Arrivals, shares

PIECE = 2**24  # bytes of one message; two of each sender are under way
_READY = 1
_GO = 2
_DATA = 3
# Between two looks at MPI while bytes flow: less than what a socket's buffer holds at 100 Gbit/s
_PAUSE_S = 50e-6
_IDLE_PAUSE_S = 0.002
_END = -1
_FINALIZE_S = 5.0
_GRACE_S = 2.0


class Receiver:
    """Rank 0."""

    def __init__(self, comm: Any, mpi: Any, first: JsonObject) -> None:
        self._comm = comm
        self._mpi = mpi
        self._ranks = {name: place + 1 for place, name in enumerate(first["senders"])}
        self._stall_s = float(first["stall_s"])
        self._memory: dict[str, list[memoryview]] = {}
        self.boots = [boot_id()]

    def gather(self, limit_s: float) -> Mapping[str, str]:
        """Wait for a message of every sender; returns why some have sent none."""
        deadline = time.monotonic() + limit_s
        lost: dict[str, str] = {}
        waiting = {
            name: self._comm.irecv(source=rank, tag=_READY) for name, rank in self._ranks.items()
        }
        while waiting:
            for name, request in list(waiting.items()):
                there, boot = self._guarded(name, lost, request.test) or (False, "")
                if there:
                    self.boots.append(boot)
                    self._memory[name] = [memoryview(bytearray(PIECE)) for _ in range(2)]
                if there or name in lost:
                    del waiting[name]
            if time.monotonic() > deadline:
                return lost | dict.fromkeys(waiting, f"it was not there in {limit_s:g} s")
            time.sleep(_IDLE_PAUSE_S)
        return lost

    def push(self, names: Sequence[str], size: int, limit_s: float) -> JsonObject:
        inward = {
            name: _Inward(self._comm, self._ranks[name], part, self._memory[name])
            for name, part in zip(names, shares(size, len(names)), strict=True)
        }
        arrivals = Arrivals(names, self._stall_s, limit_s)
        for name, one in inward.items():
            self._guarded(name, arrivals.lost, one.begin)
        end = math.inf
        while (waiting := arrivals.awaited()) and time.monotonic() < end:
            moved = False
            for name in waiting:
                if self._guarded(name, arrivals.lost, inward[name].step):
                    moved = True
                    arrivals.hear(name, done=not inward[name].requests)
            arrivals.overdue()
            # The push means nothing any more; others that die now are lost as well
            if arrivals.lost:
                end = min(end, time.monotonic() + _GRACE_S)
            if not moved:
                time.sleep(_PAUSE_S)
        return arrivals.result()

    def _guarded(self, name: str, lost: dict[str, str], step: Any) -> Any:
        try:
            return step()
        except self._mpi.Exception as error:
            lost[name] = error.Get_error_string()
            return None

    def close(self) -> None:
        """Let the senders end; those that are dead do not answer."""
        for name, rank in self._ranks.items():
            self._guarded(name, {}, lambda rank=rank: self._comm.isend(_END, rank, _GO))


class _Inward:
    def __init__(self, comm: Any, rank: int, size: int, memory: Sequence[memoryview]) -> None:
        self._comm = comm
        self._rank = rank
        self._size = size
        self._sizes = iter(_pieces(size))
        self._memory = cycle(memory)
        self.requests: deque[Any] = deque()  # of messages under way; none when all have arrived

    def begin(self) -> None:
        self._post(2)
        self._comm.send(self._size, self._rank, _GO)

    def _post(self, count: int) -> None:
        for length in islice(self._sizes, count):
            self.requests.append(self._comm.Irecv(next(self._memory)[:length], self._rank, _DATA))

    def step(self) -> bool:
        if not self.requests[0].Test():
            return False
        self.requests.popleft()
        self._post(1)
        return True


def _pieces(size: int) -> list[int]:
    return [min(PIECE, size - offset) for offset in range(0, size, PIECE)]


def receive(comm: Any, mpi: Any, lines: Iterable[str]) -> None:
    """Rank 0: carry out orders until there are no more."""
    orders = map(json.loads, lines)
    first = next(orders)
    receiver = Receiver(comm, mpi, first)
    lost = receiver.gather(first["start_s"])
    emit("gathered", lost=lost, boots=receiver.boots)
    for order in orders:
        emit("pushed", **receiver.push(order["push"], order["bytes"], order["limit_s"]))
    receiver.close()


def send(comm: Any, idle_s: float) -> None:
    """Other ranks: push until rank 0 announces the end or falls silent."""
    piece = memoryview(os.urandom(PIECE))
    comm.send(boot_id(), 0, _READY)
    while True:
        size = _wait(comm.irecv(source=0, tag=_GO), idle_s)
        if size == _END:
            return
        requests: deque[Any] = deque()
        for length in _pieces(size):
            requests.append(comm.Isend(piece[:length], 0, _DATA))
            if len(requests) == 2:
                _wait(requests.popleft(), idle_s, pause_s=_PAUSE_S)
        for request in requests:
            _wait(request, idle_s, pause_s=_PAUSE_S)


def _wait(request: Any, limit_s: float, *, pause_s: float = _IDLE_PAUSE_S) -> Any:
    # MPI's own wait would keep a processor busy that several ranks may share.
    deadline = time.monotonic() + limit_s
    while True:
        done, found = request.test()
        if done:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(pause_s)


def main() -> None:
    """``mpirun ... -m deepvm.profiling.saturation.transfer_mpi SECONDS``: the idle timeout."""
    from mpi4py import MPI

    comm: Any = MPI.COMM_WORLD.Dup()
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    try:
        if comm.Get_rank():
            send(comm, float(sys.argv[1]))
        else:
            with open(0, encoding="utf-8", closefd=False) as lines:
                receive(comm, MPI, lines)
    except (MPI.Exception, TimeoutError):
        os._exit(1)
    # MPI may wait for a dead rank for ever; all results have been sent.
    end = threading.Timer(_FINALIZE_S, os._exit, [0])
    end.daemon = True
    end.start()
    MPI.Finalize()


if __name__ == "__main__":
    main()
