"""Ranks started by torchrun, as in most setups: 4 to 7 s, with an agent that can be killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from deepvm.core.json_types import JsonDict
from deepvm.io.processes import descendants, follow_parent, is_alive, send_signal
from deepvm.lab.records import events_of, rows_in
from deepvm.lab.running.launcher import Attempt, Order
from deepvm.lab.running.supervisor import RankLauncher

_PAUSE_S = 0.01
_GONE_S = 10.0
# Where workers read the agent's pid: a late one would only see the process that adopted it
_AGENT = "LAB_AGENT"


class Torchrun(RankLauncher):
    """One agent for each attempt, without restarts of its own."""

    def start(self, order: Path, world: int, port: int) -> Attempt:
        parent = os.getpid()
        words = ["sh", "-c", f'export {_AGENT}=$$; exec "$@"', "sh"]
        words += [sys.executable, "-m", "torch.distributed.run", "--max-restarts=0"]
        words += [f"--nproc-per-node={world}", "--master-addr=127.0.0.1", f"--master-port={port}"]
        words += ["-m", "deepvm.lab.launchers.torchrun", str(order)]
        with (order.parent / "workers.log").open("ab") as log:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
                start_new_session=True,
                preexec_fn=lambda: follow_parent(parent, signal.SIGKILL),
            )
        return _Launched(process, order.parent, Order.read(order).attempt, world)


class _Launched(Attempt):
    """torchrun's workers lead their own sessions, and outlive it unless they are ordered to end."""

    def __init__(
        self, process: subprocess.Popen[bytes], folder: Path, attempt: int, world: int
    ) -> None:
        self._process = process
        self._folder = folder
        self._attempt = attempt
        self._world = world
        self._known: set[int] = set()

    def _events(self, rank: int) -> list[JsonDict]:
        return rows_in(self._folder, [events_of(rank)], self._attempt)

    def exits(self) -> Sequence[int | None]:
        """As the ranks recorded, else as the agent: torchrun returns 1 in any case."""
        code = self._process.poll()
        if code is None:
            return [None] * self._world
        return [
            0 if any(row["event"] == "ended" for row in self._events(r)) else code or 1
            for r in range(self._world)
        ]

    def workers(self) -> Sequence[int]:
        started = [
            [row["pid"] for row in self._events(rank) if row["event"] == "started"]
            for rank in range(self._world)
        ]
        return [pids[-1] for pids in started if pids]

    def agent(self) -> int | None:
        return self._process.pid

    def _alive(self) -> list[int]:
        return [pid for pid in {*self._known, *self.workers()} if is_alive(pid)]

    def kill_all(self) -> None:
        self._known |= descendants(self._process.pid)
        send_signal(signal.SIGKILL, [self._process.pid, *self._alive()])
        until_s = time.monotonic() + _GONE_S
        self._process.wait(_GONE_S)
        while self._alive() and time.monotonic() < until_s:
            time.sleep(_PAUSE_S)


if __name__ == "__main__":
    # Else two attempts would run side by side
    follow_parent(int(os.environ[_AGENT]), signal.SIGKILL)
    from deepvm.lab.training import trainer

    trainer.main(sys.argv[1])
    os._exit(0)
