"""Laws of scaling: fits to DeepVM's speed-ups and Pollux's steps, and published runs predicted."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from deepvm.catalog.published.hardware import find_accelerator, interconnect, usual_machine
from deepvm.catalog.published.performance import PublishedPerformance, predict
from deepvm.catalog.published.rows import PublishedCheck, check_published, published
from deepvm.catalog.published.workloads import find_model
from deepvm.core.cluster.speedup import LogisticSpeedup, MeasuredSpeedup, RingSpeedup, SpeedupCurve
from deepvm.core.training.roofline import Accelerator, Machine
from deepvm.core.training.speed import TrainingSpeed
from deepvm.core.training.steptime import Steps, StepTimeLaw, fit_steps
from deepvm.core.training.workload import Precision, Workload
from deepvm.profiling.fit.speedup_models import LAWS, LOGISTIC, FittedLaw, best_first, fit_law
from deepvm.reports.reproduction.deepvm_figures import PROFILED, measured_points, workload_curves
from deepvm.reports.reproduction.published_figures import Value

FEW_VMS = 4  # Pollux's law is fitted to so many VMs at most, and asked for 6 and 8


def table_iv_fit(workload: str, parameter: str) -> Value:
    """Of the logistic fitted to points of its curve in Table IV (eq. 10)."""
    row = workload_curves()[workload]
    sizes = np.array([n for n, _ in measured_points(PROFILED[0])])
    fitted = fit_law(LOGISTIC, sizes, LogisticSpeedup(row.a, row.b, row.c).speedup(sizes))
    return fitted.values[LOGISTIC.parameters.index(parameter)]


def ring_fit(instance: str, parameter: str) -> Value:
    """Of its ring, in step times of one VM."""
    return float(getattr(RingSpeedup.fit(measured_points(instance)[1:]), parameter))


@cache
def _fitted_laws(instance: str) -> list[FittedLaw]:
    n, s = np.array(measured_points(instance)).T
    return [fit_law(law, n, s) for law in LAWS]


def law_error(name: str) -> Value:
    """Mean error of a law over the three types, per cent."""
    fits = [fit for instance in PROFILED for fit in _fitted_laws(instance)]
    return 100 * float(np.mean([fit.mape for fit in fits if fit.law.name == name]))


def best_law(instance: str) -> Value:
    """The law that AICc chooses for a type."""
    return best_first(_fitted_laws(instance))[0].law.name


def held_out(curve: str, which: str, sizes: Sequence[int]) -> Value:
    """Mean error of a curve at sizes of Figure 5 that it is not fitted to, per cent."""
    errors = []
    for instance in PROFILED if which == "all" else [which]:
        points = measured_points(instance)
        known = tuple(p for p in points if p[0] not in sizes)
        fitted: SpeedupCurve = MeasuredSpeedup(known)
        if curve == "ring":
            fitted = RingSpeedup.fit(known[1:])
        n, s = np.array([p for p in points if p not in known]).T
        errors.append(100 * float(np.mean(np.abs(fitted.speedup(n) / s - 1))))
    return float(np.mean(errors))


def _pollux_steps(model: str, *, few: bool) -> Steps:
    # A step of K GPUs with b samples each takes K b / throughput seconds.
    rows = []
    for run in published():
        own = run.workload.model
        batch = run.workload.batch
        if run.source == "pollux" and own.name == model and (run.vms <= FEW_VMS) is few:
            gpus = run.machine.gpus * run.vms
            step_s = gpus * batch * own.units_per_sample / run.throughput
            rows.append((float(run.vms), gpus, batch, step_s))
    return Steps(*np.array(rows).T)


@cache
def _pollux_law(model: str) -> StepTimeLaw:
    return fit_steps(_pollux_steps(model, few=True)).law


def pollux_error(model: str, share: float) -> Value:
    """Error on more VMs than the law was fitted to, not exceeded by a share of runs, per cent."""
    many = _pollux_steps(model, few=False)
    step_s = _pollux_law(model).step_s(many.nodes, many.gpus, many.batch)
    return float(np.quantile(100 * np.abs(step_s / many.step_s - 1), share))


def pollux_speedup(batch: float) -> Value:
    """S(8) of ResNet-50, one GPU a VM, by Pollux's law."""
    vms = np.array([1.0, 8.0])
    one, eight = _pollux_law("resnet50").throughput(vms, vms, np.array([batch, batch]))
    return float(eight / one)


def predicted_speedup(batch: int) -> Value:
    """The same as ``deepvm performance`` predicts it."""
    _, usual = usual_machine(_accelerator("T4", 16))
    workload = Workload(find_model("resnet50"), precision=Precision.FP32, batch=batch)
    return _speedup(PublishedPerformance(), replace(usual, gpus=1), workload, 8)


def bert_speedup() -> Value:
    """Of 32 VMs."""
    dgx = Machine(_accelerator("A100", 80), 8, interconnect("DGX-A100", None))
    bert = Workload(find_model("bert-large"), batch=64)
    return _speedup(PublishedPerformance("tuned"), dgx, bert, 32)


def llama_throughput() -> Value:
    """Tokens a second of one GPU."""
    speed = predict("H100", 8, gpu_memory="80GiB", model="llama-8b", method="fsdp", batch_per_gpu=8)
    return float(speed.throughput[0]) / 8


@cache
def checked() -> PublishedCheck:
    """Each published run, predicted from the others."""
    return check_published()


def leave_one_out(what: str, *_: str) -> Value:
    """How good predictions of published runs are, per cent."""
    if what == "runs":
        return float(checked().total.runs)
    if what == "median error":
        return 100 * max(group.median for group in checked().gpus)
    return 100 * checked().total.coverage


def _accelerator(name: str, memory_gib: float) -> Accelerator:
    accelerator = find_accelerator(name, memory_gib)
    assert accelerator is not None
    return accelerator


def _speedup(
    source: PublishedPerformance, machine: Machine, workload: Workload, vms: float
) -> Value:
    speed = source.of_machine(machine, workload, np.array([1.0, vms]))
    assert isinstance(speed, TrainingSpeed)
    one, many = speed.throughput
    return float(many / one)
