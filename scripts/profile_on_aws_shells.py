"""Shell commands on several hosts at once: shown, run, always ended; see profile_on_aws.py."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from deepvm.errors import MeasurementError


def say(text: str) -> None:
    """Tell whoever looks on."""
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Step:
    """Lines for ``sh`` with ``"$host"``, each with its hosts; all run at the same time."""

    title: str
    lines: Mapping[str, Sequence[str]]
    limit_s: float
    advice: str

    def script(self) -> str:
        """The same for people to read, or to run: one block for each line."""
        blocks = []
        for line, hosts in self.lines.items():
            each = f"on each of these {len(hosts)} hosts" if len(hosts) > 1 else "on this host"
            blocks.append(
                f"# {self.title}, {each}\nfor host in {shlex.join(hosts)}; do\n    {line}\ndone\n"
            )
        return "\n".join(blocks)


class Runner:
    """Runs lines in shells and ends all of them, whatever happens."""

    def __init__(self) -> None:
        """Nothing runs yet."""
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock, self._over = threading.Lock(), False

    def step(self, step: Step) -> None:
        """Run a step on all its hosts at once.

        Raises:
            MeasurementError: names every host on which it failed, and why.
        """
        lines = {
            host: f"host={shlex.quote(host)}; {line}"
            for line, hosts in step.lines.items()
            for host in hosts
        }
        say(f"{step.title}: {len(lines)} hosts")
        with ThreadPoolExecutor(len(lines)) as pool:
            waiting = {
                host: pool.submit(self._quiet, line, step.limit_s) for host, line in lines.items()
            }
            try:
                while not all(f.done() for f in waiting.values()):
                    time.sleep(0.05)
            except BaseException:  # a signal: the threads wait for processes that end now
                self.end()
                raise
        wrong = {name: why for name, f in waiting.items() if (why := f.result())}
        if wrong:
            reasons = "\n".join(f"  {name}: {why}" for name, why in wrong.items())
            raise MeasurementError(
                f"{step.title} failed on {len(wrong)} of {len(waiting)}:\n{reasons}\n{step.advice}"
            )

    def _quiet(self, line: str, limit_s: float) -> str:
        """Run it; why it failed, "" when it did not."""
        with tempfile.TemporaryFile() as said:
            process = self._start(line, said.fileno())
            if process is None:
                return "not started"
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                self._kill(process)
                return f"not done within {limit_s:.0f} s"
            finally:
                self._running.discard(process)
            said.seek(max(0, said.seek(0, os.SEEK_END) - 1000))
            lines = said.read().decode(errors="replace").strip().splitlines()[-3:]
        return "" if code == 0 else " | ".join(lines) or f"exit code {code}"

    def loud(self, line: str, limit_s: float) -> int:
        """Run it with its messages on this terminal; returns its exit code."""
        # What is ended is the program itself, not a shell around it
        process = self._start(f"exec {line}", None)
        assert process is not None
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise MeasurementError(
                f"not done within {limit_s / 3600:.0f} h; the same command goes on"
            ) from None
        finally:  # it gets time to end what it has started, and to write down what it has measured
            self.end(grace_s=30.0)

    def _start(self, line: str, output: int | None) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._over:
                return None
            null = subprocess.DEVNULL
            process = subprocess.Popen(
                ["sh", "-c", line], stdin=null, stdout=output, stderr=output, start_new_session=True
            )
            self._running.add(process)
            return process

    def end(self, grace_s: float = 3.0) -> None:
        """End everything that runs."""
        with self._lock:
            self._over = True
            left = list(self._running)
        for process in left:
            self._signal(process, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        for process in left:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            self._kill(process)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        self._signal(process, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5.0)

    @staticmethod
    def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        with contextlib.suppress(OSError):
            if process.poll() is None:
                os.killpg(process.pid, number)
