"""How long one step of data-parallel training takes: the step-time law.

Pollux (OSDI 2021, eq. 8-11): a step is the gradients of one GPU's batch and their synchronisation, which overlap::

    T = (T_grad^g + T_sync^g)^(1/g)                      g = 1: one after the other; g -> infinity: the longer of both
    T_grad = (a_g + b_g b) K^d                           b samples on each of K GPUs
    T_sync = 0                       K = 1
             a_l + b_l max(K - 2, 0)         K GPUs of one VM
             a_n + b_n max(K - 2, 0)         K GPUs of several VMs
    throughput = K b / T

``d`` is ours; in Pollux it is 0. A step ends with its slowest GPU, so T_grad itself grows with K: on four to eight
g4dn.12xlarge a batch of 200 takes 5 to 18 % longer than on one GPU although synchronisation is hidden (published rows
of ``data/performance``). Fitted on up to four VMs it takes the error of the speed-up of eight from 8 % to 3 %.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

import numpy as np
import numpy.typing as npt

from deepvm.core.interval import Z80, Interval
from deepvm.errors import RequestError

FloatArray = npt.NDArray[np.float64]

FEWEST = 4
"""Rows that a fit needs, of at least two sizes or batches."""
REACH = 1.5
"""How far beyond the largest measured cluster the law is to be believed, as a factor."""
_LONGEST = np.log(1e5)  # of each part of a step, seconds
_SHORTEST = np.log(1e-9)
_MOST_OVERLAP, _MOST_STRAGGLING = 10.0, 0.3
_ROBUST = 0.1  # residuals beyond it count less than squared: single runs on a cloud are now and then far off


@dataclass(frozen=True)
class StepTimeLaw:
    """Parameters of the law, in seconds but for ``overlap`` and ``straggling``.

    Attributes:
        grad_fixed, grad_per_sample: a_g, b_g. local_fixed, local_per_gpu: a_l, b_l, within a VM. network_fixed,
            network_per_gpu: a_n, b_n, between VMs. overlap: g >= 1. straggling: d >= 0.
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
        return np.asarray((self.grad_fixed + self.grad_per_sample * batch) * gpus**self.straggling)

    def sync_s(self, nodes: FloatArray, gpus: FloatArray) -> FloatArray:
        """T_sync in seconds on ``gpus`` GPUs of ``nodes`` VMs together."""
        more = np.maximum(gpus - 2, 0)
        local = self.local_fixed + self.local_per_gpu * more
        network = self.network_fixed + self.network_per_gpu * more
        return np.where(gpus <= 1, 0.0, np.where(nodes > 1, network, local))

    def step_s(self, nodes: FloatArray, gpus: FloatArray, batch: FloatArray) -> FloatArray:
        """T in seconds."""
        return joined(self.grad_s(gpus, batch), self.sync_s(nodes, gpus), self.overlap)

    def throughput(self, nodes: FloatArray, gpus: FloatArray, batch: FloatArray) -> FloatArray:
        """Samples a second of all GPUs."""
        return np.asarray(gpus * batch / self.step_s(nodes, gpus, batch))

    def slower(self, compute: float, network: float) -> StepTimeLaw:
        """The law with T_grad and T_sync multiplied by these factors."""
        return replace(
            self,
            grad_fixed=self.grad_fixed * compute,
            grad_per_sample=self.grad_per_sample * compute,
            local_fixed=self.local_fixed * network,
            local_per_gpu=self.local_per_gpu * network,
            network_fixed=self.network_fixed * network,
            network_per_gpu=self.network_per_gpu * network,
        )


def joined(grad_s: FloatArray, sync_s: FloatArray, overlap: float) -> FloatArray:
    """(T_grad^g + T_sync^g)^(1/g), without overflow (Pollux eq. 10)."""
    longer, shorter = np.maximum(grad_s, sync_s), np.minimum(grad_s, sync_s)
    ratio = np.divide(shorter, longer, out=np.zeros_like(longer), where=longer > 0)
    return np.asarray(longer * (1.0 + ratio**overlap) ** (1.0 / overlap))


@dataclass(frozen=True)
class Steps:
    """Measured steps: arrays of one length; ``batch`` on each GPU, ``step_s`` in seconds."""

    nodes: FloatArray
    gpus: FloatArray
    batch: FloatArray
    step_s: FloatArray

    def __len__(self) -> int:
        """How many there are."""
        return len(self.step_s)


