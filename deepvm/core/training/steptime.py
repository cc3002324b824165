"""How long one step of data-parallel training takes: the step-time law.

Pollux (OSDI 2021, eq. 8-11): a step is the gradients of one GPU's batch and their synchronization,
which overlap::

    T = (T_grad^g + T_sync^g)^(1/g)                      g = 1: in turn; g -> infinity: the longer
    T_grad = (a_g + b_g b) K^d                           b samples on each of K GPUs
    T_sync = 0                       K = 1
             a_l + b_l max(K - 2, 0)         K GPUs of one VM
             a_n + b_n max(K - 2, 0)         K GPUs of several VMs
    throughput = K b / T

``d`` is ours; in Pollux it is 0. A step ends with its slowest GPU, so T_grad itself grows with K:
on four to eight g4dn.12xlarge a batch of 200 takes 5 to 18 % longer than on one GPU although
synchronization is hidden (published rows of ``data/performance``). Fitted on up to four VMs it
takes the error of the speed-up of eight from 8 % to 3 %.
"""

from __future__ import annotations

from operator import itemgetter

import numpy as np

from deepvm.core.arrays import BoolArray, FloatArray, IntArray
from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.training.roofline import joined
from deepvm.core.units import Z80, Interval
from deepvm.errors import RequestError
from deepvm.records import asdict, astuple, dataclass, replace

FEWEST = 4  # Rows that a fit needs, of at least two sizes or batches
ENOUGH = f"at least {FEWEST} measured steps, of at least two clusters or batches"
_WIDEST = np.log(1e9)  # of each part of a step over the median step, either way
_MOST_OVERLAP = 10.0
_MOST_STRAGGLING = 0.3
# Residuals beyond it count less than squared: single runs on a cloud are now and then far off
_ROBUST = 0.1
_SCREENED = 400  # rows that choose among the starts; the best are then fitted to all
# Flat directions end alike on all machines
_EXACT = {"ftol": 1e-10, "xtol": 1e-10, "gtol": 1e-10, "max_nfev": 200}

# Standard deviations of log T, from the published rows of five models on up to 8 x 4 T4 (Pollux;
# data/performance). _GROWTH was chosen with those rows: were it chosen without the model that it is
# judged by, 73 to 91 % would hold:
_USUAL = 0.08  # around the law, where too little is measured to say
_USUAL_WEIGHT = 4.0  # how many kinds of steps that is worth
_GROWTH = 0.125  # for each factor of e beyond what was measured, in clusters and in batches
# The same where one size or batch was measured, so that what is fixed cannot be separated
# from what grows
_UNSEPARATED = 0.8
# Nothing measured of several VMs, or of several GPUs: a step may be twice as long
_NO_NETWORK = 0.7
_NO_LOCAL = 0.4


@dataclass(frozen=True)
class StepTimeLaw:
    """Parameters of the law, in seconds but for ``overlap`` and ``straggling``.

    Attributes:
        grad_fixed, grad_per_sample: a_g, b_g. local_fixed, local_per_gpu: a_l, b_l, within a VM.
        network_fixed, network_per_gpu: a_n, b_n, between VMs. overlap: g >= 1.
        straggling: d >= 0.
    """

    grad_fixed: float
    grad_per_sample: float
    local_fixed: float = 0.0
    local_per_gpu: float = 0.0
    network_fixed: float = 0.0
    network_per_gpu: float = 0.0
    overlap: float = 1.0
    straggling: float = 0.0

    def grad_s(self, gpus: FloatArray, batch: FloatArray) -> FloatArray:
        """T_grad in seconds; arrays of one shape, ``batch``: samples on each GPU."""
        return (self.grad_fixed + self.grad_per_sample * batch) * gpus**self.straggling

    def sync_s(self, nodes: FloatArray, gpus: FloatArray) -> FloatArray:
        """T_sync in seconds on ``gpus`` GPUs of ``nodes`` VMs together."""
        more = np.maximum(gpus - 2, 0)
        local = self.local_fixed + self.local_per_gpu * more
        network = self.network_fixed + self.network_per_gpu * more
        return np.where(gpus <= 1, 0.0, np.where(nodes > 1, network, local))

    def step_s(self, nodes: FloatArray, gpus: FloatArray, batch: FloatArray) -> FloatArray:
        return joined(self.grad_s(gpus, batch), self.sync_s(nodes, gpus), self.overlap)

    def throughput(self, nodes: FloatArray, gpus: FloatArray, batch: FloatArray) -> FloatArray:
        return gpus * batch / self.step_s(nodes, gpus, batch)

    def slower(self, factor: float) -> StepTimeLaw:
        shape = {"overlap": self.overlap, "straggling": self.straggling}
        times = {name: value * factor for name, value in asdict(self).items()}
        return StepTimeLaw(**(times | shape))


