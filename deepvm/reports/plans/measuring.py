"""What to measure next, as the command that measures it: recommend picks its result up."""

from __future__ import annotations

from deepvm.core.training.speed import Training
from deepvm.core.training.workload import Method
from deepvm.planner.request import PlanRequest
from deepvm.planner.workload.measurement import REPEATS, NextMeasurement
from deepvm.profiling.workload.spec import DTYPES, PRESETS

_STEPS = "--steps 5"  # in each of five windows, as deepvm.planner.workload.measurement counts


def measure_command(found: NextMeasurement, training: Training) -> str:
    """The command for a run; where ``profile scaling`` does not train the workload, that for steps timed elsewhere.

    ``hosts`` and ``steps.csv`` are the user's files.
    """
    workload, kind, precision = training.workload, found.cluster.gpu.name, found.precision.value
    model, dtype = workload.model, DTYPES.get(precision)
    name = PRESETS.get(model.name)
    if name is None or dtype is None or workload.method is not Method.DDP:
        return (
            f"deepvm profile fit steps.csv --law step-time --save --instance-type {kind} {_words(training, precision)}"
        )
    size = f"--resolution {model.pixels}" if model.pixels else f"--seq {model.sequence}"
    batch = max(1, round(found.batch))
    other = max(1, batch // 2) if batch > 1 else 2
    return (
        f"deepvm profile scaling --hosts-file hosts --instance-type {kind} --model {name} {size} --dtype {dtype} "
        f"--batch {batch},{other} --repeats {REPEATS} {_STEPS} --save"
    )


def measuring_lines(found: NextMeasurement, request: PlanRequest) -> list[str]:
    """How to do it, for ``--why``."""
    if request.training is None:
        return []
    command = measure_command(found, request.training)
    files = "hosts: a file that names the VMs, one a line"
    if "steps.csv" in command:
        files = "steps.csv: nodes,gpus,local_batch,step_time_s of your own training, several batches and numbers of VMs"
    return [f"  {command}", f"  ({files}; then the same recommend uses what was measured)"]


def _words(training: Training, precision: str) -> str:
    """What is trained, as ``profile fit --save`` takes it."""
    workload = training.workload
    model = workload.model
    words = [f"--params {model.name.split()[0]}" if model.name.endswith(" parameters") else f"--model {model.name}"]
    words += [f"--seq {model.sequence}"] if model.sequence > 1 else []
    return " ".join([*words, f"--method {workload.method.value}", f"--precision {precision}"])