@dataclass(frozen=True)
class StepTimeFit:
    """A law fitted to measured steps.

    ``error``: median absolute relative error over them. ``sd``: robust standard deviation of the logarithm of a
    measured step around the law, a sixth of which or more is due to the run and not to the law. ``most_nodes``,
    ``most_gpus``: the largest cluster among them.
    """

    law: StepTimeLaw
    error: float
    sd: float
    most_nodes: int
    most_gpus: int

    def predict(self, nodes: int, gpus: int, batch: float) -> Interval:
        """Seconds of a step, 80 % interval; wider beyond the measured clusters, in proportion to the logarithm."""
        step = float(self.law.step_s(*(np.array([float(v)]) for v in (nodes, gpus, batch)))[0])
        beyond = max(0.0, np.log(gpus / self.most_gpus), np.log(nodes / self.most_nodes))
        return Interval.of_log(step, self.sd * (1.0 + beyond))


def fit_steps(steps: Steps) -> StepTimeFit:
    """Fit the law: least squares of log T, with less weight on rows that are far off, from several starts.

    Parts that nothing was measured of are 0: a file of single VMs says nothing about the network. Raises a
    RequestError for fewer than :data:`FEWEST` rows, or if neither sizes nor batches differ.
    """
    different = len({*zip(steps.nodes.tolist(), steps.gpus.tolist(), steps.batch.tolist(), strict=True)})
    if len(steps) < FEWEST or different < 2:
        allowed = f"at least {FEWEST} measured steps, of at least two clusters or batches"
        raise RequestError("steps", f"{len(steps)} of {different} kinds", allowed)
    found = min((_search(steps, start) for start in _starts(steps)), key=lambda pair: pair[0])
    law = found[1]
    off = np.log(steps.step_s) - np.log(law.step_s(steps.nodes, steps.gpus, steps.batch))
    # 1.4826 x the median absolute deviation is the standard deviation of a normal distribution; tails are heavier here,
    # and the 80 % interval is what is promised.
    sd = max(float(np.quantile(np.abs(off), 0.8)) / Z80, 1e-6)
    return StepTimeFit(law, float(np.median(np.expm1(np.abs(off)))), sd, int(steps.nodes.max()), int(steps.gpus.max()))


def _starts(steps: Steps) -> list[FloatArray]:
    """Where searches begin: shares of the mean step for what synchronises, and several degrees of overlap."""
    alone = steps.gpus == steps.gpus.min()
    batch, step = steps.batch[alone], steps.step_s[alone]
    slope = 0.0
    if len(np.unique(batch)) > 1:
        slope = float(np.polyfit(batch, step, 1)[0])
    per_sample = slope if slope > 0 else 0.5 * float(np.mean(step / batch))
    fixed = max(float(np.median(step - per_sample * batch)), 0.05 * float(np.median(step)))
    mean = float(np.mean(steps.step_s))
    return [
        np.array([fixed, per_sample, 0.3 * share * mean, 0.01 * mean, share * mean, 0.02 * mean, overlap, 0.03])
        for overlap in (1.5, 3.0, 6.0)
        for share in (0.1, 0.5)
    ]


def _search(steps: Steps, start: FloatArray) -> tuple[float, StepTimeLaw]:
    """The cost of the best law near a start, and the law."""
    from scipy.optimize import least_squares  # slow to import, and only fits need it

    several = bool((steps.nodes > 1).any())
    local = bool(((steps.nodes == 1) & (steps.gpus > 1)).any())
    used = np.array([True, True, local, local, several, several, local or several, local or several])
    low = np.array([*([_SHORTEST] * 6), 1.0, 0.0])
    high = np.array([*([_LONGEST] * 6), _MOST_OVERLAP, _MOST_STRAGGLING])
    begin = np.concatenate([np.log(np.maximum(start[:6], 1e-8)), start[6:]])
    measured = np.log(steps.step_s)

    def law_of(values: FloatArray) -> StepTimeLaw:
        whole = np.concatenate([np.full(6, -np.inf), [1.0, 0.0]])
        whole[used] = values
        return StepTimeLaw(*np.exp(whole[:6]).tolist(), *whole[6:].tolist())

    def off(values: FloatArray) -> FloatArray:
        return np.asarray(np.log(law_of(values).step_s(steps.nodes, steps.gpus, steps.batch)) - measured)

    found = least_squares(off, begin[used], bounds=(low[used], high[used]), loss="soft_l1", f_scale=_ROBUST)
    law = law_of(found.x)
    return float(found.cost), StepTimeLaw(*(float(f"{value:.6g}") for value in astuple(law)))
