"""What published measurements teach about step time: a linear model of its error.

The logarithm of (measured over nominal throughput) is a sum of effects: of the GPU's generation,
the GPU, the precision, the family of models, the model, the software, sizes; of the network; of the
slowest GPU, within a VM and across VMs. Each effect is 0 before anything is measured, give or take
a standard deviation that :data:`PRIOR` states (random effects, as in Gelman et al., *Bayesian Data
Analysis*, chapter 15). So what was measured on one GPU says a lot about it, less about its
generation, little about the rest, and the intervals say so. Effects on gradients count by the
gradients' share of the step, effects on synchronization by its share.

Leave-one-out predictions are exact and need no second fit: with C the covariance of the rows, those
of row i are ``y_i - [C^-1 y]_i / [C^-1]_ii`` and variance ``1 / [C^-1]_ii`` (Sundararajan and
Keerthi 2001, eq. 9-11).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from deepvm.core.arrays import FloatArray
from deepvm.records import dataclass

# Parts of a step that an effect is on. The last two: how gradients take longer with the GPUs of a
# VM, and with VMs.
COMPUTE, NETWORK, LOCAL, ACROSS = range(4)
PARTS = 4

PRIOR: Mapping[str, tuple[int, float]] = {
    # effect: the part of the step that it is on, and its standard deviation on a logarithmic scale
    "all": (COMPUTE, 0.3),
    "generation": (COMPUTE, 0.15),
    "gpu": (COMPUTE, 0.06),
    "board": (COMPUTE, 0.06),
    "precision": (COMPUTE, 0.3),
    "gpu+precision": (COMPUTE, 0.12),
    "memory": (COMPUTE, 0.2),
    "memory of": (COMPUTE, 0.05),
    "family": (COMPUTE, 0.6),
    "family+generation": (COMPUTE, 0.1),
    "model": (COMPUTE, 0.12),
    "counted model": (COMPUTE, 0.2),
    "model+gpu": (COMPUTE, 0.08),
    "software": (COMPUTE, 0.2),
    "software memory": (COMPUTE, 0.5),
    "method": (COMPUTE, 0.05),
    "checkpointing": (COMPUTE, 0.1),
    "log parameters": (COMPUTE, 0.1),
    "log parameters below 1e9": (COMPUTE, 0.1),
    "log tokens": (COMPUTE, 0.05),
    "log sequence": (COMPUTE, 0.05),
    "model: log sequence": (COMPUTE, 0.06),
    "model+gpu: log batch": (COMPUTE, 0.15),
    "model+gpu: inverse batch": (COMPUTE, 0.3),
    "network": (NETWORK, 0.4),
    "link": (NETWORK, 0.4),
    "link+gpu": (NETWORK, 0.3),
    "machine": (NETWORK, 0.4),
    "model: network": (NETWORK, 0.2),
    "local": (LOCAL, 0.02),
    "model: local": (LOCAL, 0.02),
    "model+gpu: local": (LOCAL, 0.05),
    # Of a prediction only. Learnt of each source, it would take what its runs say of their GPU or
    # model, of which most sources have the only runs.
    "another site": (COMPUTE, 0.2),
    "site: local": (LOCAL, 0.1),
    "across": (ACROSS, 0.02),
    "network: across": (ACROSS, 0.02),
    "model: across": (ACROSS, 0.02),
    "model+gpu: across": (ACROSS, 0.03),
    "site: across": (ACROSS, 0.05),
}
NOISE = 0.05  # Standard deviation between two runs of the same, on a logarithmic scale

# Values of the effects that apply to a row, by name; ``gpu=A100`` is an effect of kind ``gpu``
Effects = Mapping[str, float]


def kind(effect: str) -> str:
    """The kind of an effect, a key of :data:`PRIOR`; users chose some names after the ``=``."""
    return effect.partition("=")[0]


@dataclass(frozen=True)
class Row:
    """One comparison: effects, shares of the step, and log(measured / nominal)."""

    effects: Effects
    sync_share: float
    log_local: float
    log_vms: float
    error: float
    noise: float = NOISE

    @property
    def weights(self) -> FloatArray:
        return weights(self.sync_share, self.log_local, self.log_vms)


def weights(
    sync_share: FloatArray | float, log_local: FloatArray | float, log_vms: FloatArray | float
) -> FloatArray:
    """By how many per cent the throughput changes with 1 % of each part, (n, parts)."""
    compute = 1.0 - sync_share
    return np.stack([compute, sync_share, -log_local * compute, -log_vms * compute], axis=-1)


def design(rows: Sequence[Row], names: Mapping[str, int]) -> FloatArray:
    """(rows, effects): how much each effect counts per row; ones not in ``names`` are left out."""
    matrix = np.zeros((len(rows), len(names)))
    for i, row in enumerate(rows):
        share = row.weights
        for effect, value in row.effects.items():
            if effect in names:
                matrix[i, names[effect]] = value * share[PRIOR[kind(effect)][0]]
    return matrix


@dataclass(frozen=True, eq=False)  # so that caches take it as a key
class Evidence:
    """What is known of the effects: ``mean``, and ``root``, R, whose R R^T is the covariance."""

    names: Mapping[str, int]
    mean: FloatArray
    root: FloatArray

    @property
    def covariance(self) -> FloatArray:
        return self.root @ self.root.T

    def loading(self, effects: Effects, varying: Mapping[str, FloatArray]) -> "Loading":
        matrix = np.zeros((PARTS, len(self.names)))
        unknown = {}
        for effect, value in effects.items():
            if effect in self.names:
                matrix[PRIOR[kind(effect)][0], self.names[effect]] = value
            else:
                unknown[effect] = value
        return Loading(self, matrix, unknown, varying)


@dataclass(frozen=True)
class Loading:
    """How much effects count in the parts of several steps."""

    evidence: Evidence
    known: FloatArray  # (parts, effects), equal in all steps
    unknown: Mapping[str, float]  # values of effects that no row had
    varying: Mapping[str, FloatArray]  # values in each step, (steps,)

    @property
    def mean(self) -> FloatArray:
        """Expected log(measured / nominal), (steps, parts) or (1, parts)."""
        found = np.atleast_2d(self.known @ self.evidence.mean)
        for effect, values in self.varying.items():
            if effect in self.evidence.names:
                mean = self.evidence.mean[self.evidence.names[effect]]
                found = found + np.outer(values, _unit(effect)) * mean
        return found

    def shared(self, weights: FloatArray) -> FloatArray:
        """How much independent causes count, (steps, effects), given :func:`weights` of each."""
        found = weights @ (self.known @ self.evidence.root)
        for effect, values in self.varying.items():
            if effect in self.evidence.names:
                count = (weights @ _unit(effect)) * values
                found = found + np.outer(count, self.evidence.root[self.evidence.names[effect]])
        return found

    def unlearned(self, weights: FloatArray) -> dict[str, FloatArray]:
        """The deviations of what no row had, which keeps its prior, (steps,) by name."""
        values: Mapping[str, float | FloatArray] = {**self.unknown, **self.varying}
        names = (effect for effect in values if effect not in self.evidence.names)
        return {e: (weights @ _unit(e)) * values[e] * PRIOR[kind(e)][1] for e in names}


def _unit(effect: str) -> FloatArray:
    """1 for the part that an effect is on, (parts,)."""
    return np.asarray(np.eye(PARTS)[PRIOR[kind(effect)][0]])


def learn(rows: Sequence[Row]) -> Evidence:
    """The effects after the rows: the posterior of the linear model."""
    names = _names(rows)
    x = design(rows, names)
    sd = _deviations(names)
    y = np.array([row.error for row in rows])
    certainty = 1.0 / np.array([row.noise for row in rows]) ** 2
    covariance = np.linalg.inv((x.T * certainty) @ x + np.diag(1.0 / sd**2))
    return Evidence(names, covariance @ (x.T @ (certainty * y)), np.linalg.cholesky(covariance))


def leave_out(
    rows: Sequence[Row], groups: Sequence[object] | None = None
) -> tuple[FloatArray, FloatArray]:
    """What the other rows, or those of other ``groups``, predict for each row's error.

    Mean and deviation, with the noise of a run.
    """
    y = np.array([row.error for row in rows])
    names = _names(rows)
    x = design(rows, names) * _deviations(names)
    inverse = np.linalg.inv(x @ x.T + np.diag([row.noise**2 for row in rows]))
    weighted = inverse @ y
    if groups is None:
        own = np.diag(inverse)
        return y - weighted / own, 1.0 / np.sqrt(own)
    mean = np.zeros(len(rows))
    sd = np.zeros(len(rows))
    for group in dict.fromkeys(groups):
        places = np.flatnonzero([g == group for g in groups])
        # The same for a block: C_BB given the others is the inverse of that block of C^-1.
        covariance = np.linalg.inv(inverse[np.ix_(places, places)])
        mean[places] = y[places] - covariance @ weighted[places]
        sd[places] = np.sqrt(np.diag(covariance))
    return mean, sd


def _names(rows: Sequence[Row]) -> dict[str, int]:
    return {name: i for i, name in enumerate(sorted({e for row in rows for e in row.effects}))}


def _deviations(names: Mapping[str, int]) -> FloatArray:
    return np.array([PRIOR[kind(name)][1] for name in names])
