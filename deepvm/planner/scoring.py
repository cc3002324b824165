"""The meaning of "best": DeepVM's objectives and baselines (V-C1) as a score per (type, n).

Solver and enumeration find the highest feasible score, and the cheaper plan among equals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deepvm.planner.columns import BoolArray, FloatArray, IntArray, TrainingTable
from deepvm.planner.request import Objective, PlanRequest, PolicyName

TIE = 1e-9  # relative difference up to which values are equal


@dataclass(frozen=True)
class Scoring:
    """One positive score to maximise for each row of the sizes.

    ``per_dollar``: a plan's value is not its size's score but minus price / score, memory nodes
    included.
    """

    scores: FloatArray
    per_dollar: bool = False

    def take(self, rows: BoolArray | IntArray) -> Scoring:
        """Some of the rows."""
        return Scoring(self.scores[rows], self.per_dollar)

    def values(self, rows: IntArray, prices: IntArray) -> FloatArray:
        """Values of plans, given their rows and prices, micro-dollars an hour; higher is better."""
        scores = self.scores[rows]
        if self.per_dollar:
            return -(prices / scores)
        return scores


def tie_floor(best: float) -> float:
    """The lowest value that still counts as equal to ``best``."""
    return best - abs(best) * TIE


def scoring(request: PlanRequest, sizes: TrainingTable) -> Scoring:
    """The score of each size under the request's policy and objective.

    ``noscale`` is DeepVM with K = 1. ``cost-first`` takes the most VMs. ``performance-first`` takes
    the type with the highest eFLOPS, then the most VMs. The baselines have no objective.
    """
    if request.policy is PolicyName.COST_FIRST:
        return Scoring(sizes.count.astype(np.float64))
    if request.policy is PolicyName.PERFORMANCE_FIRST:
        eflops = np.array([t.eflops or 0.0 for t in sizes.types])
        order = np.unique(eflops, return_inverse=True)[1] + 1
        biggest = int(sizes.count.max(initial=0)) + 1
        # One whole number that sorts like (eFLOPS, n).
        return Scoring((order[sizes.type_index] * biggest + sizes.count).astype(np.float64))
    ideal = request.policy is PolicyName.NOSCALE
    if ideal:
        work, z = (sizes.ideal_throughput, sizes.ideal_z)
    else:
        work, z = (sizes.effective, sizes.z * sizes.kept)
    if request.objective is Objective.FLOPP:
        return Scoring(z)
    if request.needs_work:
        bill = request.objective is Objective.TOTAL_COST
        if ideal:  # it ignores K and preemptions: more eFLOPS end a job sooner
            return Scoring(work, per_dollar=bill)
        # Jobs an hour: the bill of a job is price / score.
        return Scoring(3600 / (sizes.billed_s if bill else sizes.total_s), per_dollar=bill)
    return Scoring(work, per_dollar=request.objective is Objective.COST_PER_WORK)
