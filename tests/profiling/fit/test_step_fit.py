"""A fit of measured steps: its document, what it warns of, what a step consists of."""

from __future__ import annotations

import json

import numpy as np
import pytest

from deepvm.core.arrays import FloatArray
from deepvm.core.training.steptime import Steps, StepTimeLaw
from deepvm.errors import RequestError
from deepvm.profiling.fit.points import StepQuestion
from deepvm.profiling.fit.step_fit import StepFit, fit_step_time

LAW = StepTimeLaw(0.05, 0.004, 0.04, 0.02, 0.3, 0.006, 3.0, 0.02)
SIZES = [(1, 1), (1, 2), (1, 4), (2, 2), (2, 8), (3, 12), (4, 4), (4, 16)]
BATCHES = [8.0, 32.0, 128.0]


def steps(sizes: list[tuple[int, int]] = SIZES, batches: list[float] = BATCHES) -> Steps:
    rows = np.array([(n, gpus, batch) for n, gpus in sizes for batch in batches], dtype=np.float64)
    own: list[FloatArray] = [rows[:, 0], rows[:, 1], rows[:, 2]]
    return Steps(*own, LAW.step_s(*own))


def fitted(*asked: tuple[int, int, float], **more: object) -> StepFit:
    return fit_step_time(steps(**more), [StepQuestion(*one) for one in asked])  # type: ignore[arg-type]


def test_the_document() -> None:
    found = fitted((8, 32, 128.0), (1, 1, 8.0)).document()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert list(found) == [
        "schema_version",
        "law",
        "row_count",
        "error",
        "measured_to",
        "predictions",
        "warnings",
    ]
    assert found["schema_version"] == "deepvm.steptime/1"
    assert list(found["law"]) == [
        "grad_fixed",
        "grad_per_sample",
        "local_fixed",
        "local_per_gpu",
        "network_fixed",
        "network_per_gpu",
        "overlap",
        "straggling",
    ]
    assert (found["row_count"], found["measured_to"]) == (24, {"nodes": 4, "gpus": 16})
    far, near = found["predictions"]
    assert list(far) == ["nodes", "gpus", "batch", "step_s", "throughput", "extrapolated"]
    assert (far["nodes"], far["gpus"], far["batch"], far["extrapolated"]) == (8, 32, 128.0, True)
    assert not near["extrapolated"]
    assert near["step_s"]["value"] == pytest.approx(0.05 + 0.032, rel=0.02)
    for place, other in (("low", "high"), ("value", "value"), ("high", "low")):
        assert far["throughput"][place] == pytest.approx(32 * 128 / far["step_s"][other])
    assert all(
        type(value) is float for one in (far["step_s"], far["throughput"]) for value in one.values()
    )


def test_without_predictions() -> None:
    found = fitted().document()
    assert (found["predictions"], found["warnings"]) == ([], [])


def test_what_predictions_are_warned_of() -> None:
    for asked, extrapolated, warned in [
        ((4, 16, 32.0), False, None),
        ((6, 24, 32.0), False, None),
        ((7, 24, 32.0), True, "more than 1.5 x what was measured, 4 VMs and 16 GPUs"),
        ((4, 32, 32.0), True, "more GPUs in a VM than were measured, 4"),
        (
            (4, 16, 130.0),
            False,
            "the batch lies outside what was measured, 8 to 128 samples on each GPU",
        ),
        (
            (4, 16, 200.0),
            True,
            "the batch lies outside what was measured, 8 to 128 samples on each GPU",
        ),
        (
            (4, 16, 1.0),
            True,
            "the batch lies outside what was measured, 8 to 128 samples on each GPU",
        ),
        ((1, 8, 32.0), True, "more GPUs in a VM than were measured, 4"),
    ]:
        found = fitted(asked)
        assert found.predictions[0].extrapolated == extrapolated
        expected = (
            [f"nodes={asked[0]},gpus={asked[1]},batch={asked[2]:g}: {warned}"] if warned else []
        )
        assert list(found.warnings[:1]) == expected


def test_many_predictions_are_warned_of_at_once() -> None:
    found = fitted(*((n, 4 * n, 32.0) for n in (8, 16, 32, 64)))
    assert found.warnings[0].startswith(
        "nodes=8,gpus=32,batch=32, nodes=16,gpus=64,batch=32 and 2 more: more than 1.5 x"
    )


def test_what_is_said_of_little() -> None:
    for sizes, batches, asked, warned in [
        (
            [(1, 1), (1, 2), (1, 4)],
            BATCHES,
            (2, 2, 8.0),
            "nothing was measured that synchronizes so",
        ),
        ([(1, 1), (1, 2), (1, 4)], BATCHES, None, "nothing was measured on several VMs"),
        ([(1, 1), (2, 2), (2, 4), (2, 8)], BATCHES, None, "of several VMs only 2 were measured"),
        (
            [(1, 1), (2, 2), (4, 4), (8, 8)],
            BATCHES,
            None,
            "nothing was measured with several GPUs in a VM",
        ),
        (
            [(1, 1), (1, 2), (2, 8), (4, 16)],
            BATCHES,
            None,
            "of several GPUs in one VM only 2 were measured",
        ),
        (
            [(1, 1), (1, 2), (2, 8), (4, 16)],
            BATCHES,
            (1, 4, 8.0),
            "more GPUs in a VM than were measured, 2",
        ),
        (
            [(1, 1), (2, 8), (3, 12), (4, 16)],
            BATCHES,
            None,
            "no VM with several GPUs was measured alone",
        ),
        ([(2, 2), (3, 3), (4, 4)], BATCHES, None, "no single GPU was measured"),
        (
            [(2, 2), (3, 3), (4, 4)],
            BATCHES,
            (1, 1, 8.0),
            "smaller than what was measured, 2 VMs and 2 GPUs",
        ),
        (SIZES, [32.0], None, "only a batch of 32 was measured"),
        (
            SIZES,
            [32.0],
            (1, 1, 33.0),
            "the batch lies outside what was measured, 32 samples on each GPU",
        ),
        (
            [(1, 1), (1, 2), (2, 2)],
            [8.0, 32.0],
            None,
            "only 6 different clusters and batches were measured",
        ),
    ]:
        found = fit_step_time(steps(sizes, batches), [StepQuestion(*asked)] if asked else [])
        assert any(warned in text for text in found.warnings), found.warnings


def test_steps_that_no_law_describes() -> None:
    own = steps()
    random = np.random.default_rng(0)
    wild = Steps(
        own.nodes, own.gpus, own.batch, own.step_s * np.exp(random.standard_normal(len(own)))
    )
    assert "% or more off the law: were they the same work?" in fit_step_time(wild).warnings[-1]


def test_too_little_names_the_file_and_what_to_measure() -> None:
    with pytest.raises(
        RequestError, match=r"POINTS: '1 row' .* at least 4 .* measure several batches"
    ):
        fitted(sizes=[(1, 1)], batches=[8.0])


def test_a_small_batch_is_dominated_by_the_network() -> None:
    found = fitted()
    small, large = found.shares(8.0), found.shares(128.0)
    assert small.asked == StepQuestion(4, 16, 8.0)
    assert small.sync_s > small.grad_s and large.grad_s > large.sync_s
    for one in (small, large):
        assert max(one.grad_s, one.sync_s) <= one.step_s <= one.grad_s + one.sync_s
