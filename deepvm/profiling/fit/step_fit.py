"""The step-time law fitted to measured steps, what it predicts, and what to doubt of it."""

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.spelling import listed
from deepvm.core.training.roofline import REACH
from deepvm.core.training.steptime import FEWEST, MeasuredRange, Steps, StepTimeFit, fit_steps
from deepvm.core.units import Interval, counted
from deepvm.documents.build import document_of
from deepvm.errors import RequestError
from deepvm.profiling.fit.points import StepQuestion
from deepvm.records import dataclass

MOST_KEPT = 2_000  # Steps that are saved with a law
OFF = 0.1  # a median error that is larger gets a warning


@dataclass(frozen=True)
class Prediction:
    """A cluster's step: seconds and samples/s; ``extrapolated``: nothing near was measured."""

    asked: StepQuestion
    step_s: Interval
    throughput: Interval
    extrapolated: bool


@dataclass(frozen=True)
class Shares:
    """Parts of a cluster's step, in seconds; they overlap, so ``step_s`` is less than the sum."""

    asked: StepQuestion
    grad_s: float
    sync_s: float
    step_s: float


@dataclass(frozen=True)
class StepFit:
    """Measured steps, the law, and its predictions in the order in which they were requested."""

    steps: Steps
    fitted: StepTimeFit
    predictions: tuple[Prediction, ...]

    @property
    def measured(self) -> MeasuredRange:
        return self.fitted.measured

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What to doubt, gravest first, without a full stop."""
        return (
            *_of_use(self.predictions, self.measured),
            *_of_steps(self.steps, self.measured),
            *_of_law(self.fitted),
        )

    @property
    def most_off(self) -> float:
        """Relative error that four of five steps are within (``fitted.error``: the median's)."""
        own = self.steps
        off = np.log(own.step_s / self.fitted.law.step_s(own.nodes, own.gpus, own.batch))
        return float(np.quantile(np.expm1(np.abs(off)), 0.8))

    def shares(self, batch: float) -> Shares:
        """What a step consists of at the largest measured cluster, with this batch on each GPU."""
        law = self.fitted.law
        most = int(self.steps.nodes[self.steps.gpus == self.steps.gpus.max()].max())
        gpu_count = self.measured.gpus[1]
        asked = StepQuestion(most, gpu_count, batch)
        nodes, gpus, own = np.array([[most], [gpu_count], [batch]], np.float64)
        parts = (law.grad_s(gpus, own), law.sync_s(nodes, gpus), law.step_s(nodes, gpus, own))
        return Shares(asked, *(float(part[0]) for part in parts))

    def document(self) -> JsonDict:
        """``deepvm.steptime/1``: law in seconds; ``error``: median |predicted/measured - 1|."""
        return document_of("profiling.StepTimeFit", self)

    def saved(self, workload: JsonObject, machine: JsonObject) -> JsonDict:
        """What measured tables keep: the fit and at most :data:`MOST_KEPT` steps."""
        found = {key: value for key, value in self.document().items() if key != "predictions"}
        own = self.steps.thinned(MOST_KEPT)
        columns = (own.nodes, own.gpus, own.batch, own.step_s)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        steps = [{"nodes": int(n), "gpus": int(k), "batch": b, "step_s": s} for n, k, b, s in rows]
        warnings = [*_of_steps(self.steps, self.measured), *_of_law(self.fitted)]
        return found | {
            "workload": dict(workload),
            "machine": dict(machine),
            "fit": self.fitted.as_document(),
            "steps": steps,
            "warnings": warnings,
        }


def fit_step_time(steps: Steps, asked: Sequence[StepQuestion] = ()) -> StepFit:
    """Fit the law and predict. Raises RequestError: too few different steps."""
    try:
        fitted = fit_steps(steps)
    except RequestError as error:
        raise RequestError(
            "POINTS",
            counted(len(steps), "row"),
            f"{error.allowed}; measure several batches and several sizes of the cluster, the"
            " larger the better",
        ) from None
    return StepFit(steps, fitted, tuple(_predicted(fitted, one) for one in asked))


def _predicted(fitted: StepTimeFit, asked: StepQuestion) -> Prediction:
    step = fitted.predict(asked.nodes, asked.gpus, asked.batch)
    measured = fitted.measured
    low, high = measured.batch
    near = asked.gpus <= REACH * asked.nodes * _most_on_each(asked, measured)
    near = near and low / REACH <= asked.batch <= REACH * high
    beyond = not near or _is_beyond(asked, measured) or _lacks_part(asked, measured)
    return Prediction(asked, step, step.inverse(asked.gpus * asked.batch), beyond)


def _is_beyond(asked: StepQuestion, measured: MeasuredRange) -> bool:
    return asked.nodes > REACH * measured.nodes[-1] or asked.gpus > REACH * measured.gpus[1]


def _most_on_each(asked: StepQuestion, measured: MeasuredRange) -> int:
    return int(measured.most_on_each(np.array(asked.nodes)))


def _lacks_part(asked: StepQuestion, measured: MeasuredRange) -> bool:
    """Whether it synchronizes in a way that nothing was measured of."""
    if asked.nodes > 1:
        return not measured.several
    return asked.gpus > 1 and not measured.local


def _of_use(predictions: Sequence[Prediction], measured: MeasuredRange) -> Iterator[str]:
    asked = [prediction.asked for prediction in predictions]
    if unknown := [one for one in asked if _lacks_part(one, measured)]:
        yield (
            f"{_named(unknown)}: nothing was measured that synchronizes so, and the step is the"
            " least it can be"
        )
    for most in sorted({_most_on_each(one, measured) for one in asked}):
        own = [one for one in asked if _most_on_each(one, measured) == most]
        if wide := [one for one in own if one.gpus > one.nodes * most]:
            yield f"{_named(wide)}: more GPUs in a VM than were measured, {most}"
    if far := [one for one in asked if _is_beyond(one, measured)]:
        yield (
            f"{_named(far)}: more than {REACH} x what was measured,"
            f" {counted(measured.nodes[-1], 'VM')} and {counted(measured.gpus[1], 'GPU')}"
        )
    low, high = measured.batch
    if outside := [one for one in asked if not low <= one.batch <= high]:
        known = f"{low:g} samples"
        if high > low:
            known = f"{low:g} to {high:g} samples"
        yield f"{_named(outside)}: the batch lies outside what was measured, {known} on each GPU"
    low_nodes = measured.nodes[0]
    low_gpus = measured.gpus[0]
    if small := [one for one in asked if one.nodes < low_nodes or one.gpus < low_gpus]:
        yield (
            f"{_named(small)}: smaller than what was measured, {counted(low_nodes, 'VM')} and"
            f" {counted(low_gpus, 'GPU')}"
        )


def _named(asked: Sequence[StepQuestion]) -> str:
    return listed([str(one) for one in asked], 2)


def _of_steps(steps: Steps, measured: MeasuredRange) -> Iterator[str]:
    if not measured.several:
        yield "nothing was measured on several VMs: the law knows no network, that part of it is 0"
    elif measured.several == 1:
        count = next(n for n in measured.nodes if n > 1)
        yield (
            f"of several VMs only {count} were measured: how much slower the network makes more of"
            " them is a guess"
        )
    if not measured.local and measured.most_per_vm > 1:
        yield (
            "no VM with several GPUs was measured alone: the law knows nothing of its own links,"
            " that part is 0"
        )
    elif not measured.local:
        yield "nothing was measured with several GPUs in a VM: that part of the law is 0"
    if len(measured.local_gpus) == 1:
        only = measured.local_gpus[0]
        yield (
            f"of several GPUs in one VM only {only} were measured: how much slower more of them are"
            " is a guess"
        )
    if measured.gpus[0] > 1:
        yield (
            "no single GPU was measured: only the law separates gradients from their"
            " synchronization"
        )
    if measured.batches == 1:
        yield (
            f"only a batch of {measured.batch[0]:g} was measured: what a step of another takes is a"
            " guess"
        )
    if (kinds := steps.kinds) < 2 * FEWEST:
        yield (
            f"only {kinds} different clusters and batches were measured for a law of eight"
            " parameters: measure more"
        )


def _of_law(fitted: StepTimeFit) -> Iterator[str]:
    if fitted.error > OFF:
        off = f"a factor of {1 + fitted.error:.3g}"
        if fitted.error < 1:
            off = f"{100 * fitted.error:.0f} %"
        yield f"half of the measured steps are {off} or more off the law: were they the same work?"
