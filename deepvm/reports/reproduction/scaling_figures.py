"""Laws of scaling: fits to DeepVM's speed-ups and Pollux's steps, and published runs predicted.

Figures are named for what they are, so that most are computed from their names.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt

from deepvm.catalog.published.check import PublishedCheck, check_published
from deepvm.catalog.published.hardware import find_accelerator, interconnect, usual_machine
from deepvm.catalog.published.performance import PublishedPerformance
from deepvm.catalog.published.rows import published
from deepvm.catalog.published.workloads import find_model
from deepvm.core.cluster.speedup import (
    LogisticSpeedup,
    MeasuredSpeedup,
    RingSpeedup,
    SpeedupCurve,
)
from deepvm.core.training.roofline import Accelerator, Machine
from deepvm.core.training.speed import TrainingSpeed
from deepvm.core.training.steptime import Steps, StepTimeLaw, fit_steps
from deepvm.core.training.workload import Method, Precision, Workload
from deepvm.profiling.fit.speedup_models import (
    ALPHA_BETA,
    AMDAHL,
    LAWS,
    LOGISTIC,
    USL,
    FittedLaw,
    best_first,
    fit_law,
)
from deepvm.reports.reproduction.deepvm_figures import PROFILED, measured_points, workload_curve
from deepvm.reports.reproduction.published_figures import Part, Value

HELD_OUT = (12, 20, 24, 28)
"""Sizes of Figure 5 that a curve is not fitted to; the others are 1, 2, 4, 8, 16 and 32."""
FEW_VMS = 4
"""Pollux's law is fitted to so many VMs at most, and asked for 6 and 8."""
POLLUX = {"ResNet-50": "resnet50", "BERT-base": "bert-base", "YOLOv3": "yolov3"}
"""Models of Pollux's measured steps, and what ``data/performance`` calls them."""
TITLES = {
    "alpha-beta (ring)": ALPHA_BETA,
    "logistic (eq. 10)": LOGISTIC,
    "Amdahl": AMDAHL,
    "USL": USL,
}
Points = tuple[tuple[float, float], ...]


def table_iv_fit(part: Part, name: str) -> Value:
    """``ResNet-18, a``: of the logistic fitted to points of its curve in Table IV (eq. 10)."""
    title, parameter = name.split(", ")
    row = workload_curve(title)
    sizes = np.array([n for n, _ in measured_points(PROFILED[0])])
    fitted = fit_law(LOGISTIC, sizes, LogisticSpeedup(row.a, row.b, row.c).speedup(sizes))
    return fitted.values[LOGISTIC.parameters.index(parameter)]


def ring_fit(part: Part, name: str) -> Value:
    """``g5.xlarge, c``: of its ring, in step times of one VM."""
    instance, parameter = name.split(", ")
    return float(getattr(RingSpeedup.fit(measured_points(instance)[1:]), parameter))


@cache
def fitted_laws(instance: str) -> list[FittedLaw]:
    """Fitted to the measured speed-ups of a type."""
    n, s = np.array(measured_points(instance)).T
    return [fit_law(law, n, s) for law in LAWS]


def law(part: Part, name: str) -> Value:
    """Mean error of a law over the three types, per cent; ``best of`` a type."""
    if name.startswith("best of "):
        return best_first(fitted_laws(name.removeprefix("best of ")))[0].law.name
    fits = [fit for instance in PROFILED for fit in fitted_laws(instance)]
    return 100 * float(np.mean([fit.mape for fit in fits if fit.law is TITLES[name]]))


def held_out(part: Part, name: str) -> Value:
    """``ring, g5.xlarge, 12 20 24 28 left out``: mean error at sizes not fitted to, per cent."""
    curve, which, sizes = name.split(", ", 2)
    errors = []
    for instance in PROFILED if which == "all" else [which]:
        points = measured_points(instance)
        known = tuple(p for p in points if p[0] not in HELD_OUT)
        if sizes == "from 12 VMs, fitted up to 8":
            known = tuple(p for p in points if p[0] < HELD_OUT[0])
        fitted: SpeedupCurve = MeasuredSpeedup(known)
        if curve == "ring":
            fitted = RingSpeedup.fit(known[1:])
        n, s = np.array([p for p in points if p not in known]).T
        errors.append(100 * float(np.mean(np.abs(fitted.speedup(n) / s - 1))))
    return float(np.mean(errors))


