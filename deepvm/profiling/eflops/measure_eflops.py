"""eFLOPS = 3 x operations of the forward pass x images/s, in training (DeepVM III-B2)."""

import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.progress import Say
from deepvm.core.units import counted, refuse_outside
from deepvm.documents.build import document_of
from deepvm.errors import MissingExtraError, RequestError
from deepvm.io.host_info import cores
from deepvm.profiling.eflops.eflops_worker import Task, Window, run_workers, spread
from deepvm.profiling.hosts.coordinator import Coordinator
from deepvm.profiling.hosts.launcher import Host, Launcher
from deepvm.profiling.hosts.machine import Machine
from deepvm.profiling.hosts.watchdog import agent, emit
from deepvm.profiling.workload.spec import BATCH, RESOLUTION, Workload
from deepvm.records import dataclass

MODULE = "deepvm.profiling.eflops.measure_eflops"
# Training over forward pass: gradients of inputs and of weights take as many operations each
PASSES = 3
LEAST_WINDOWS = 3  # two windows show that one is off, but not which
WIDE_SPREAD = 0.10
WINDOWS = 5
SECONDS = 2.0
TIMEOUT_S = 600.0
_HOST_S = 1980.0  # for one model on a slow host, in addition to its windows


@dataclass(frozen=True)
class Eflops:
    """A measurement."""

    workload: Workload
    machine: Machine
    forward_flops: int  # operations of the forward pass for one image
    device: str
    processes: int
    threads: int
    data: str  # ``synthetic``, ``cifar10`` or ``idx``
    steps: int  # of each window
    warm_up: Sequence[Window]
    windows: Sequence[Window]
    steady: bool  # the speed had settled after the warm-up

    @property
    def images_per_s(self) -> float:
        return median(w.images_per_s for w in self.windows)

    @property
    def eflops(self) -> float:
        return PASSES * self.forward_flops * self.images_per_s

    @property
    def spread(self) -> float:
        return spread(self.windows)

    @property
    def warnings(self) -> Iterator[str]:
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

    def document(self) -> JsonDict:
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
    say: Say = lambda line: None,
) -> Eflops:
    """Train on this machine and time it, in processes whose crash or hang spares the caller.

    ``device``: ``cpu``, ``cuda``, or ``auto``; one process trains on each GPU, or one on the CPU.
    ``data``: a folder for :func:`~deepvm.profiling.workload.images.read_images`, else random
    images. ``windows``, of at least ``seconds`` each, count after the warm-up; after ``timeout_s``
    of silence beyond that the processes are ended. Raises RequestError: also if a batch does not
    fit into the memory; MissingExtraError, DataError; MeasurementError: a process failed.
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
    """Raise RequestError for numbers that :func:`measure_eflops` accepts on no machine."""
    refuse_outside("batch", batch, 2, 65536, why="; batch normalization needs two images")
    refuse_outside("resolution", resolution, 32, 2048)
    refuse_outside("windows", windows, LEAST_WINDOWS, 1000)
    refuse_outside("seconds", seconds, 0.001, 600, what="seconds")
    refuse_outside("timeout", timeout_s, 1, 86400, what="seconds")


def _devices(device: str, processes: int | None) -> tuple[str, int]:
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
    host: Host, launcher: Launcher, options: JsonObject, *, say: Say = lambda line: None
) -> JsonDict:
    """The document of a host. Raises MeasurementError: it failed there, or is silent.

    ``options``: those of :func:`measure_eflops`, for JSON, ``seconds`` and ``windows`` among them.
    """
    # A slow step makes a window longer, and the warm-up takes as long as some windows
    limit_s = _HOST_S + 4 * options["seconds"] * options["windows"]
    program = launcher.agent(host, MODULE, options=dict(options), limit_s=limit_s)
    with Coordinator([program]) as running:
        while (message := running.answer(0, limit_s))["event"] == "say":
            say(str(message["line"]))
    return dict(message["document"])


def _work(order: JsonObject, _: object) -> None:
    found = measure_eflops(**order["options"], say=lambda line: emit("say", line=line))
    emit("measured", document=found.document())


if __name__ == "__main__":
    agent(_work)
