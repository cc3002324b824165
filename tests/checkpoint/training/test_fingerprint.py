"""A checkpoint with other settings, or of another model, is not continued silently."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from deepvm.checkpoint import Checkpointer  # noqa: E402
from deepvm.checkpoint.training.state import TrainingState  # noqa: E402
from deepvm.errors import CheckpointError  # noqa: E402

nn, optim = torch.nn, torch.optim


def state(
    *layers: Any, lr: float = 0.1, kind: Any = optim.Adam, order: int = 1, extra: Any = None
) -> TrainingState:
    model = nn.Sequential(*(layers or (nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))))
    optimizer = kind([*model.parameters()][::order], lr=lr)
    return TrainingState(model, optimizer, extra(optimizer) if extra else None)


def saved(made: TrainingState) -> Any:
    return made.tree(1, made.early())


def one_cycle(steps: int) -> Any:
    return lambda optimizer: {"s": optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)}


def test_another_setting_is_named() -> None:
    for one, other, change in [
        (state, lambda: state(lr=0.2), "optimizer.param_groups[0]['lr']: 0.1 -> 0.2"),
        (state, lambda: state(kind=optim.NAdam), "class of optimizer: Adam -> NAdam"),
        (
            state,
            lambda: state(nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 2)),
            "model.1: ReLU() -> GELU(approximate='",
        ),
        (
            lambda: state(extra=one_cycle(9)),
            lambda: state(extra=one_cycle(8)),
            "extra['s'].total_steps: 9 -> 8",
        ),
    ]:
        assert any(text.startswith(change) for text in other().fingerprint.changes(saved(one())))


def test_what_training_itself_changes_is_no_difference() -> None:
    made = state(extra=one_cycle(9))
    saved(made)
    for _ in range(4):
        made.optimizer.step()
        made.extra["s"].step()  # type: ignore[attr-defined]
    again = state(extra=one_cycle(9))
    assert made.optimizer.param_groups[0]["lr"] != again.optimizer.param_groups[0]["lr"]
    assert again.fingerprint.changes(saved(made)) == []
    one, other = state(), state()
    for each in (one, other):
        each.optimizer.param_groups[0]["limit"] = math.nan
    assert other.fingerprint.changes(saved(one)) == []


def test_a_checkpoint_of_an_older_release_has_no_fingerprint() -> None:
    tree = saved(state(lr=0.1))
    del tree["fingerprint"]
    other = state(lr=0.2)
    assert other.fingerprint.changes(tree) == []
    assert other.restore(tree) == 1


def test_wrapped_and_renamed_modules_are_the_same() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    layers = nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)
    wrapped = state(checkpoint_wrapper(nn.Linear(2, 2)), *layers[1:])
    assert state(*layers).fingerprint.changes(saved(wrapped)) == []
    assert wrapped.restore(saved(state())) == 1


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: state(order=-1), "in another order, 0.weight where 2.bias is here"),
        (
            lambda: state(nn.Linear(2, 2).double(), nn.ReLU(), nn.Linear(2, 2)),
            "float32, here of torch.float64",
        ),
    ],
)
def test_a_model_that_would_be_loaded_wrongly_is_refused(other: Any, words: str) -> None:
    made = other()
    with pytest.raises(CheckpointError, match=words):
        made.fingerprint.changes(saved(state()))
        made.restore(saved(state()))


def tied(really: bool) -> TrainingState:
    one, two = nn.Linear(2, 2), nn.Linear(2, 2)
    if really:
        two.weight = one.weight
    return TrainingState(nn.Sequential(one, two), optim.SGD([one.weight, one.bias, two.bias]))


def test_weights_that_are_no_longer_tied_are_refused() -> None:
    with pytest.raises(
        CheckpointError, match=r"0\.weight and 1\.weight are tied in the checkpoint, not here"
    ):
        tied(False).restore(saved(tied(True)))
    with pytest.raises(CheckpointError, match="are tied here, not in the checkpoint"):
        tied(True).restore(saved(tied(False)))
    assert tied(True).restore(saved(tied(True))) == 1


class Sharing(optim.SGD):
    """All parameters count in one tensor."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].setdefault(
                    "count", self.__dict__.setdefault("count", torch.zeros(()))
                )
        next(iter(self.state.values()))["count"].add_(1)


def test_states_that_share_memory_share_it_after_a_restore() -> None:
    made = state(kind=Sharing)
    made.optimizer.step()
    again = state(kind=Sharing)
    again.restore(saved(made))
    again.optimizer.step()
    assert {float(each["count"]) for each in again.optimizer.state.values()} == {2.0}


def test_another_learning_rate_is_refused_without_a_name_and_warned_of_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("DEEPVM_JOB")

    def run(lr: float, job: str | None = None) -> tuple[int, float, str]:
        """The step that was restored, the learning rate in force, and the job's name.

        Saves one more step.
        """
        caplog.clear()
        model = nn.Linear(2, 2)
        optimizer = optim.SGD(model.parameters(), lr=lr)
        with Checkpointer(model=model, optimizer=optimizer, tiers=tmp_path, job=job) as saver:
            start, in_force = saver.restore_latest(), optimizer.param_groups[0]["lr"]
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            saver.save(block=True)
            return start, in_force, saver.job

    assert run(0.1)[:2] == (0, 0.1)
    start, _, name = run(0.1)
    assert start == 1 and "settings" not in caplog.text
    with pytest.raises(
        CheckpointError, match=rf"0\.1 -> 0\.2\..*another name.*set DEEPVM_JOB={name}"
    ):
        run(0.2)
    assert run(0.2, name)[:2] == (2, 0.1)
    assert (
        "['lr']: 0.1 -> 0.2" in caplog.text and "old values, which are in force now" in caplog.text
    )
    assert run(0.2, name)[:2] == (3, 0.1) and "settings" not in caplog.text
    assert run(0.2, "other")[:2] == (0, 0.2)