def pollux_steps(title: str) -> Steps:
    """Pollux's measured steps of a model on g4dn.12xlarge.

    A step of K GPUs with b samples each takes K b / throughput seconds.
    """
    rows = []
    for run in published():
        model = run.workload.model
        batch = run.workload.batch
        if run.source == "pollux" and model.name == POLLUX[title]:
            gpus = run.machine.gpus * run.vms
            step_s = gpus * batch * model.units_per_sample / run.throughput
            rows.append((float(run.vms), gpus, batch, step_s))
    return Steps(*np.array(rows).T)


def _at(steps: Steps, chosen: npt.NDArray[np.bool_]) -> Steps:
    return Steps(steps.nodes[chosen], steps.gpus[chosen], steps.batch[chosen], steps.step_s[chosen])


@cache
def pollux_law(title: str) -> StepTimeLaw:
    """The law of the runs on few VMs."""
    steps = pollux_steps(title)
    return fit_steps(_at(steps, steps.nodes <= FEW_VMS)).law


def pollux_error(part: Part, name: str) -> Value:
    """``ResNet-50, 90 % below``: error on more VMs than the law was fitted to, per cent."""
    title, statistic = name.split(", ")
    steps = pollux_steps(title)
    many = _at(steps, steps.nodes > FEW_VMS)
    step_s = pollux_law(title).step_s(many.nodes, many.gpus, many.batch)
    errors = 100 * np.abs(step_s / many.step_s - 1)
    return float(np.quantile(errors, 0.5 if statistic == "median" else 0.9))


def pollux_speedup(part: Part, name: str) -> Value:
    """``batch 20, ...``: S(8) of ResNet-50, one GPU a VM, by the law or as predicted."""
    batch, method = name.removeprefix("batch ").split(", ")
    if method == "deepvm performance":
        _, usual = usual_machine(_accelerator("T4", 16))
        workload = Workload(find_model("resnet50"), precision=Precision.FP32, batch=int(batch))
        return _speedup(PublishedPerformance(), replace(usual, gpus=1), workload, 8)
    fitted = pollux_law("ResNet-50")
    one, eight = (
        fitted.throughput(vms, vms, np.array([float(batch)]))[0]
        for vms in (np.array([1.0]), np.array([8.0]))
    )
    return float(eight / one)


def published_run(part: Part, name: str) -> Value:
    """A speed-up of 32 VMs, and the tokens a second of one GPU."""
    if name == "BERT-large, 8 to 256 A100":
        bert = Workload(find_model("bert-large"), batch=64)
        dgx = Machine(_accelerator("A100", 80), 8, interconnect("DGX-A100", None))
        return _speedup(PublishedPerformance("tuned"), dgx, bert, 32)
    llama = Workload(find_model("llama-8b"), Method.FSDP, batch=8)
    _, usual = usual_machine(_accelerator("H100", 80))
    speed = _predicted(PublishedPerformance(), replace(usual, gpus=8), llama, [1])
    return float(speed.throughput[0]) / 8


@cache
def checked() -> PublishedCheck:
    """Each published run, predicted from the others."""
    return check_published()


def leave_one_out(part: Part, name: str) -> Value:
    """How good predictions of published runs are, per cent."""
    if name == "runs":
        return float(checked().total.runs)
    if name == "median error, worst GPU":
        return 100 * max(group.median for group in checked().gpus)
    return 100 * checked().total.coverage


def _accelerator(name: str, memory_gib: float) -> Accelerator:
    accelerator = find_accelerator(name, memory_gib)
    assert accelerator is not None
    return accelerator


def _predicted(
    source: PublishedPerformance, machine: Machine, workload: Workload, vms: list[int]
) -> TrainingSpeed:
    speed = source.of_machine(machine, workload, np.array(vms, dtype=np.float64))
    assert isinstance(speed, TrainingSpeed)
    return speed


def _speedup(source: PublishedPerformance, machine: Machine, workload: Workload, vms: int) -> float:
    one, many = _predicted(source, machine, workload, [1, vms]).throughput
    return float(many / one)


COMPUTE = {
    "table-4-fits": table_iv_fit,
    "ring-fits": ring_fit,
    "laws": law,
    "held-out": held_out,
    "pollux-law": pollux_error,
    "pollux-speedups": pollux_speedup,
    "published-runs": published_run,
    "leave-one-out": leave_one_out,
}
