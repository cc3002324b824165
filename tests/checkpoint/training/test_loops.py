"""Training loops of many shapes, killed at random places and resumed: bit for bit, or warned of.

The shapes and the campaign are in tests/support/checkpoint/loops/. KILLS sets how often each is
killed (slow ring).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.checkpoint.loops.all_shapes import SHAPES, verdict  # noqa: E402
from support.checkpoint.loops.campaign import Campaign, Outcome, warm_up  # noqa: E402
from support.checkpoint.loops.parts import adam, batch, classify, mlp  # noqa: E402
from support.checkpoint.loops.run import Mode, Run, contradictions  # noqa: E402
from support.checkpoint.loops.shape import Hooks, Shape, Steps  # noqa: E402
from support.effort import sampled  # noqa: E402

pytestmark = pytest.mark.xdist_group("loops")  # one process loads what attempts need, once


@pytest.fixture(autouse=True, scope="module")
def loaded() -> None:
    """What attempts need is loaded before they are forked."""
    warm_up()


def quick(name: str, mode: Mode, folder: Path) -> Outcome:
    return Campaign(SHAPES[name], mode, folder, total=16).run(2, repeat=False)


@pytest.mark.parametrize(
    "name",
    sampled(
        [
            "next_batch_with_accumulation",
            "gan_with_spectral_norm",
            "validation_loader",
            "replay_buffer",
            "resumable_loader",
        ]
    ),
)
def test_steps_resume_bit_for_bit(name: str, tmp_path: Path) -> None:
    outcome = quick(name, "steps", tmp_path)
    assert not verdict(SHAPES[name], outcome), str(outcome)


@pytest.mark.parametrize(
    "name",
    sampled(["averaged_model", "next_batch_before_the_forward", "momentum_encoder_at_the_top"]),
)
def test_hooks_resume_bit_for_bit_or_warn(name: str, tmp_path: Path) -> None:
    outcome = quick(name, "hooks", tmp_path)
    assert not verdict(SHAPES[name], outcome), str(outcome)
    assert outcome.warned == (SHAPES[name].hooks is Hooks.WARNED)


def test_a_campaign_sees_what_is_not_restored(tmp_path: Path) -> None:
    class Forgetful:
        """Its position is not restored."""

        position = 0

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    def loop(run: Run) -> None:
        model = mlp()
        optimizer = adam(model)
        forgetful = Forgetful()
        run.checkpoint(model, optimizer, {"forgetful": forgetful})
        for _ in run.iterations():
            inputs, labels = batch()
            optimizer.zero_grad()
            run.loss(classify(model, inputs + forgetful.position, labels)).backward()
            optimizer.step()
            forgetful.position += 1

    outcome = Campaign(
        Shape("forgetful", loop, Hooks.SILENT, Steps.EQUAL), "hooks", tmp_path, total=16
    ).run(1)
    assert not outcome.error and any(outcome.starts)
    assert {"model", "optimizer"} <= set(outcome.different) and "forgetful" not in outcome.different


def test_what_a_run_records_is_compared_step_by_step() -> None:
    whole = [(0, "a"), (1, "b"), (1, "c"), (2, "d")]
    assert contradictions(whole, whole[1:]) == []
    assert contradictions(whole, [(1, "b")]) == []  # cut short by a kill
    assert contradictions(whole, [(1, "b"), (2, "d")]) == [1]
    assert contradictions(whole, [(1, "b"), (1, "x")]) == [1]
    assert contradictions(whole, [(2, "d"), (2, "d")]) == [2]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["steps", "hooks"])
@pytest.mark.parametrize("name", sorted(SHAPES))
def test_every_shape(name: str, mode: Mode, tmp_path: Path) -> None:
    outcome = Campaign(SHAPES[name], mode, tmp_path).run()
    assert not verdict(SHAPES[name], outcome), str(outcome)
