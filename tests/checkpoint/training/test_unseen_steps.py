"""A training whose steps the checkpointer does not see is told so, soon; others never are."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from deepvm.checkpoint import Checkpointer  # noqa: E402
from deepvm.errors import CheckpointError  # noqa: E402

X = torch.ones(4, 8)
SAID = r"step\(\) of the SGD .* is not called"


class Run:
    def __init__(self, folder: Path, every: int | None = 1, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(8, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.saver = Checkpointer(
            model=self.model,
            optimizer=self.optimizer,
            tiers=[folder.as_uri()],
            every=every,
            **options,
        )
        self.call: Callable[..., Any] = self.model

    def backward(self, times: int = 1) -> None:
        for _ in range(times):
            self.call(X).square().mean().backward()


def another(run: Run) -> Callable[[], Any]:
    return torch.optim.SGD(run.model.parameters(), lr=0.01).step


def fused(run: Run) -> Callable[[], Any]:
    """Its changes do not show in the tensors' version counters."""
    return torch.optim.Adam(run.model.parameters(), fused=True).step


def copied(run: Run) -> Callable[[], Any]:
    groups = copy.deepcopy(run.optimizer.state_dict())
    found = torch.optim.SGD(run.model.parameters(), lr=1.0)
    found.load_state_dict(groups)
    return found.step


def by_hand(run: Run) -> Callable[[], Any]:
    def step() -> None:
        for p in run.model.parameters():
            p.data -= 0.01 * p.grad  # goes unnoticed by the version counter, too

    return step


def replaced(run: Run) -> Callable[[], Any]:
    """``step`` of the instance is another function."""
    run.optimizer.step = by_hand(run)
    return lambda: run.optimizer.step()


def undecorated(run: Run) -> Callable[[], Any]:
    return lambda: torch.optim.SGD.step.__wrapped__(run.optimizer)


BYPASSES = {f.__name__: f for f in (another, fused, copied, by_hand, replaced, undecorated)}


