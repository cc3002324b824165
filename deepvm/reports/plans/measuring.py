"""What to measure next, as the command that measures it: recommend picks its result up."""

from __future__ import annotations

from deepvm.catalog.published.models import presets
from deepvm.core.training.speed import Training
from deepvm.core.training.workload import Method
from deepvm.planner.workload.measurement import REPEATS, NextMeasurement
from deepvm.profiling.workload.spec import DTYPES, PRESETS

MODEL_FILE = "model.yaml"
_STEPS = "--steps 5"  # in each of five windows, as deepvm.planner.workload.measurement counts


def measure_command(found: NextMeasurement, training: Training) -> str:
    """The command for a run.

    Where ``profile scaling`` does not train the workload, that for steps timed elsewhere.

    ``hosts`` and ``steps.csv`` are the user's files.
    """
    kind = found.cluster.gpu.name
    trains = _trains(found, training)
    if not trains:
        what = _words(training, found.precision.value)
        return f"deepvm profile fit steps.csv --law step-time --save --instance-type {kind} {what}"
    batch = max(1, round(found.batch))
    other = batch // 2 if batch > 1 else 2
    return (
        f"deepvm profile scaling --hosts-file hosts --instance-type {kind} {trains} --batch"
        f" {batch},{other} --repeats {REPEATS} {_STEPS} --save"
    )


def _trains(found: NextMeasurement, training: Training) -> str:
    """What ``profile scaling`` is to train; empty where it cannot."""
    model = training.workload.model
    method = training.workload.method
    dtype = DTYPES.get(found.precision.value)
    if dtype is None or getattr(training.speeds, "software", "eager") != "eager":
        return ""
    if model.name in PRESETS and method is Method.DDP:
        return f"--model {PRESETS[model.name]} --resolution {model.pixels} --dtype {dtype}"
    shape = model.transformer
    if (
        model.name not in presets()
        or shape is None
        or not shape.vocabulary
        or method is Method.LORA
    ):
        return ""
    if method is Method.FSDP and dtype == "float16":
        return ""
    text = f"--model {model.name} --seq {model.sequence} --method {method.value} --dtype {dtype}"
    return f"{text} --activation-checkpointing" if found.checkpointing else text


def _words(training: Training, precision: str) -> str:
    """What is trained, as ``profile fit --save`` takes it."""
    workload = training.workload
    model = workload.model
    if model.name.endswith(" parameters"):
        words = [f"--params {model.name.split()[0]}"]
    else:
        words = [f"--model {model.name if model.name in presets() else MODEL_FILE}"]
    words += [f"--seq {model.sequence}"] if model.sequence > 1 else []
    software = getattr(training.speeds, "software", "eager")
    words += [f"--method {workload.method.value}", f"--precision {precision}"]
    return " ".join([*words, *([f"--software {software}"] if software != "eager" else [])])
