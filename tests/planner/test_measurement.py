from __future__ import annotations

from math import log
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples

from deepvm import load_catalog
from deepvm.catalog.published.performance import PublishedPerformance
from deepvm.catalog.published.workloads import read_workload
from deepvm.core.training.evidence import NOISE
from deepvm.core.training.speed import Training
from deepvm.planner.measurement import PlanUncertainty, next_measurement, rivals
from deepvm.planner.ranking import faster_probability
from deepvm.planner.request import PlanRequest


@st.composite
def doubts(draw: st.DrawFn) -> PlanUncertainty:
    plans, causes = draw(st.integers(2, 5)), draw(st.integers(1, 4))
    number = st.floats(-0.5, 0.5)
    median = draw(st.lists(number, min_size=plans, max_size=plans))
    rows = st.lists(number, min_size=causes, max_size=causes)
    return PlanUncertainty(
        np.array(median), np.array(draw(st.lists(rows, min_size=plans, max_size=plans)))
    )


@settings(max_examples=examples(25), deadline=None)
@given(doubts(), st.data())
def test_the_gain_is_that_of_simulated_measurements(
    found: PlanUncertainty, data: st.DataObject
) -> None:
    """The oracle: draw the truth, measure, believe, choose."""
    measured = data.draw(st.integers(0, len(found.median) - 1))
    random = np.random.default_rng(7)
    truth = random.normal(size=(40_000, found.causes.shape[1])) @ found.causes.T
    seen = truth[:, measured] + random.normal(scale=NOISE, size=len(truth))
    covariance = found.causes @ found.causes.T
    known = covariance[:, measured] / (covariance[measured, measured] + NOISE**2)
    believed = found.median + np.outer(seen, known)
    lead = believed - believed[:, [0]]
    decides = lead > log(1.01) + np.maximum(found.median - found.median[0], 0)
    chosen = np.where(decides, lead, 0).argmax(axis=1)
    faster = (found.median + truth)[np.arange(len(truth)), chosen] - (found.median + truth)[:, 0]
    gain, changes = found.gain_of(measured)
    assert gain == pytest.approx(np.expm1(faster.mean()), abs=0.03)
    assert changes == pytest.approx((chosen != 0).mean(), abs=0.06)


@settings(max_examples=examples(100))
@given(doubts())
def test_probabilities_add_up(found: PlanUncertainty) -> None:
    """Faster, slower, or within the 1 % that does not decide."""
    c, ahead = found.causes @ found.causes.T, float(found.median[0] - found.median[1])
    apart = NormalDist(ahead, max(float(c[0, 0] + c[1, 1] - 2 * c[0, 1]), 1e-12) ** 0.5)
    as_good = apart.cdf(log(1.01)) - apart.cdf(-log(1.01))
    distance = float(np.linalg.norm(found.causes[0] - found.causes[1]))
    odds = faster_probability(ahead, distance) + faster_probability(-ahead, distance)
    assert odds + as_good == pytest.approx(1)


def test_what_is_known_needs_no_measurement() -> None:
    sure = PlanUncertainty(np.array([0.0, -0.1]), np.zeros((2, 3)))
    assert sure.gain_of(0) == (0.0, 0.0) and faster_probability(0.1, 0.0) == pytest.approx(1)


def test_doubt_that_plans_share_changes_nothing() -> None:
    """More of the same GPU: what is wrong with one is wrong with the other."""
    shared = PlanUncertainty(np.array([0.1, 0.0]), np.array([[0.5], [0.5]]))
    gain, changes = shared.gain_of(0)
    assert gain == pytest.approx(0, abs=1e-12) and changes == 0
    assert faster_probability(-0.1, 0.0) < 1e-6


def test_a_cheap_gpu_of_which_nothing_is_published_is_worth_a_run() -> None:
    catalog = load_catalog("aws", offline=True)
    training = Training(read_workload(model="llama-8b", method="fsdp"), PublishedPerformance())
    request = PlanRequest.parse(30, training=training, quotas=())
    found = next_measurement(*rivals(catalog, request))
    assert found is not None
    assert 0.005 < found.gain < 1 and 0 < found.changes < 1
    assert found.cluster.gpu_count <= int(1.5 * found.count) < 1.5 * found.cluster.gpu_count + 1.5
    assert 0 < found.usd < 100 and found.minutes > 8 and found.batch >= 1
    choices, known = rivals(catalog, request)
    assert found.cluster.gpu.name in {c.cluster.gpu.name for c in choices}
    assert next_measurement(choices, PlanUncertainty(known.median, 0 * known.causes)) is None


def test_a_run_does_not_tell_how_fast_samples_are_read() -> None:
    """Runs train on random samples: a machine of which only the reading is in doubt is not worth
    one.
    """
    median, causes = np.array([0.1, 0.0]), np.array([[0.0], [0.5]])
    assert PlanUncertainty(median, causes).gain_of(1)[0] > 0.1
    assert PlanUncertainty(median, causes, np.zeros(1)).gain_of(1) == (0.0, 0.0)
