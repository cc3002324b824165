"""The processes that train on this machine while their speed is measured, and their parent."""

import json
import math
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from deepvm.core.json_types import JsonDict
from deepvm.core.progress import Say
from deepvm.errors import DataError, DeepVMError, MeasurementError, RequestError
from deepvm.profiling.hosts.coordinator import Coordinator, Message
from deepvm.profiling.hosts.launcher import Host
from deepvm.profiling.hosts.watchdog import emit, hold, leave
from deepvm.profiling.workload.spec import Workload
from deepvm.records import asdict, dataclass

if TYPE_CHECKING:
    from torch import nn


MODULE = "deepvm.profiling.eflops.eflops_worker"
GRACE_S = 30.0  # for the processes to end after the result
SETTLE_S = 2.0  # for the other processes to report after one has failed
_NO_MEMORY = re.compile(
    r"out of memory|(can't|cannot) allocate memory|not enough memory|alloc_failed", re.IGNORECASE
)


@dataclass(frozen=True)
class Task:
    """A process's task."""

    workload: Workload
    device: str
    processes: int
    threads: int
    windows: int
    seconds: float  # of each window at least
    timeout_s: float  # of each wait
    data: str  # a folder; empty: random images
    modules: str = ""  # a folder in which ``module:function`` is looked up last


def run_workers(task: Task, say: Say, module: str = MODULE) -> JsonDict:
    """Train until rank 0's result; no process is left. Raises RequestError, DataError.

    MeasurementError: a process failed, or all were silent for too long.
    """
    environment = dict(os.environ)
    if task.processes > 1 and sys.platform == "linux":
        # Else gloo resolves the host's name, which need not have an address.
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # In this folder they import this very package, and no file of the user's
    package = Path(__file__).resolve().parents[3]
    with tempfile.TemporaryDirectory(prefix="deepvm-eflops-") as folder:
        words = [sys.executable, "-m", module, json.dumps(asdict(task))]
        commands = [
            (
                Host(f"process {rank + 1} of {task.processes}"),
                [*words, str(rank), str(Path(folder, "rendezvous"))],
            )
            for rank in range(task.processes)
        ]
        with Coordinator(commands, environment=environment, folder=package) as workers:
            found = _listen(workers, task, say)
            workers.wait(GRACE_S)
    return found


def _listen(workers: Coordinator, task: Task, say: Say) -> JsonDict:
    limit = task.timeout_s + task.seconds
    deadline = time.monotonic() + limit
    # By rank; the one of the lowest order is the cause
    failures: dict[int, tuple[int, DeepVMError]] = {}
    while (heard := workers.next_message(deadline)) is not None:
        rank, message = heard
        event = message["event"]
        if event == "found":
            return dict(message["found"])
        if event == "say":
            say(message["line"])
        # Rank 0 reports for all, so that the others may end silently.
        early = event == "ended" and rank not in failures and (message["code"] or not rank)
        if event == "failed" or early:
            failures[rank] = _failure(message, rank, task)
        if not failures:
            deadline = time.monotonic() + limit
        elif len(failures) == task.processes:
            break
        else:
            # One that fails takes the others with it, and the cause may be reported last.
            deadline = min(deadline, time.monotonic() + SETTLE_S)
    if failures:
        raise min(failures.values(), key=lambda failure: failure[0])[1]
    raise MeasurementError(
        f"{task.workload.model}: nothing was received for {limit:g} s from the processes that"
        " train; "
        "allow more with --timeout, or take a smaller --batch"
    )


def _failure(message: Message, rank: int, task: Task) -> tuple[int, DeepVMError]:
    """The error; those with the lowest number are the cause."""
    if "request" in message:
        return 0, RequestError(*message["request"])
    if "data" in message:
        return 0, DataError(message["data"])
    if message.get("code") == -signal.SIGKILL:
        return 0, _too_large(task, "the process was killed, as Linux does where memory runs out")
    advice = "try a smaller --batch"
    if task.processes > 1:
        advice = "try --processes 1: if that works, what connects the processes is at fault"
    elif task.device == "cuda":
        advice = "nvidia-smi shows whether the GPU is healthy"
    return 1 + (message["event"] == "failed"), MeasurementError(
        f"{task.workload.model}: process {rank + 1} of {task.processes}: {message['reason']};"
        f" {advice}"
    )


def _too_large(task: Task, reason: str) -> RequestError:
    own = task.workload
    smaller = "no less; choose a smaller --model or --resolution"
    if own.batch >= 4:
        smaller = f"less, such as {own.batch // 2}"
    return RequestError(
        "batch",
        own.batch,
        f"{smaller}: {own.model} at {own.resolution} x {own.resolution}: {reason}",
    )


# --- in the process ---


def work(task: Task, rank: int, rendezvous: Path) -> None:
    """Train and emit ``alive``; rank 0 also emits lines to ``say`` and the result ``found``."""
    import torch

    from deepvm.profiling.hosts.machine import describe
    from deepvm.profiling.workload.images import read_images
    from deepvm.profiling.workload.models import CLASSES
    from deepvm.profiling.workload.train_step import Ranks, Training, real, synthetic

    torch.set_num_threads(task.threads)
    torch.manual_seed(0)
    workload = task.workload
    device = torch.device("cpu")
    if task.device == "cuda":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    data = read_images(Path(task.data)) if task.data else None
    if task.modules:  # behind all others, which a file of the user's must not hide
        sys.path.append(task.modules)
    model, flops = _made(workload, count=rank == 0)
    ranks = Ranks(rank, task.processes, device, rendezvous, task.timeout_s)
    if data:
        batches = real(data, workload.batch, workload.resolution, device, ranks)
    else:
        batches = synthetic(workload.batch, workload.resolution, CLASSES, device)
    training = Training(model, workload, batches, device, ranks)

    def say(text: str) -> None:
        if rank == 0:
            emit("say", line=text)

    def run(steps: int) -> float:
        seconds = training.run(steps)
        emit("alive")
        return seconds

    timing = time_windows(run, workload.batch * task.processes, task.windows, task.seconds, say)
    if rank == 0:
        source = data.name if data else "synthetic"
        emit(
            "found",
            found={**asdict(timing), "forward_flops": flops, "machine": describe(), "data": source},
        )
    ranks.close()


