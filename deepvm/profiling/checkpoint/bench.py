"""All methods interleaved in one training loop: medians and ratios to ``torch.save`` and fsync."""

from __future__ import annotations

import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

import torch

from deepvm.core.spelling import refuse_unknown
from deepvm.core.units import refuse_outside
from deepvm.documents.build import document_of
from deepvm.errors import CheckpointError, RequestError
from deepvm.profiling.checkpoint.methods import (
    METHODS,
    MODELS,
    REFERENCE,
    Method,
    Times,
    Training,
    available,
)
from deepvm.profiling.checkpoint.node_process import machine_of

STEPS = 4  # of training after each save, in which background work can end
WARM_UPS = 3
"""Uncounted saves per method: memory nodes have so many slots, folders so many files to reuse."""
_VERSIONS = 4


@dataclass(frozen=True)
class Figures:
    """Medians of one method, in seconds and over the reference's.

    Attributes:
        stall_s: training stalls. durable_s: until the method's guarantee holds, on an otherwise
            idle machine.
        training_s: the same while training continues. extra_s: how much longer a loop takes with a
            checkpoint than without; noise can make it negative. extra_ratio: None unless the
            reference's ``extra_s`` is above 0.
    """

    stall_s: float
    durable_s: float
    training_s: float
    extra_s: float
    stall_ratio: float
    durable_ratio: float
    training_ratio: float
    extra_ratio: float | None


@dataclass(frozen=True)
class Bench:
    """The result; ``bytes``: of the state; ``step_s``: median step without checkpoints."""

    model: str
    bytes: int
    reps: int
    steps: int
    step_s: float
    machine: Mapping[str, Any]
    methods: Mapping[str, Figures]

    def document(self) -> dict[str, object]:
        """``deepvm.ckpt-bench/1``."""
        return document_of("profiling.Bench", self)


@dataclass(frozen=True)
class _Sample:
    """One round: seconds of loops without and with a save, and of saves in a loop and alone.

    Saves of a blocking method count as both.
    """

    bare_s: float
    loop_s: float
    in_loop: tuple[Times, ...]
    alone: tuple[Times, ...]


def run_bench(
    model: str,
    reps: int = 5,
    *,
    methods: Sequence[str] = (),
    folder: Path | None = None,
    steps: int = STEPS,
    say: Callable[[str], None] = lambda line: None,
) -> Bench:
    """Measure methods of :data:`~.methods.METHODS` (default: all available) and the reference.

    In each of ``reps`` rounds every method saves once with ``steps`` of training after it, and once
    (twice if it does not block) alone. Temporary files go to ``folder``, by default the system's.

    Raises:
        RequestError: an argument cannot be used.
        CheckpointError: a method failed, or there is no room for its files.
    """
    refuse_unknown("model", model, MODELS, ", ")
    refuse_outside("reps", reps, 1)
    refuse_outside("steps", steps, 1)
    possible = available()
    for name in methods:
        refuse_unknown("methods", name, possible, ", ")
    names = [m for m in possible if not methods or m in methods or m == REFERENCE]
    if folder is not None and not folder.is_dir():
        raise RequestError("dir", str(folder), "a folder that exists")
    begun = datetime.now(timezone.utc)
    training = Training(MODELS[model])
    size = training.state_bytes()
    needed = size * _VERSIONS * len(names)
    where = folder or Path(tempfile.gettempdir())
    if (free := shutil.disk_usage(where).free) < needed:
        raise CheckpointError(
            f"{where}: {needed / 1e9:.1f} GB of free space are needed, {free / 1e9:.1f} GB are"
            " there; choose another folder with --dir, or fewer methods with --methods"
        )
    with ExitStack() as stack:
        work = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="deepvm-bench-", dir=folder))
        )
        ready: dict[str, Method] = {}
        for name in names:
            own = work / name
            own.mkdir()
            ready[name] = METHODS[name](training, own, stack)
        # DCP warns at every save that it is not distributed, from its own thread as well.
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        samples = _measure(training, ready, reps, steps, say)
        of_torch = {"threads": torch.get_num_threads(), "torch": str(torch.__version__)}
        machine = machine_of(work, begun) | of_torch
    return Bench(
        model=model,
        bytes=size,
        reps=reps,
        steps=steps,
        step_s=median(s.bare_s for own in samples.values() for s in own) / steps,
        machine=machine,
        methods=_figures(samples),
    )


def _measure(
    training: Training,
    ready: Mapping[str, Method],
    reps: int,
    steps: int,
    say: Callable[[str], None],
) -> dict[str, list[_Sample]]:
    samples: dict[str, list[_Sample]] = {name: [] for name in ready}
    names = list(ready)
    for rep in range(1 - WARM_UPS, reps + 1):
        # Another method is first each time, so that none gains by its place.
        order = names[rep % len(names) :] + names[: rep % len(names)]
        looped = {name: _in_loop(training, ready[name], steps if rep > 0 else 1) for name in order}
        for name in order:
            sample = _sample(training, ready[name], *looped[name])
            stall_s, durable_s, training_s, _ = _seconds([sample])
            say(
                f"{f'{rep}/{reps}' if rep > 0 else 'warm-up':>8}  {name:<22}"
                f"stall {stall_s * 1e3:8.1f} ms  safe after {durable_s * 1e3:8.1f} ms, "
                f"in training {training_s * 1e3:8.1f} ms  "
                f"loop {sample.loop_s:.3f} s, without {sample.bare_s:.3f} s"
            )
            if rep > 0:
                samples[name].append(sample)
    return samples


def _in_loop(training: Training, method: Method, steps: int) -> tuple[Times, float, float]:
    # Right before the loop with a checkpoint: the load of the machine changes slowly.
    bare_s = training.run(steps)
    start = time.perf_counter()
    method.save()
    training.run(steps)
    loop_s = time.perf_counter() - start
    return method.finish(), bare_s, loop_s


def _sample(
    training: Training, method: Method, in_loop: Times, bare_s: float, loop_s: float
) -> _Sample:
    first = _alone(training, method)
    if method.blocks:
        return _Sample(bare_s, loop_s, in_loop=(in_loop, first), alone=(in_loop, first))
    # Two here as well, so that no method has fewer samples than the reference.
    return _Sample(bare_s, loop_s, in_loop=(in_loop,), alone=(first, _alone(training, method)))


def _alone(training: Training, method: Method) -> Times:
    training.step()  # an unchanged state would not be saved, or be found in the processor's caches
    method.save()
    return method.finish()


def _figures(samples: Mapping[str, Sequence[_Sample]]) -> dict[str, Figures]:
    seconds = {name: _seconds(own) for name, own in samples.items()}
    *reference, extra = seconds[REFERENCE]
    found = {}
    for name, own in seconds.items():
        stall, durable, training = (a / b for a, b in zip(own, reference, strict=False))
        found[name] = Figures(
            *own, stall, durable, training, own[-1] / extra if extra > 0 else None
        )
    return found


def _seconds(own: Sequence[_Sample]) -> tuple[float, float, float, float]:
    """What :class:`Figures` begins with."""
    stall_s = median(t.stall_s for s in own for t in s.in_loop)
    durable_s = median(t.durable_s for s in own for t in s.alone)
    training_s = median(t.durable_s for s in own for t in s.in_loop)
    return stall_s, durable_s, training_s, median(s.loop_s - s.bare_s for s in own)
