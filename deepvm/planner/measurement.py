"""What to measure next: the run on real VMs that is most likely to lead to a faster cluster.

Speeds are known up to a factor whose logarithm is normal, and the factors of plans are correlated:
an error for one GPU is an error on any number of them. Measuring a machine tells its factor up
to the noise of a run, and with it a part of the others'. The plan that then comes first is faster
than the one that comes first now, or the same; this gain is on average the value of the measurement
(Raiffa and Schlaifer 1961; Howard 1966). Plans are ranked by their medians, so gains are counted in
logarithms: with one normal signal z, plan 0 the one that comes first now, m_i a plan's median and
b_i its covariance with the signal::

    exp(E [ max_i (m_i + b_i z) - (m_0 + b_0 z) where that is more than what decides, else 0 ]) - 1

for z ~ N(0, 1): an integral over one variable, done at equally likely values of z.
"""

import itertools
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache

import numpy as np

from deepvm.core.arrays import FloatArray
from deepvm.core.cluster.cluster import Cluster
from deepvm.core.cluster.instances import Catalog
from deepvm.core.training.evidence import NOISE
from deepvm.core.training.roofline import REACH
from deepvm.core.training.speed import READING, TrainingSpeed
from deepvm.core.training.workload import Precision
from deepvm.planner.candidates import gather
from deepvm.planner.ranking import VALUE_TOLERANCE, doubt_of, weighed
from deepvm.planner.request import PlanRequest
from deepvm.planner.search.enumeration import Choice
from deepvm.records import dataclass, field

# Plans that are compared: the best of each machine.
MAX_PLANS = 24
# Minutes until VMs can train; seconds that a training run needs besides its steps
START_MIN, RUN_S = 8.0, 25.0
# Training runs per size and batch, steps per run (including untimed), and batches
REPEATS, STEPS, BATCHES = 2, 35, 2
# A smaller expected gain is not worth a run.
MIN_GAIN = 0.01
# A longer run is not proposed: the user might as well train.
MAX_MINUTES = 180.0
_POINTS = 1001


@dataclass(frozen=True)
class NextMeasurement:
    """The run to do next."""

    cluster: Cluster  # a plan that trains on such VMs
    count: int  # the fewest of them from which its speed follows
    batch: float  # samples that a GPU of the plan computes at once
    precision: Precision
    checkpointing: bool
    minutes: float
    usd: Decimal
    gain: float  # expected, in speed, as a share
    changes: float  # probability that another plan is then best


@dataclass(frozen=True)
class PlanUncertainty:
    """Uncertainty of plans on a log scale: medians (plans,), weight of causes (plans, causes).

    ``observed``, (causes,): 0 for reading, since runs train on random samples, else 1. The noise of
    a single run is not among the causes.
    """

    median: FloatArray
    causes: FloatArray
    observed: FloatArray = field(default_factory=lambda: np.ones(()))

    def gain_of(self, measured: int) -> tuple[float, float]:
        """Expected gain of measuring a plan's machine, and probability that the first changes."""
        observed = self.causes[measured] * self.observed
        signal = self.causes @ observed / np.sqrt(observed @ observed + NOISE**2)
        then = self.median + np.outer(_normal_quantiles(), signal)
        ahead = then - then[:, [0]]
        # A plan that leads by its median is not first: that lead was not worth its price
        needed = np.log(VALUE_TOLERANCE) + np.maximum(self.median - self.median[0], 0.0)
        gains = np.where(ahead > needed, ahead, 0.0).max(axis=1)
        return float(np.expm1(gains.mean())), float((gains > 0).mean())


@lru_cache(maxsize=1)
def _normal_quantiles() -> FloatArray:
    from statistics import NormalDist  # 6 ms, for the reasons only

    normal = NormalDist()
    return np.array([normal.inv_cdf((i + 0.5) / _POINTS) for i in range(_POINTS)])


def rivals(catalog: Catalog, request: PlanRequest) -> tuple[list[Choice], PlanUncertainty]:
    """The best plans of each machine within the budget, in order, and their uncertainty."""
    candidates = gather(catalog, request)
    choices = weighed(candidates.plans(), request.budget_micro_usd, MAX_PLANS)
    median = np.array([float(np.log(c.block.sizes.effective[c.size])) for c in choices])
    doubts = [d for c in choices if (d := doubt_of(c)) is not None]
    names = list(dict.fromkeys(name for doubt in doubts for name in doubt.named))
    named = np.zeros((len(doubts), len(names)))
    for row, doubt in enumerate(doubts):
        for name, value in doubt.named.items():
            named[row, names.index(name)] = value[0]
    shared = np.array([doubt.shared[0] for doubt in doubts]).reshape(len(doubts), -1)
    observed = [1.0] * shared.shape[1] + [float(name != READING) for name in names]
    return choices, PlanUncertainty(median, np.hstack([shared, named]), np.array(observed))


def next_measurement(choices: Sequence[Choice], doubts: PlanUncertainty) -> NextMeasurement | None:
    """The measurement with the highest expected gain; None where none is worth a run."""
    runs = []
    for place, choice in enumerate(choices):
        speed = choice.speed
        # What was measured already is not worth a run
        if speed is None or (speed.covered is not None and speed.covered[0]):
            continue
        gain, changes = doubts.gain_of(place)
        run = _run_of(choice, speed, gain, changes)
        if gain >= MIN_GAIN and run.minutes <= MAX_MINUTES:
            runs.append(run)
    return max(runs, key=lambda run: (round(run.gain, 3), -run.usd), default=None)


def _run_of(choice: Choice, speed: TrainingSpeed, gain: float, changes: float) -> NextMeasurement:
    gpu = choice.gpu
    # The fewest VMs whose measurement still covers the plan's size, by the factor REACH.
    count = next(n for n in itertools.count(1) if int(REACH * n) >= choice.gpu_count)
    runs = (count.bit_length() + (count & (count - 1) > 0)) * BATCHES * REPEATS
    minutes = START_MIN + runs * (RUN_S + STEPS * float(speed.step_s[0])) / 60
    price = gpu.spot_usd_per_hour or gpu.on_demand_usd_per_hour or Decimal(0)
    usd = (price * count * Decimal(minutes) / 60).quantize(Decimal("0.01"))
    return NextMeasurement(
        choice.cluster,
        count,
        batch=float(speed.micro_batch[0]),
        precision=speed.precision,
        checkpointing=bool(speed.checkpointing[0]),
        minutes=minutes,
        usd=usd,
        gain=gain,
        changes=changes,
    )