def _made(workload: Workload, *, count: bool) -> "tuple[nn.Module, int]":
    """The model and, if requested, the operations of its forward pass for one image."""
    from deepvm.profiling.workload.models import build, forward_flops

    try:
        model = build(workload.model)
        return model, forward_flops(model, workload.resolution) if count else 0
    except Exception as error:
        if ":" not in workload.model:
            raise
        raise RequestError(
            "model",
            workload.model,
            "module:function that can be imported in the current folder, of a model that takes"
            f" images and whose operations can be counted without data ({type(error).__name__}:"
            f" {_reason(error)})",
        ) from None


def _reason(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _report(error: Exception, task: Task) -> None:
    # What cuDNN, cuBLAS and the processor's allocator raise has no type
    known = isinstance(error, (RequestError, DataError))
    if not known and (isinstance(error, MemoryError) or _NO_MEMORY.search(str(error))):
        # Where in torch's source the processor's allocator gave up is no help here.
        reason = re.sub(r"^\[enforce fail [^]]*\] err == 0\. ", "", _reason(error))
        error = _too_large(task, reason)
    if isinstance(error, RequestError):
        emit("failed", request=[error.option, error.value, error.allowed])
    elif isinstance(error, DataError):
        emit("failed", data=str(error))
    else:
        emit("failed", reason=f"{type(error).__name__}: {_reason(error)}")


def main() -> None:
    """Run as a process of its own."""
    fields = json.loads(sys.argv[1])
    rank = int(sys.argv[2])
    rendezvous = Path(sys.argv[3])
    task = Task(**fields | {"workload": Workload(**fields["workload"])})

    def tidy() -> None:  # anyone who made the folder may have been killed
        rendezvous.unlink(missing_ok=True)
        rendezvous.parent.rmdir()

    hold(math.inf, tidy)
    try:
        work(task, rank, rendezvous)
    except Exception as error:
        _report(error, task)
        # Other processes may be waiting for this one; leaving the ordinary way would wait for them.
        os._exit(1)
    leave()


# Before the first window: all but the first, which allocates, tell how many fill a window
SINGLE_STEPS = 4
# The warm-up ends when a window differs by no more from the one before; windows have so many more
# steps
STEADY = 0.05
MOST_WARM_UPS = 10
MOST_WARM_UP_S = 60.0  # then the machine is measured all the same, with a warning
MOST_STEPS = 100_000


@dataclass(frozen=True)
class Window:
    """Steps that were timed together; ``images`` of all devices."""

    images: int
    seconds: float

    @property
    def images_per_s(self) -> float:
        return self.images / self.seconds


@dataclass(frozen=True)
class Timing:
    """``steps`` per window; ``steady``: the speed had settled when the warm-up ended."""

    steps: int
    warm_up: tuple[Window, ...]
    windows: tuple[Window, ...]
    steady: bool


def time_windows(
    run: Callable[[int], float], images: int, windows: int, seconds: float, say: Say
) -> Timing:
    """Warm up with steps, then windows until two differ by at most 5 %, then measure.

    ``run`` does so many steps and returns their seconds, the same in all processes, so that all
    decide alike. ``images``: of one step on all devices. A window lasts at least ``seconds``,
    unless steps become faster by more than 5 % after the warm-up.
    """

    def window() -> Window:
        # A clock without progress would make the speed infinite, which JSON cannot hold.
        return Window(steps * images, max(run(steps), 1e-9))

    say("first steps")
    fastest = min([run(1) for _ in range(SINGLE_STEPS)][1:])
    steps = _filling(seconds, fastest)
    warm_up: list[Window] = []
    steady = False
    spent_s = 0.0
    while (
        len(warm_up) < 2 or not steady and len(warm_up) < MOST_WARM_UPS and spent_s < MOST_WARM_UP_S
    ):
        warm_up.append(window())
        spent_s += warm_up[-1].seconds
        fastest = min(fastest, warm_up[-1].seconds / steps)
        steps = _filling(seconds, fastest)
        say(f"warm-up {len(warm_up)}: {warm_up[-1].images_per_s:,.1f} images/s")
        steady = len(warm_up) > 1 and spread(warm_up[-2:]) <= STEADY
    counted = []
    for number in range(1, windows + 1):
        counted.append(window())
        say(f"window {number} of {windows}: {counted[-1].images_per_s:,.1f} images/s")
    return Timing(steps, tuple(warm_up), tuple(counted), steady)


def _filling(seconds: float, step_s: float) -> int:
    if step_s > 0:
        return math.ceil(min(MOST_STEPS, (1 + STEADY) * seconds / step_s))
    return MOST_STEPS


def spread(windows: Sequence[Window]) -> float:
    """(fastest - slowest) / median of the windows' speeds: 0.1 is 10 %."""
    speeds = [w.images_per_s for w in windows]
    return (max(speeds) - min(speeds)) / median(speeds)


if __name__ == "__main__":
    main()
