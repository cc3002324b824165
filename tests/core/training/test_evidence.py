from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from calibrate_performance import only
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples

from deepvm.core.arrays import FloatArray
from deepvm.core.training.evidence import NOISE, PRIOR, Loading, Row, kind, learn, leave_out

GPUS, MODELS = ["a", "b", "c"], ["m", "n"]


def row(gpu: str, model: str, error: float, *, share: float = 0.2, vms: int = 2) -> Row:
    effects = {
        "all": 1.0,
        f"gpu={gpu}": 1.0,
        f"model={model}": 1.0,
        "network=net": 1.0,
        "across": 1.0,
    }
    return Row(effects, share, log_local=np.log(4), log_vms=np.log(vms), error=error)


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    one = st.builds(
        row,
        st.sampled_from(GPUS),
        st.sampled_from(MODELS),
        st.floats(-1, 1),
        share=st.floats(0, 1),
        vms=st.integers(1, 64),
    )
    return draw(st.lists(one, min_size=3, max_size=12))


def predicted(others: list[Row], left: Row) -> tuple[float, float]:
    """The oracle: learn from the others, then predict."""
    found = learn(others)
    loading, share = found.loading(left.effects, {}), left.weights[None, :]
    mean = float((share @ loading.mean[0])[0])
    return mean, (doubt_of(loading, share) + left.noise**2) ** 0.5


def doubt_of(loading: Loading, share: FloatArray, step: int = 0) -> float:
    """The variance of one step, without the noise of a run."""
    own = sum(float(deviation[step]) ** 2 for deviation in loading.unlearned(share).values())
    return float((loading.shared(share)[step] ** 2).sum()) + own


@settings(max_examples=examples(50))
@given(rows(), st.lists(st.floats(-2, 2), min_size=1, max_size=4), st.sampled_from(["a", "new"]))
def test_effects_that_differ_between_steps_count_as_if_each_step_were_alone(
    known: list[Row], values: list[float], gpu: str
) -> None:
    found, effects, varying = learn(known), row("a", "m", 0.0).effects, f"gpu={gpu}"
    others = {name: value for name, value in effects.items() if name != varying}
    share = np.repeat(row("a", "m", 0.0).weights[None, :], len(values), axis=0)
    together = found.loading(others, {varying: np.array(values)})
    mean = np.broadcast_to(together.mean, share.shape)
    for step, value in enumerate(values):
        alone = found.loading({**others, varying: value}, {})
        assert mean[step] == pytest.approx(alone.mean[0])
        assert doubt_of(together, share, step) == pytest.approx(doubt_of(alone, share[:1]))


@settings(max_examples=examples(50))
@given(rows())
def test_leaving_one_out_is_learning_from_the_others(given_rows: list[Row]) -> None:
    mean, sd = leave_out(given_rows)
    for i, left in enumerate(given_rows):
        others = given_rows[:i] + given_rows[i + 1 :]
        assert (mean[i], sd[i]) == pytest.approx(predicted(others, left), rel=1e-6, abs=1e-9)


@settings(max_examples=examples(50))
@given(rows())
def test_leaving_a_group_out_is_learning_from_the_other_groups(given_rows: list[Row]) -> None:
    groups = [next(e for e in r.effects if e.startswith("model=")) for r in given_rows]
    mean, sd = leave_out(given_rows, groups)
    for i, left in enumerate(given_rows):
        others = [r for r, group in zip(given_rows, groups, strict=True) if group != groups[i]]
        if others:
            assert (mean[i], sd[i]) == pytest.approx(predicted(others, left), rel=1e-6, abs=1e-9)


def test_effects_that_made_the_rows_are_found() -> None:
    true = {"gpu=a": 0.1, "gpu=b": -0.1, "gpu=c": 0.05, "model=m": 0.2, "model=n": -0.2}
    noise = np.random.default_rng(1)
    made = []
    for gpu in GPUS:
        for model in MODELS:
            for _ in range(40):
                error = true[f"gpu={gpu}"] + true[f"model={model}"] + noise.normal(0, NOISE)
                made.append(row(gpu, model, error, share=0.0, vms=1))
    found = learn(made)
    differences = [("gpu=a", "gpu=b"), ("gpu=c", "gpu=b"), ("model=m", "model=n")]
    for left, right in differences:
        difference = found.mean[found.names[left]] - found.mean[found.names[right]]
        # Priors pull effects towards 0, by a fifth at most here.
        assert difference == pytest.approx(true[left] - true[right], rel=0.2)


def test_the_interval_widens_with_the_distance_from_what_was_measured() -> None:
    found = learn([row("a", "m", 0.1) for _ in range(20)])

    def doubt(gpu: str, model: str) -> float:
        other = row(gpu, model, 0.0)
        return doubt_of(found.loading(other.effects, {}), other.weights[None, :])

    assert doubt("a", "m") < doubt("b", "m") < doubt("b", "n")


def test_some_of_the_effects_keep_mean_and_covariance() -> None:
    whole = learn(
        [row(g, m, 0.1 * i) for i, (g, m) in enumerate((g, m) for g in GPUS for m in MODELS)]
    )
    part = only(whole, lambda name: name.startswith("gpu="))
    assert set(part.names) == {"gpu=a", "gpu=b", "gpu=c"}
    for name, place in part.names.items():
        assert part.mean[place] == whole.mean[whole.names[name]]
        for other, column in part.names.items():
            expected = whole.covariance[whole.names[name], whole.names[other]]
            assert part.covariance[place, column] == pytest.approx(expected)


def test_a_noisy_row_teaches_less() -> None:
    def learnt(noise: float) -> float:
        found = learn([replace(row("a", "m", 0.5), noise=noise)])
        return float(found.mean[found.names["gpu=a"]])

    assert abs(learnt(1.0)) < abs(learnt(0.05))


def test_each_kind_of_effect_has_a_prior() -> None:
    assert (
        kind("gpu=A100") == "gpu"
        and kind("model: log sequence=mpt-7b") == "model: log sequence"
        and kind("all") == "all"
        and kind("model=lr=0.1") == "model"
    )
    assert all(sd > 0 for _, sd in PRIOR.values())