@pytest.mark.parametrize("compiled", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("name", BYPASSES)
def test_steps_that_are_not_seen_are_told_of_soon(
    name: str, compiled: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path)
    if compiled:
        run.call = torch.compile(run.model, backend="eager")
    step = BYPASSES[name](run)
    with pytest.warns(RuntimeWarning, match=SAID) as told:
        for _ in range(20):
            run.backward()
            step()
    assert len(told) == 1 and caplog.text.count("is not called") == 1
    with pytest.raises(CheckpointError, match="no checkpoint was saved"):
        run.saver.close()
    assert not [*tmp_path.iterdir()]


def test_it_takes_a_few_backwards(tmp_path: Path) -> None:
    run = Run(tmp_path)
    step = another(run)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(7):
            run.backward()
            step()
    with pytest.warns(RuntimeWarning, match=SAID):
        for _ in range(9):
            run.backward()
            step()
    with pytest.raises(CheckpointError):
        run.saver.close()


def test_an_optimizer_that_is_replaced_later(tmp_path: Path) -> None:
    """Gradients were accumulated before: that many backwards without a step are nothing strange."""
    run = Run(tmp_path)
    for _ in range(3):
        run.backward(6)
        run.optimizer.step()
    run.saver._snapshotter.finish()  # else what follows may change version 3 while it is copied
    run.saver._snapshotter.gate()
    step = another(run)
    with pytest.warns(RuntimeWarning, match=SAID) as told:
        for _ in range(60):
            run.backward()
            step()
    assert len(told) == 1
    run.saver.close()  # versions 1 to 3 are there


def test_what_is_saved_by_hand_is_never_an_older_state(tmp_path: Path) -> None:
    run = Run(tmp_path, every=None)
    step = fused(run)
    run.saver.save(block=True)
    with warnings.catch_warnings():  # no schedule asks for versions, so none are missing
        warnings.simplefilter("error")
        for _ in range(20):
            run.backward()
            step()
    now = {k: v.clone() for k, v in run.model.state_dict().items()}
    run.saver.save(block=True)
    run.saver.close()
    (path,) = tmp_path.glob("*.pt")
    saved = torch.load(path, weights_only=True)["model"]
    assert all(torch.equal(saved[k], now[k]) for k in now)


def accumulated(run: Run) -> None:
    for _ in range(2):
        run.backward(64)
        run.optimizer.step()


def evaluated(run: Run) -> None:
    """Validation with other weights, which are put back."""
    kept = copy.deepcopy(run.model.state_dict())
    for _ in range(3):
        run.model.eval()
        with torch.no_grad():
            for p in run.model.parameters():
                p.mul_(0.5)
        for _ in range(10):
            run.model(X)
        run.model.load_state_dict(kept)
        run.model.train()
        run.backward(8)


def prepared(run: Run) -> None:
    """Weights that are set and loaded before the first step, and statistics that are gathered in
    training mode.
    """
    for p in run.model.parameters():
        torch.nn.init.normal_(p)
    with torch.no_grad():
        for _ in range(20):
            run.model(X)
    run.backward(6)
    run.model.load_state_dict({k: v + 1 for k, v in run.model.state_dict().items()})
    run.backward(60)


def moved(run: Run) -> None:
    run.backward(3)
    run.model.to(torch.float64)
    for _ in range(10):
        run.model(X.double()).sum().backward()


def announced(run: Run) -> None:
    """Who waits before a change by hand knows what becomes of it."""
    for value in (1.0, 2.0):
        run.saver.wait()
        with torch.no_grad():
            for p in run.model.parameters():
                p.fill_(value)
        run.saver.save(block=True)


def critic(run: Run) -> None:
    """Another model is trained through this one, five times as often."""
    other = torch.optim.SGD((twin := torch.nn.Linear(8, 8)).parameters(), lr=0.1)
    for _ in range(6):
        for _ in range(5):
            run.model(twin(X)).sum().backward()
            other.step()
        run.optimizer.step()


def restored(run: Run) -> None:
    run.backward()
    run.optimizer.step()
    run.saver.save(block=True)
    run.backward()
    run.saver.restore_latest()
    run.backward(40)


def perturbed(run: Run) -> None:
    """FGM: backward a second time with other weights, which are put back.

    And gradients are accumulated.
    """
    weight = run.model[0].weight
    for _ in range(2):
        for _ in range(4):
            run.backward()
            kept = weight.data.clone()
            weight.data.add_(0.01)
            run.backward()
            weight.data.copy_(kept)
        run.optimizer.step()


def reptile(run: Run) -> None:
    """An inner optimizer, and a step from where it began."""
    for _ in range(3):
        kept = [p.detach().clone() for p in run.model.parameters()]
        inner = torch.optim.SGD(run.model.parameters(), lr=0.1)
        for _ in range(10):
            run.backward()
            inner.step()
        with torch.no_grad():
            for p, was in zip(run.model.parameters(), kept, strict=True):
                p.copy_(was)
        run.optimizer.step()


QUIET = [accumulated, evaluated, prepared, moved, announced, critic, restored, perturbed, reptile]


@pytest.mark.parametrize("training", QUIET)
def test_no_false_alarm(
    training: Callable[[Run], None], tmp_path: Path, caplog: pytest.LogCaptureFixture, recwarn: Any
) -> None:
    run = Run(tmp_path)
    training(run)
    run.saver.close()
    assert not recwarn and not [r for r in caplog.records if "is not called" in r.message]


def test_a_training_that_fails_otherwise_shows_its_own_error(tmp_path: Path) -> None:
    run = Run(tmp_path)
    step = another(run)
    with pytest.warns(RuntimeWarning, match=SAID), pytest.raises(ZeroDivisionError), run.saver:
        for _ in range(20):
            run.backward()
            step()
        raise ZeroDivisionError


def test_it_leaves_no_hook_behind(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.saver.close()
    for p in run.model.parameters():
        assert not p._post_accumulate_grad_hooks
    copy.deepcopy(run.model)


def test_a_last_parameter_without_gradients(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.call = run.model[0]  # the head is not used
    step = another(run)
    with pytest.warns(RuntimeWarning, match=SAID):
        for _ in range(20):
            run.backward()
            step()
    with pytest.raises(CheckpointError, match="no checkpoint was saved"):
        run.saver.close()


def refused_at_the_end(
    model: torch.nn.Module, other: torch.optim.Optimizer, saver: Checkpointer
) -> None:
    """Train with an optimizer that the checkpointer does not know."""
    with pytest.warns(RuntimeWarning, match=SAID):
        for _ in range(40):
            model(X).mean().backward()
            other.step()
    with pytest.raises(CheckpointError, match="no checkpoint was saved"):
        saver.close()


def test_parameters_that_are_frozen_at_first(tmp_path: Path) -> None:
    model = torch.nn.Linear(8, 1).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saver = Checkpointer(model=model, optimizer=optimizer, tiers=[tmp_path.as_uri()], every=1)
    model.requires_grad_(True)
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    refused_at_the_end(model, other, saver)


def test_parameters_of_a_later_group(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8).requires_grad_(False), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    saver = Checkpointer(model=model, optimizer=optimizer, tiers=[tmp_path.as_uri()], every=1)
    optimizer.add_param_group({"params": list(model[1].parameters())})
    other = torch.optim.SGD(model[1].parameters(), lr=0.1)
    refused_at_the_end(model, other, saver)


def staged(folder: Path, shared: bool) -> tuple[Any, Callable[[], None]]:
    """Only the optimizer in ``extra`` steps."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    first = torch.optim.SGD(model[0].parameters(), lr=0.01)
    head = torch.optim.SGD(model[not shared].parameters(), lr=0.01, fused=True)
    saver = Checkpointer(
        model=model, optimizer=first, extra={"head": head}, tiers=[folder.as_uri()], every=2
    )

    def step() -> None:
        model(X).square().mean().backward()
        head.step()
        model.zero_grad()

    return saver, step


@pytest.mark.parametrize("shared", [False, True])
def test_steps_of_another_optimizer_only(shared: bool, tmp_path: Path, recwarn: Any) -> None:
    saver, step = staged(tmp_path, shared)
    for _ in range(100):  # a critic may have so many
        step()
    assert not recwarn
    with pytest.warns(
        RuntimeWarning, match=r"extra\['head'\] steps, the optimizer given as optimizer= does not"
    ) as told:
        for _ in range(200):
            step()
        saver.close()
    assert len(told) == 1


def test_it_is_told_at_the_end_at_the_latest(tmp_path: Path) -> None:
    saver, step = staged(tmp_path, shared=False)
    for _ in range(4):
        step()
    with pytest.warns(RuntimeWarning, match=r"extra\['head'\] steps"):
        saver.close()


def test_changes_without_backward_are_told_at_the_end(tmp_path: Path) -> None:
    """Evolution strategies have no gradients."""
    run = Run(tmp_path)
    with torch.no_grad():
        for p in run.model.parameters():
            p.add_(1.0)
    with pytest.warns(RuntimeWarning, match=SAID):
        run.saver.close()


@pytest.mark.parametrize("shared", [False, True])
def test_what_another_optimizer_changed_is_saved_when_asked(shared: bool, tmp_path: Path) -> None:
    saver, step = staged(tmp_path, shared)
    saver.save(block=True)
    for _ in range(3):
        step()
        now = {k: v.clone() for k, v in saver._state.model.state_dict().items()}
        saver.save(block=True)
        (path,) = tmp_path.glob("*.pt")
        saved = torch.load(path, weights_only=True)["model"]
        assert all(torch.equal(saved[k], now[k]) for k in now)
    saver.close()
