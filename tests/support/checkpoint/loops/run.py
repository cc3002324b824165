"""One attempt at a training loop, in a process that may be killed at a chosen place: what a loop's
shape is given.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from deepvm.checkpoint import Checkpointer, ResumableLoader
from deepvm.checkpoint.training.hooks import Hook, is_nested_step

Mode = Literal["steps", "hooks"]
EVERY = 3
PAUSE_S = 0.0007
"""At each place where an attempt may be killed, so that the background has time to write."""


@dataclass(frozen=True)
class Kill:
    """The process is killed ``delay_s`` after the given place in this step: 0 is the top of the
    iteration.
    """

    step: int
    place: int
    delay_s: float


def kill_now() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Run:
    """An attempt. Without a checkpoint folder it is the undisturbed run.

    Attributes:
        mode: ``steps``: the loop iterates over ``ck.steps``; ``hooks``: over the steps that the
            optimizer has done.
        total: steps of the whole training. step: the one that the loop is at.
        checkpointer: None in the undisturbed run.
    """

    def __init__(
        self, mode: Mode, total: int, output: Path, checkpoints: Path | None, kill: Kill | None
    ) -> None:
        self.mode, self.total, self.step = mode, total, 0
        self.checkpointer: Checkpointer | None = None
        self.start = 0
        self._output, self._checkpoints, self._kill = output, checkpoints, kill
        self._undisturbed_version = self._place = 0
        self._compared: dict[str, Any] = {}
        self._record = os.open(output.with_suffix(".record"), os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        self._log = os.open(output.with_suffix(".warnings"), os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        register_optimizer_step_pre_hook(Hook(self.place, step=True))
        register_optimizer_step_post_hook(Hook(self.place, step=True))
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: self._write(self._log, record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("deepvm").addHandler(handler)

    def _write(self, file: int, line: str) -> None:
        os.write(file, f"{line}\n".encode())

    def checkpoint(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        extra: Mapping[str, Any] | None = None,
        *,
        restore: bool = False,
        **compared: Any,
    ) -> None:
        """Make the checkpointer, and remember what is compared at the end: these, and what else is
        given by name.

        With hooks the state is restored here; with ``steps`` only if ``restore`` is set, otherwise
        the loop does it.
        """
        self._compared = {"model": model, "optimizer": optimizer, **(extra or {}), **compared}
        if self._checkpoints is None:
            if self.mode == "hooks":
                optimizer.register_step_post_hook(lambda *_: self._count(optimizer))
            return
        self.checkpointer = Checkpointer(
            model=model,
            optimizer=optimizer,
            extra=extra,
            tiers=self._checkpoints,
            every=EVERY,
            job="loop",
        )
        if restore or self.mode == "hooks":
            self._started(self.checkpointer.restore_latest())

    def _started(self, version: int) -> None:
        self.start = version
        self._output.with_suffix(".start").write_text(str(version))

    def _count(self, optimizer: torch.optim.Optimizer) -> None:
        self._undisturbed_version += not is_nested_step(optimizer)

    @property
    def version(self) -> int:
        """Iterations completed (``steps``), or steps of the optimizer (``hooks``)."""
        return self._undisturbed_version if self.checkpointer is None else self.checkpointer.version

    def iterations(self, total: int | None = None) -> Iterator[int]:
        """The step numbers of a loop, up to ``total``."""
        for step in self._numbers(self.total if total is None else total):
            self.step, self._place = step, -1
            if self.checkpointer is not None and not self._output.with_suffix(".start").exists():
                self._started(step)
            self.place()
            yield step
            self.place()

    def _numbers(self, total: int) -> Iterator[int]:
        if self.checkpointer is not None and self.mode == "steps":
            return self.checkpointer.steps(total)
        return self._count_up(total)

    def _count_up(self, total: int) -> Iterator[int]:
        while self.version < total:
            yield self.version
            self._undisturbed_version += self.mode == "steps"

    def loss(self, value: torch.Tensor) -> torch.Tensor:
        """Record the loss; after the forward and inside backward the process may be killed."""
        self._write(self._record, f"{self.step} {float(value.detach()).hex()}")
        self.place()
        value.register_hook(lambda gradient: self.place())
        return value

    def note(self, value: float) -> None:
        """Record another number that the loop has drawn or computed."""
        self._write(self._record, f"{self.step} {float(value).hex()}")

    def place(self) -> None:
        """The process may be killed here."""
        self._place += 1
        if self._checkpoints is None:
            return
        kill = self._kill
        if kill is not None and (self.step, self._place) >= (kill.step, kill.place):
            if not kill.delay_s:
                kill_now()
            self._kill = None
            timer = threading.Timer(kill.delay_s, kill_now)
            timer.daemon = True
            timer.start()
        time.sleep(PAUSE_S)

    def announce(self) -> None:
        """Before a change by hand, as the guide advises."""
        if self.checkpointer is not None:
            self.checkpointer.wait()

    def compare(self, **objects: Any) -> None:
        """Compare these at the end, too."""
        self._compared |= objects

    def finish(self) -> None:
        """The loop is over: close the checkpointer, and write a digest of each object and each
        random state.
        """
        if self.checkpointer is not None:
            self.checkpointer.close()
        random_states = {
            "torch's random state": torch.get_rng_state(),
            "numpy's random state": numpy.random.get_state()[1:],
            "python's random state": random.getstate(),
        }
        digests = {
            name: digest(value) for name, value in {**self._compared, **random_states}.items()
        }
        self._output.with_suffix(".digests").write_text(json.dumps(digests))


def digest(value: Any) -> str:
    """A short text that differs if any bit of an object's state does."""
    result = hashlib.sha256()
    for piece in _pieces(value):
        result.update(piece)
    return result.hexdigest()[:16]


def _pieces(value: Any) -> Iterator[bytes]:
    # Its records of random states depend on where a pass was resumed
    if isinstance(value, ResumableLoader):
        yield f"{value.epoch} {value.batch}".encode()
    elif isinstance(value, torch.Tensor):
        yield f"{tuple(value.shape)} {value.dtype}".encode()
        yield (
            value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            if value.numel()
            else b""
        )
    elif isinstance(value, numpy.ndarray):
        yield f"{value.shape} {value.dtype}".encode() + value.tobytes()
    elif hasattr(value, "state_dict"):
        yield from _pieces(value.state_dict())
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield str(key).encode()
            yield from _pieces(value[key])
    elif isinstance(value, (list, tuple, deque)):
        yield str(len(value)).encode()
        for item in value:
            yield from _pieces(item)
    else:
        yield repr(value).encode()


def records(path: Path) -> list[tuple[int, str]]:
    """(step, number) of all whole lines that a run has recorded."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    pairs = [line.split() for line in lines if line.endswith("\n")]
    return [(int(step), number) for step, number in pairs]


def contradictions(whole: list[tuple[int, str]], part: list[tuple[int, str]]) -> list[int]:
    """Steps at which a run recorded other numbers than the undisturbed one.

    Its last step may be cut short.
    """
    expected: dict[int, list[str]] = {}
    for step, number in whole:
        expected.setdefault(step, []).append(number)
    last = part[-1][0] if part else None
    seen = Counter(step for step, _ in part)
    position: Counter[int] = Counter()
    wrong = {
        step
        for step, count in seen.items()
        if step != last and count != len(expected.get(step, ()))
    }
    for step, number in part:
        known = expected.get(step, [])
        if position[step] >= len(known) or known[position[step]] != number:
            wrong.add(step)
        position[step] += 1
    return sorted(wrong)
