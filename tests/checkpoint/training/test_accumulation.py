"""Gradients that are added up over iterations: a version waits for the step that uses them, or
warns.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from deepvm.checkpoint import Checkpointer, ResumableLoader  # noqa: E402
from deepvm.checkpoint.training import missing_steps  # noqa: E402
from deepvm.errors import CheckpointError  # noqa: E402

TOTAL = 16


class Training:
    """A model whose optimizer steps in every fourth iteration, next to one that steps in each."""

    def __init__(
        self, folder: Path, cut: int | None, *, loader: bool, second: bool, asks: bool
    ) -> None:
        torch.manual_seed(3)
        self.model = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 4), "b": torch.nn.Linear(4, 1)})
        slow = torch.optim.Adam((self.model["a"] if second else self.model).parameters(), lr=0.1)
        fast = torch.optim.Adam(self.model["b"].parameters(), lr=0.1)
        extra: dict[str, Any] = {"fast": fast} if second else {}
        data = ResumableLoader(DataLoader(TensorDataset(torch.randn(TOTAL, 2, 4)), shuffle=True))
        if loader:
            extra["data"] = data
        ck = Checkpointer(
            model=self.model,
            optimizer=slow,
            extra=extra,
            tiers=folder,
            every=None if asks else 1,
            job="job",
            slots=20,
        )
        batches = self.batches(data)
        for step in ck.steps(TOTAL):
            inputs = next(batches)[0][0] if loader else torch.randn(2, 4)
            if second:
                fast.zero_grad()
                self.model["b"](self.model["a"](inputs).detach()).square().mean().backward()
                fast.step()
            self.model["b"](self.model["a"](inputs)).mean().backward()
            if step % 4 == 3:
                slow.step()
                slow.zero_grad()
            if asks:
                ck.save()
            if step + 1 == cut:
                break
        with contextlib.suppress(CheckpointError):  # what waits for the step is not saved
            ck.close()

    def batches(self, data: ResumableLoader) -> Any:
        while True:
            yield from data


@pytest.mark.parametrize("kind", ["plain", "loader", "second", "asks"])
@pytest.mark.parametrize("cut", [2, 6, 11])
def test_a_training_resumes_with_all_gradients(kind: str, cut: int, tmp_path: Path) -> None:
    kinds = {name: name == kind for name in ("loader", "second", "asks")}
    whole = Training(tmp_path / "whole", None, **kinds)
    Training(tmp_path / "cut", cut, **kinds)
    resumed = Training(tmp_path / "cut", None, **kinds)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name


def test_nothing_waits_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A training that updates its parameters by hand never steps.

    An urgent request has no time to wait.
    """
    monkeypatch.setattr(missing_steps, "MAX_ITERATIONS", 4)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Checkpointer(
        model=model, optimizer=optimizer, tiers=tmp_path, every=1, job="job", slots=9, keep=9
    ) as ck:
        for step in ck.steps(8):
            model(torch.ones(1, 4)).sum().backward()
            if step == 1:
                urgent = ck.request_save(deadline=time.time() + 5)
        assert urgent.durable.result(30) == 2
        assert [handle.version for handle in ck.handles] == [2, 5, 6, 7, 8]
    (record,) = (r for r in caplog.records if "added up" in r.message)
    assert "version 2 is saved without the gradients of optimizer" in record.message


def test_gradients_that_are_only_zeroed_keep_nothing_waiting(tmp_path: Path) -> None:
    """Iterations without a backward, as those that collect data."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Checkpointer(
        model=model, optimizer=optimizer, tiers=tmp_path, every=2, job="job", slots=9
    ) as ck:
        for step in ck.steps(8):
            if step % 5 == 0:
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
        assert [handle.version for handle in ck.handles] == [2, 4, 6, 8]
