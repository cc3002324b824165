"""Hooks without ``steps``: what changes between the step and the next forward is saved right, or
warned of.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest

torch = pytest.importorskip("torch")

from support.checkpoint.boundaries import (  # noqa: E402
    Training,
    buffers,
    by_data,
    in_place,
    loaded,
    momentum,
    rates,
    replaced,
)
from torch.optim import lr_scheduler  # noqa: E402
from torch.optim.swa_utils import AveragedModel  # noqa: E402

INPUTS = torch.randn(4, 8, generator=torch.Generator().manual_seed(4))
Change = Callable[[Training], object]


def position(training: Training) -> None:
    training.place.position += 1


def torch_draws(training: Training) -> None:
    torch.rand(1)


def python_draws(training: Training) -> None:
    random.random()


def numpy_draws(training: Training) -> None:
    numpy.random.rand()


def nothing(training: Training) -> None:
    pass


def run(training: Training, top: Change, bottom: Change, total: int = 9) -> None:
    while training.saver.version < total:
        top(training)
        training.optimize(INPUTS)
        bottom(training)
        training.remember(training.saver.version)


@pytest.mark.parametrize(
    ("top", "bottom", "name"),
    [
        (position, nothing, "place"),
        (nothing, torch_draws, "torch"),
        (nothing, python_draws, "python"),
        (nothing, numpy_draws, "numpy"),
        (nothing, by_data, "0.weight"),
        (nothing, in_place, "0.weight"),
        (nothing, replaced, "0.weight"),
        (by_data, nothing, "0.weight"),
        (in_place, nothing, "0.weight"),
        (loaded, nothing, "0.weight"),
        (buffers, nothing, "running_mean"),
        (nothing, buffers, "running_mean"),
        (momentum, nothing, "optimizer"),
        (rates, nothing, "optimizer"),
    ],
)
def test_a_version_is_right_or_one_warning_names_what_changed(
    top: Change, bottom: Change, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(tmp_path, every=3)
    random.seed(1)
    numpy.random.seed(1)
    run(training, top, bottom)
    try:
        assert training.check(), "nothing was saved"
        right = True
    except AssertionError:
        right = False
    texts = [record.getMessage() for record in caplog.records if "ck.steps" in record.getMessage()]
    assert len(texts) == (0 if right and not texts else 1)
    assert all("changed" in text and name in text for text in texts)


def test_an_ordinary_loop_is_not_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Schedulers, scalers and averages after the step, and an evaluation that draws nothing."""
    training = Training(
        tmp_path,
        every=3,
        extra=lambda model, optimizer: {
            "average": AveragedModel(model),
            "scheduler": lr_scheduler.StepLR(optimizer, 2),
        },
    )

    def follow(now: Training) -> None:
        now.extra["scheduler"].step()
        now.extra["average"].update_parameters(now.model)
        now.model.eval()
        with torch.no_grad():
            now.model(INPUTS)
        now.model.train()

    run(training, nothing, follow)
    assert training.check([3, 6, 9])
    assert not caplog.records
