"""A loop of one's own: it is left anywhere, and ends as torch alone would have ended it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy  # noqa: E402
from support.checkpoint.small_loop import EPOCHS, Parts, undisturbed  # noqa: E402

from deepvm.checkpoint import Checkpointer, ResumableLoader, training_run  # noqa: E402
from deepvm.checkpoint.integrations.session import PackedState, Session  # noqa: E402
from deepvm.errors import CheckpointError, RequestError  # noqa: E402

# Of torch, after a resume at the end of the first epoch: it has not seen the steps of another
# process.
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step")


class Left(Exception):
    """The loop is left."""


def run_of(parts: Parts, folder: Path, **more: Any) -> Any:
    options: dict[str, Any] = {"every": 2, "job": "loop", "keep": 100, "extra": parts.extra, **more}
    return training_run(
        model=parts.model,
        optimizer=parts.optimizer,
        loader=parts.loader,
        epochs=EPOCHS,
        tiers=folder,
        **options,
    )


def trained(folder: Path, leave_at: int = 0, workers: int = 0) -> tuple[list[float], list[Any]]:
    """The losses, and the end; left after so many batches."""
    parts, losses = Parts(workers), list[float]()
    try:
        with run_of(parts, folder) as run:
            for _ in run.epochs():
                for batch in run.loader:
                    losses.append(parts.step(batch))
                    for handle in run.checkpointer.handles[-1:]:
                        # On a slow disk the next one would be skipped
                        handle.local_done.exception(30)
                    if len(losses) == leave_at:
                        raise Left
                parts.after_epoch()
    except Left:
        pass
    return losses, parts.final()


def equal(one: list[Any], other: list[Any]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_nothing_changes_if_nothing_happens(tmp_path: Path) -> None:
    losses, end = trained(tmp_path)
    expected, final = undisturbed()
    assert losses == expected and equal(end, final)


@pytest.mark.parametrize(
    "leave_at",
    [1, 6, 8, *(pytest.param(at, marks=pytest.mark.slow) for at in (2, 3, 5, 7, 12, 17))],
)
def test_left_after_any_batch(tmp_path: Path, leave_at: int) -> None:
    expected, final = undisturbed()
    first, _ = trained(tmp_path, leave_at)
    rest, end = trained(tmp_path)
    assert first == expected[:leave_at]
    assert rest == expected[len(expected) - len(rest) :]
    # The scaler skips the first step
    assert len(first) + len(rest) <= len(expected) + 2 + (leave_at <= 3)
    assert equal(end, final)


@pytest.mark.system
def test_left_again_and_again_with_workers(tmp_path: Path) -> None:
    expected, final = undisturbed(2)
    end: list[Any] = []
    for leave_at in (5, 4, 0):
        rest, end = trained(tmp_path, leave_at, 2)
        if not leave_at:
            assert rest == expected[len(expected) - len(rest) :]
    assert equal(end, final)


def test_all_epochs_in_one_loop(tmp_path: Path) -> None:
    parts, seen = Parts(), []
    with run_of(parts, tmp_path, sigterm=False) as run:
        for batch in run:
            parts.step(batch)
            seen.append((run.epoch, run.step))
    assert [epoch for epoch, _ in seen] == [0] * 6 + [1] * 6 + [2] * 6
    assert seen[-1][1] == run.checkpointer.version < 18  # skipped steps do not count


def test_a_training_that_is_over_is_not_done_again(tmp_path: Path) -> None:
    _, end = trained(tmp_path)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.pt")}
    again, same = trained(tmp_path)
    assert again == [] and equal(end, same)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.pt")} == written


def test_an_epoch_that_is_left_early_is_over(tmp_path: Path) -> None:
    parts = Parts()
    with run_of(parts, tmp_path) as run:
        for epoch in run.epochs():
            if epoch == 1:
                continue  # never begun
            for batch in run.loader:
                parts.step(batch)
                break
    assert run.epoch == EPOCHS


def test_the_version_of_a_step_is_taken_before_the_next_batch(tmp_path: Path) -> None:
    parts = Parts()
    loader = ResumableLoader(parts.loader)
    saver = Checkpointer(
        model=parts.model,
        optimizer=parts.optimizer,
        extra={**parts.extra, "loader": loader},
        tiers=tmp_path,
        job="a",
    )
    batches = iter(loader)
    parts.step(next(batches))  # skipped by the scaler
    while not saver.version:
        parts.step(next(batches))
    handle, before = saver.request_save(), saver.version
    while saver.version == before:
        parts.step(next(batches))
    torch.rand(7)  # whatever follows the step is in it
    assert handle.version == 0
    expected = torch.get_rng_state()
    next(batches)
    handle.durable.result(30)
    saver.close()
    (file,) = tmp_path.glob("a-*.pt")
    tree = torch.load(file, weights_only=True)
    assert tree["version"] == handle.version == saver.version
    assert torch.equal(tree["extra"]["rng"]["torch"], expected)


def test_several_steps_of_one_batch(tmp_path: Path) -> None:
    """Only between batches can a version be gone on with."""
    parts = Parts()
    loader = ResumableLoader(parts.loader)
    with Checkpointer(
        model=parts.model,
        optimizer=parts.optimizer,
        extra={"loader": loader},
        tiers=tmp_path,
        job="a",
        every=1,
        keep=9,
    ) as saver:
        for _, batch in zip(range(4), loader, strict=False):
            for _ in range(3):
                parts.optimizer.zero_grad()
                parts.model(torch.stack([batch[0].float(), batch[1].float()], 1)).sum().backward()
                parts.optimizer.step()
            if saver.handles:
                saver.handles[-1].local_done.exception(30)
    assert {int(file.stem[2:]) % 3 for file in tmp_path.glob("a-*.pt")} == {0}
    assert saver.metrics["failed"] == 0


def test_another_loader_than_that_in_extra_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parts = Parts()
    with Checkpointer(
        model=parts.model,
        optimizer=parts.optimizer,
        extra={"loader": ResumableLoader(parts.loader)},
        tiers=tmp_path,
        job="a",
        every=10,
    ):
        for _ in range(300):
            parts.optimizer.zero_grad()
            parts.model(torch.rand(4, 2)).sum().backward()
            parts.optimizer.step()
    assert caplog.text.count("version 10 was due, and no batch was fetched") == 1


def test_what_is_due_at_the_end_is_saved(tmp_path: Path) -> None:
    parts = Parts()
    loader = ResumableLoader(parts.loader)
    saver = Checkpointer(
        model=parts.model,
        optimizer=parts.optimizer,
        extra={"loader": loader},
        tiers=tmp_path,
        job="a",
        every=1,
    )
    parts.optimizer.zero_grad()
    parts.model(torch.rand(4, 2)).sum().backward()
    parts.optimizer.step()
    saver.close()
    assert [handle.version for handle in saver.handles] == [1] and saver.metrics["saved"] == 1


@pytest.mark.parametrize("changed", ["by loading", "by hand"])
def test_what_was_due_is_not_saved_with_a_state_that_was_changed_since(
    tmp_path: Path, changed: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The best weights, at the end: a version 1 with them would be none of any step."""
    parts = Parts()
    loader = ResumableLoader(parts.loader)
    saver = Checkpointer(
        model=parts.model,
        optimizer=parts.optimizer,
        extra={"loader": loader},
        tiers=tmp_path,
        job="a",
        every=10,
    )
    parts.model(torch.rand(4, 2)).sum().backward()
    handle = saver.request_save()
    parts.optimizer.step()
    if changed == "by loading":
        parts.model.load_state_dict(
            {k: torch.zeros_like(v) for k, v in parts.model.state_dict().items()}
        )
    else:
        saver.wait()
    saver.close()
    assert "version 1 was due and is not saved: the state was changed since" in caplog.text
    assert not [*tmp_path.glob("*.pt")] and isinstance(handle.durable.exception(5), CheckpointError)