@dataclass(frozen=True)
class Steps:
    """Measured steps: arrays of one length; ``batch`` on each GPU, ``step_s`` in seconds."""

    nodes: FloatArray
    gpus: FloatArray
    batch: FloatArray
    step_s: FloatArray

    def __len__(self) -> int:
        return len(self.step_s)

    @property
    def kinds(self) -> int:
        return len(
            {*zip(self.nodes.tolist(), self.gpus.tolist(), self.batch.tolist(), strict=True)}
        )

    def thinned(self, most: int) -> Steps:
        """At most so many of the steps, spread evenly over clusters and batches."""
        if len(self) <= most:
            return self
        order = np.lexsort((self.step_s, self.batch, self.gpus, self.nodes))
        return self.at(order[np.linspace(0, len(order) - 1, most).astype(int)])

    def at(self, rows: IntArray | BoolArray) -> Steps:
        return Steps(self.nodes[rows], self.gpus[rows], self.batch[rows], self.step_s[rows])


@dataclass(frozen=True)
class MeasuredRange:
    """What a law was fitted to, which says how far it is to be believed."""

    nodes: tuple[int, ...]  # measured numbers of VMs, ascending
    scatter: tuple[float, ...]  # robust deviation of log T around the law, at each
    gpus: tuple[int, int]  # fewest and most of a cluster
    batch: tuple[float, float]  # smallest and largest on each GPU
    batches: int  # how many different ones
    most_per_vm: int
    local_gpus: tuple[int, ...]  # numbers above 1 of single VMs

    @property
    def local(self) -> bool:
        return bool(self.local_gpus)

    @property
    def several(self) -> int:
        return sum(count > 1 for count in self.nodes)

    def most_on_each(self, nodes: FloatArray) -> FloatArray:
        """The most GPUs measured on a VM: on a single VM if asked for, or on any."""
        return np.where(
            (nodes == 1) & self.local, max(self.local_gpus, default=1), self.most_per_vm
        )

    def deviation(self, nodes: FloatArray, gpus: FloatArray, batch: FloatArray) -> FloatArray:
        near = np.interp(np.log(nodes), np.log(self.nodes), self.scatter)
        size = np.maximum(
            _outside(nodes, self.nodes[0], self.nodes[-1]), _outside(gpus, *self.gpus)
        )
        size = np.maximum(size, np.log(np.maximum(1.0, gpus / nodes / self.most_on_each(nodes))))
        known = np.where(nodes > 1, self.several, len(self.local_gpus))
        growth = np.where((gpus > 1) & (known == 1), _UNSEPARATED, _GROWTH) * size
        other = (_UNSEPARATED if self.batches == 1 else _GROWTH) * _outside(batch, *self.batch)
        unseen = np.where((nodes == 1) & (gpus > 1) & (not self.local), _NO_LOCAL, 0.0)
        unseen = np.where((nodes > 1) & (not self.several), _NO_NETWORK, unseen)
        return np.asarray(np.sqrt(near**2 + growth**2 + other**2 + unseen**2))


def _outside(value: FloatArray, low: float, high: float) -> FloatArray:
    """How far a value is outside a range, as a logarithm; 0 within."""
    return np.maximum(0.0, np.maximum(np.log(value / high), np.log(low / value)))


@dataclass(frozen=True)
class StepTimeFit:
    """A law fitted to measured steps."""

    law: StepTimeLaw
    error: float  # median absolute relative one
    sd: float  # robust, of log(step) around the law
    measured: MeasuredRange

    def predict(self, nodes: int, gpus: int, batch: float) -> Interval:
        at = [np.array([float(value)]) for value in (nodes, gpus, batch)]
        sd = self.measured.deviation(*at)
        return Interval.of_log(float(self.law.step_s(*at)[0]), float(sd[0]))

    def as_document(self) -> JsonDict:
        measured = self.measured
        return {
            "law": asdict(self.law),
            "error": self.error,
            "sd": self.sd,
            "most_nodes": measured.nodes[-1],
            "most_gpus": measured.gpus[1],
            "measured": asdict(measured),
        }

    @classmethod
    def of_document(cls, raw: JsonObject) -> StepTimeFit:
        own = raw["measured"]
        lists = {
            name: tuple(own[name]) for name in ("nodes", "scatter", "gpus", "batch", "local_gpus")
        }
        measured = MeasuredRange(**{**own, **lists})
        fit = cls(StepTimeLaw(**raw["law"]), raw["error"], raw["sd"], measured)
        known = fit.as_document() | {"law": raw["law"], "measured": own}
        if known != raw:
            raise ValueError("the largest cluster is not the measured one, or a key is unknown")
        return fit


def fit_steps(steps: Steps) -> StepTimeFit:
    """Fit the law: robust least squares of log T, from several starts.

    Parts that nothing was measured of are 0: a file of single VMs says nothing about the network.
    Raises a RequestError for too little of it (:data:`ENOUGH`).
    """
    kinds = steps.kinds
    if len(steps) < FEWEST or kinds < 2:
        raise RequestError("steps", f"{len(steps)} of {kinds} kinds", ENOUGH)
    law = _fitted(steps)
    off = np.abs(np.log(steps.step_s) - np.log(law.step_s(steps.nodes, steps.gpus, steps.batch)))
    sd = _spread(off, kinds, kinds - int(_used(steps).sum()), _USUAL)
    error = float(np.median(np.expm1(off)))
    return StepTimeFit(law, error, sd, _measured(steps, off, sd))


