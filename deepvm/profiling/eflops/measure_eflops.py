"""eFLOPS: the operations that a machine does each second while it trains (DeepVM III-B2).

eFLOPS = 3 x operations of the forward pass x images/s: the backward pass has twice as many as the
forward pass. The number belongs to its workload: one machine has several times as many eFLOPS with
one model as with another.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from deepvm.core.units import counted, refuse_outside
from deepvm.documents.build import document_of
from deepvm.errors import MissingExtraError, RequestError
from deepvm.io.host_info import cores
from deepvm.profiling.eflops.eflops_worker import Task, run_workers
from deepvm.profiling.hosts.coordinator import Coordinator
from deepvm.profiling.hosts.launcher import Host, Launcher
from deepvm.profiling.hosts.machine import Machine
from deepvm.profiling.hosts.watchdog import agent, emit
from deepvm.profiling.workload.spec import BATCH, RESOLUTION, Workload
from deepvm.profiling.workload.windows import Window, spread

MODULE = "deepvm.profiling.eflops.measure_eflops"
PASSES = 3
"""Training over forward pass: gradients of inputs and of weights take as many operations each."""
LEAST_WINDOWS = 3  # two windows show that one is off, but not which
WIDE_SPREAD = 0.10
WINDOWS = 5
SECONDS = 2.0
TIMEOUT_S = 600.0
_HOST_S = 1980.0  # for one model on a slow host, in addition to its windows


@dataclass(frozen=True)
class Eflops:
    """A measurement.

    ``forward_flops``: operations of the forward pass for one image, ``steps``: of each window.

    ``data`` is ``synthetic``, ``cifar10`` or ``idx``; ``steady``: the speed had settled after the
    warm-up.
    """

    workload: Workload
    machine: Machine
    forward_flops: int
    device: str
    processes: int
    threads: int
    data: str
    steps: int
    warm_up: Sequence[Window]
    windows: Sequence[Window]
    steady: bool

    @property
    def images_per_s(self) -> float:
        """Median over the windows, all GPUs or processes together."""
        return median(w.images_per_s for w in self.windows)

    @property
    def eflops(self) -> float:
        """Operations a second in training."""
        return PASSES * self.forward_flops * self.images_per_s

    @property
    def spread(self) -> float:
        """(fastest - slowest) / median of the windows."""
        return spread(self.windows)

    @property
    def warnings(self) -> Iterator[str]:
        """Why the machine may be faster or slower than this, each with the next step."""
        if not self.steady:
            yield (
                f"the speed still changed after {len(self.warm_up)} windows of warm-up; "
                "end what else runs here, or take longer windows with --seconds"
            )
        if self.spread > WIDE_SPREAD:
            yield (
                f"the windows differ by {self.spread:.0%}; end what else runs here, or measure more"
                " with --windows"
            )
        gpus = len(self.machine["gpus"])
        if self.device == "cuda" and self.processes < gpus:
            yield f"{self.processes} of {gpus} GPUs were measured; leave --processes out to use all"

    def document(self) -> dict[str, Any]:
        """``deepvm.eflops/1``."""
        return document_of("profiling.Eflops", self)


def measure_eflops(
    model: str,
    batch: int = BATCH,
    resolution: int = RESOLUTION,
    windows: int = WINDOWS,
    device: str = "auto",
    dtype: str = "float32",
    optimizer: str = "adam",
    *,
    processes: int | None = None,
    data: Path | None = None,
    seconds: float = SECONDS,
    timeout_s: float = TIMEOUT_S,
    say: Callable[[str], None] = lambda line: None,
) -> Eflops:
    """Train on this machine and time it, in processes whose crash or hang spares the caller.

    ``model``, ``batch``, ``resolution``, ``dtype`` and ``optimizer`` are those of a
    :class:`~deepvm.profiling.workload.spec.Workload`. ``device`` is ``cpu``, ``cuda``, or ``auto``
    for GPUs if there are any; one process trains on each GPU, or one on the CPU, unless
    ``processes`` is given. ``data`` is a folder for
    :func:`~deepvm.profiling.workload.images.read_images`, without it images are random. ``windows``
    count after the warm-up, each of at least ``seconds``; after ``timeout_s`` of silence beyond
    that the processes are ended. ``say`` receives progress lines.

    Raises:
        RequestError: an argument cannot be used, or a batch does not fit into the memory.
        MissingExtraError: torch is not installed.
        DataError: the images cannot be read.
        MeasurementError: a process failed or fell silent.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("", "torch", "train")
    check_numbers(batch, resolution, windows, seconds, timeout_s)
    device, count = _devices(device, processes)
    task = Task(
        workload=Workload(model, resolution, batch, dtype, optimizer),
        device=device,
        processes=count,
        threads=max(1, cores() // count),
        windows=windows,
        seconds=seconds,
        timeout_s=timeout_s,
        data=str(data.absolute()) if data else "",
        modules=os.getcwd() if ":" in model else "",
    )
    threads = counted(task.threads, "thread")
    where = f"{threads} of the CPU"
    if device == "cuda":
        where = counted(count, "GPU")
    elif count > 1:
        where = f"{count} processes of {threads} each"
    say(f"{model}: {batch} images of {resolution} x {resolution}, {dtype}, {optimizer}, on {where}")
    found = run_workers(task, lambda line: say(f"{model}: {line}"))
    found |= {name: [Window(**w) for w in found[name]] for name in ("warm_up", "windows")}
    return Eflops(task.workload, device=device, processes=count, threads=task.threads, **found)


def check_numbers(
    batch: int, resolution: int, windows: int, seconds: float, timeout_s: float = TIMEOUT_S
) -> None:
    """Raise a RequestError for numbers that :func:`measure_eflops` accepts on no machine."""
    refuse_outside("batch", batch, 2, 65536, why="; batch normalisation needs two images")
    refuse_outside("resolution", resolution, 32, 2048)
    refuse_outside("windows", windows, LEAST_WINDOWS, 1000)
    refuse_outside("seconds", seconds, 0.001, 600, what="seconds")
    refuse_outside("timeout", timeout_s, 1, 86400, what="seconds")


def _devices(device: str, processes: int | None) -> tuple[str, int]:
    """The device, and how many processes train on it."""
    gpus = 0
    if device != "cpu":
        import torch

        gpus = torch.cuda.device_count()
        if device == "cuda" and not gpus:
            raise RequestError(
                "device", device, f"cpu: torch {torch.__version__} sees no NVIDIA GPU here"
            )
    most = gpus or cores()
    if processes is not None:
        what = "GPUs that torch sees" if gpus else "cores that this process may use"
        refuse_outside("processes", processes, 1, most, why=f", the {what}")
    if gpus:
        return ("cuda", processes or gpus)
    return ("cpu", processes or 1)


# --- on another host ---


def measure_eflops_on(
    host: Host,
    launcher: Launcher,
    options: Mapping[str, Any],
    *,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """:meth:`Eflops.document` of a host.

    ``options``: those of :func:`measure_eflops`, for JSON, ``seconds`` and ``windows`` among them.

    Raises:
        MeasurementError: it failed there, or the host fell silent; says why.
    """
    # A slow step makes a window longer than it need be, and the warm-up takes as long as some
    # windows.
    limit_s = _HOST_S + 4 * options["seconds"] * options["windows"]
    order = json.dumps({"options": dict(options), "limit_s": limit_s})
    with Coordinator([(host, launcher.command(host, MODULE, [order]))]) as running:
        while (message := running.answer(0, limit_s))["event"] == "say":
            say(str(message["line"]))
    return dict(message["document"])


def _work(order: Mapping[str, Any], _: object) -> None:
    found = measure_eflops(**order["options"], say=lambda line: emit("say", line=line))
    emit("measured", document=found.document())


if __name__ == "__main__":
    agent(_work)