@pytest.mark.parametrize("saved_by_hand", [False, True])
def test_sigterm_ends_the_training_however_the_version_is_taken(
    tmp_path: Path, saved_by_hand: bool
) -> None:
    parts, steps = Parts(), 0
    with pytest.raises(SystemExit) as ended, run_of(parts, tmp_path, every=1000) as run:
        for batch in run:
            parts.step(batch)
            steps += 1
            if run.step == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            if run.step == 3 and saved_by_hand:
                run.checkpointer.save()
    assert ended.value.code == 143 and run.step == 3
    assert [int(file.stem.split("-")[1]) for file in tmp_path.glob("*.pt")] == [3]


class Keeps:
    """An extra, or an object of a trainer, with a state."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return {"state": self.state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.state = state_dict["state"]


@pytest.mark.parametrize(
    "state", [Path("x"), numpy.float64(3), numpy.array([1, 2]), {1, 2}], ids=lambda s: str(type(s))
)
def test_a_state_that_could_not_be_read_back_is_refused_when_it_is_saved(state: Any) -> None:
    """Else every version is acknowledged, and none can be restored."""
    packed = PackedState("the state of x", lambda: {"a": state}, lambda found: None)
    if isinstance(state, set):  # plain torch.load reads it
        packed.load_state_dict(packed.state_dict())
        return
    with pytest.raises(RequestError, match="the state of x"):
        packed.state_dict()


def test_what_becomes_unreadable_later_is_refused_then() -> None:
    kept: list[Any] = []
    packed = PackedState("the state of x", lambda: {"a": [*kept]}, kept.extend)
    packed.load_state_dict(packed.state_dict())
    kept.append(Path("x"))
    with pytest.raises(RequestError, match="pathlib"):
        packed.state_dict()


def test_a_trainers_own_names_are_taken(tmp_path: Path) -> None:
    parts = Parts()
    options: dict[str, Any] = {
        "model": parts.model,
        "optimizer": parts.optimizer,
        "tiers": tmp_path,
        "job": "a",
    }
    with pytest.raises(RequestError, match="other names than scheduler, loader, which are taken"):
        Session(
            ResumableLoader(parts.loader),
            {"scheduler": Keeps(1)},
            own={"scheduler": Keeps(2)},
            **options,
        )


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"epochs": -1}, "epochs"),
        ({"extra": {"loader": None}}, "loader"),
        ({"strategy": "layerwise"}, "strategy"),
    ],
)
def test_bad_arguments(tmp_path: Path, more: dict[str, Any], word: str) -> None:
    parts = Parts()
    before = signal.getsignal(signal.SIGTERM)
    options: dict[str, Any] = {"epochs": 1, "tiers": tmp_path, "job": "a", **more}
    with pytest.raises(RequestError, match=word):
        training_run(model=parts.model, optimizer=parts.optimizer, loader=parts.loader, **options)
    assert signal.getsignal(signal.SIGTERM) == before


def test_another_model_is_refused(tmp_path: Path) -> None:
    trained(tmp_path, 9)
    parts = Parts()
    parts.model = torch.nn.Linear(2, 1)
    parts.optimizer = torch.optim.AdamW(parts.model.parameters())
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(CheckpointError, match="another model"):
        run_of(parts, tmp_path, extra=None)
    assert signal.getsignal(signal.SIGTERM) == before


SCRIPT = """
import os, sys, time
from pathlib import Path
from support.checkpoint.small_loop import EPOCHS, Parts
from deepvm.checkpoint import training_run
import torch
parts, losses = Parts(), []
with training_run(model=parts.model, optimizer=parts.optimizer, loader=parts.loader, epochs=EPOCHS,
                  tiers=Path(sys.argv[1]), job="loop", extra=parts.extra) as run:
    for _ in run.epochs():
        for batch in run.loader:
            losses.append(parts.step(batch))
            if sys.argv[2] == str(len(losses)):
                print("ready", flush=True)
                sys.stdin.readline()
        parts.after_epoch()
torch.save((losses, parts.final()), sys.argv[3])
"""


@pytest.mark.slow
@pytest.mark.parametrize("at", [5, 6, 10])
def test_sigterm_saves_and_ends(tmp_path: Path, at: int) -> None:
    """With nothing that is due otherwise: the version of the next step is saved, and the process
    ends with 143.
    """
    expected, final = undisturbed()
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "versions")]
    first = subprocess.Popen([*words, str(at), "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert first.stdout is not None and first.stdin is not None
    assert first.stdout.readline() == b"ready\n"
    os.kill(first.pid, signal.SIGTERM)
    first.communicate(b"go\n", 60)
    assert first.returncode == 143
    assert len([*(tmp_path / "versions").glob("*.pt")]) == 1
    subprocess.run([*words, "-", str(tmp_path / "end")], check=True, timeout=60)
    losses, end = torch.load(tmp_path / "end", weights_only=True)
    assert len(losses) == len(expected) - at - 1 and losses == expected[at + 1 :]
    assert equal(end, final)