def _spread(off: FloatArray, kinds: int, freedom: int, usual: float) -> float:
    """The deviation that covers 80 % of |residuals|, shrunk to ``usual`` if kinds are few.

    Tails are heavier than normal, and the 80 % interval is promised. ``freedom``: kinds less
    parameters.
    """
    free = max(freedom, 1)
    own = float(np.quantile(off, 0.8)) / Z80 * np.sqrt(kinds / free)
    return float(np.sqrt((free * own**2 + _USUAL_WEIGHT * usual**2) / (free + _USUAL_WEIGHT)))


def _measured(steps: Steps, off: FloatArray, sd: float) -> MeasuredRange:
    counts = np.unique(steps.nodes).astype(int).tolist()
    scatter = []
    for count in counts:
        own = steps.nodes == count
        kinds = steps.at(own).kinds
        scatter.append(_spread(off[own], kinds, kinds, sd))
    local = np.unique(steps.gpus[(steps.nodes == 1) & (steps.gpus > 1)])
    return MeasuredRange(
        nodes=tuple(counts),
        scatter=tuple(scatter),
        gpus=(int(steps.gpus.min()), int(steps.gpus.max())),
        batch=(float(steps.batch.min()), float(steps.batch.max())),
        batches=len(np.unique(steps.batch)),
        most_per_vm=int(np.ceil(steps.gpus / steps.nodes).max()),
        local_gpus=tuple(local.astype(int).tolist()),
    )


def _fitted(steps: Steps) -> StepTimeLaw:
    """The best law, found where the median step and batch are 1, so that no unit matters."""
    second = float(np.median(steps.step_s))
    sample = float(np.median(steps.batch))
    scaled = Steps(steps.nodes, steps.gpus, steps.batch / sample, steps.step_s / second)
    used = _used(steps)
    few = scaled.thinned(_SCREENED)
    by_cost = itemgetter(0)
    found = sorted((_search(few, start, used) for start in _starts(scaled)), key=by_cost)
    if len(few) < len(steps):
        found = sorted((_search(scaled, values, used) for _, values in found[:2]), key=by_cost)
    law = _law(found[0][1], used).slower(second)
    law = replace(law, grad_per_sample=law.grad_per_sample / sample)
    return StepTimeLaw(*(float(f"{value:.6g}") for value in astuple(law)))


def _starts(steps: Steps) -> list[FloatArray]:
    """Starting points (log of six times, overlap, straggling) for several shares and overlaps."""
    alone = steps.gpus == steps.gpus.min()
    batch = steps.batch[alone]
    step = steps.step_s[alone]
    per_sample = 0.5 * float(np.mean(step / batch))
    if len(np.unique(batch)) > 1:
        slope = float(np.polyfit(batch, step, 1)[0])
        if slope > 0:
            per_sample = slope
    fixed = max(float(np.median(step - per_sample * batch)), 0.05 * float(np.median(step)))
    mean = float(np.mean(steps.step_s))
    starts = []
    for overlap in (1.5, 3.0, 6.0):
        for share in (0.1, 0.5):
            parts = [fixed, per_sample, 0.3 * share * mean, 0.01 * mean, share * mean, 0.02 * mean]
            starts.append(
                np.array([*np.clip(np.log(parts), 1 - _WIDEST, _WIDEST - 1), overlap, 0.03])
            )
    return starts


def _used(steps: Steps) -> BoolArray:
    """Which of the eight parameters the steps say something about."""
    of_several = steps.gpus[steps.nodes > 1]
    of_one = steps.gpus[(steps.nodes == 1) & (steps.gpus > 1)]
    several = len(of_several) > 0
    local = len(of_one) > 0
    # Two GPUs say nothing of each GPU more: its time is multiplied by 0
    more, further = (bool((own > 2).any()) for own in (of_one, of_several))
    both = [local or several] * 2
    return np.array([True, True, local, more, several, further, *both])


def _law(values: FloatArray, used: BoolArray) -> StepTimeLaw:
    times = np.where(used[:6], np.exp(values[:6]), 0.0).tolist()
    return StepTimeLaw(*times, *np.where(used[6:], values[6:], [1.0, 0.0]).tolist())


def _search(steps: Steps, start: FloatArray, used: BoolArray) -> tuple[float, FloatArray]:
    from scipy.optimize import least_squares  # slow to import, and only fits need it

    low = np.array([*([-_WIDEST] * 6), 1.0, 0.0])
    high = np.array([*([_WIDEST] * 6), _MOST_OVERLAP, _MOST_STRAGGLING])
    measured = np.log(steps.step_s)
    values = start.copy()

    def off(free: FloatArray) -> FloatArray:
        values[used] = free
        return np.log(_law(values, used).step_s(steps.nodes, steps.gpus, steps.batch)) - measured

    found = least_squares(
        off, start[used], bounds=(low[used], high[used]), loss="soft_l1", f_scale=_ROBUST, **_EXACT
    )
    values[used] = found.x
    return float(found.cost), values
