"""What hooks alone cannot assign to an iteration is warned about, once, by name.

Usual loops warn of nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from support.checkpoint.trainings import contents, model_of  # noqa: E402

from deepvm.checkpoint import Checkpointer  # noqa: E402

Change = Callable[["Loop"], object]


class Position:
    """A data position, a counter or a manual average: objects with just these two methods."""

    def __init__(self) -> None:
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]

    def advance(self) -> None:
        self.position += 1


class Loop:
    """A small training of which hooks save every second step.

    What a test adds stands before or after the step.
    """

    def __init__(self, folder: Path, **extra: Any) -> None:
        self.model = model_of(2, 8)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3)
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        self.scaler = torch.amp.GradScaler("cpu")
        self.position = Position()
        extra = {
            "scheduler": self.scheduler,
            "average": self.average,
            "scaler": self.scaler,
            **extra,
        }
        self.saver = Checkpointer(
            model=self.model,
            optimizer=self.optimizer,
            extra={**extra, "position": self.position},
            tiers=folder,
            every=2,
            job="loop",
            keep=1000,
            slots=16,  # none is skipped
        )
        self.step = 0

    def run(
        self, *, top: Change = lambda _: None, bottom: Change = lambda _: None, steps: int = 12
    ) -> None:
        self.saver.restore_latest()
        for self.step in range(steps):
            top(self)
            self.optimizer.zero_grad()
            self.scaler.scale(self.model(torch.randn(4, 8)).square().mean()).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
            self.average.update_parameters(self.model)
            bottom(self)
        self.saver.close()


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    torch.manual_seed(0)
    yield Loop(tmp_path)


def positions(folder: Path) -> dict[int, int]:
    """The saved position, by version."""
    files = {int(path.stem.rpartition("-")[2]): path for path in folder.glob("*.pt")}
    return {
        n: torch.load(path, weights_only=True)["extra"]["position"]["position"]
        for n, path in files.items()
    }


def test_a_usual_loop_warns_of_nothing(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    """A GradScaler, a scheduler, an average, a counter after the step, and weights that are clipped
    after it.
    """

    def bottom(loop: Loop) -> None:
        loop.position.advance()
        for parameter in loop.model.parameters():
            parameter.data.clamp_(-0.5, 0.5)

    loop.run(bottom=bottom)
    assert not caplog.text


def test_a_position_that_advances_before_the_forward_is_saved_as_the_step_leaves_it(
    loop: Loop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop.run(top=lambda loop: loop.position.advance())
    assert positions(tmp_path) == {n: n for n in range(2, 13, 2)}
    (record,) = caplog.records
    assert "extra['position'] changed between the start and the first forward" in record.message
    assert "ck.steps(total)" in record.message


def test_a_counter_after_the_step_is_saved_with_it(loop: Loop, tmp_path: Path) -> None:
    loop.run(bottom=lambda loop: loop.position.advance())
    assert positions(tmp_path) == {n: n for n in range(2, 13, 2)}


def noise(loop: Loop) -> None:
    with torch.no_grad():
        for parameter in loop.model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=1e-3)


def reset(loop: Loop) -> None:
    if loop.step == 7:
        loop.model[0].reset_parameters()  # type: ignore[operator]


def validate(loop: Loop) -> None:
    if loop.step % 4 == 3:
        for _ in torch.utils.data.DataLoader(range(3)):  # type: ignore[arg-type]  # it draws a seed
            pass


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"bottom": noise}, "the random state (torch)"),
        ({"bottom": validate}, "the random state (torch)"),
        ({"bottom": reset}, "parameter '0.weight'"),
        ({"top": noise}, "parameter '0.weight'"),
        ({"top": lambda loop: loop.scheduler.step()}, "extra['scheduler']"),
        (
            {"bottom": lambda loop: loop.position.advance() if loop.step % 3 == 0 else None},
            "extra['position']",
        ),
    ],
    ids=[
        "noise-after",
        "validation",
        "reset-layer",
        "noise-before",
        "scheduler-first",
        "now-and-then",
    ],
)
@pytest.mark.filterwarnings("ignore:Detected call of")
def test_what_may_belong_to_either_iteration_is_warned_about(
    loop: Loop, change: dict[str, Change], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    loop.run(**change)
    messages = [record.message for record in caplog.records]
    assert any(name in message for message in messages), messages
    assert all("between" in message and "ck.steps(total)" in message for message in messages)
    assert len(messages) == len(set(messages)) <= 2


def test_the_optimizer_that_steps_last_is_to_be_given(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also for a container of two models, whose own forward is never called."""
    models = torch.nn.ModuleDict(
        {"generator": torch.nn.Linear(4, 4), "critic": torch.nn.Linear(4, 1)}
    )
    optimizers = {
        name: torch.optim.SGD(model.parameters(), lr=0.01) for name, model in models.items()
    }
    for last in ("generator", "critic"):
        (other,) = optimizers.keys() - {last}
        with Checkpointer(
            model=models,
            optimizer=optimizers[last],
            extra={other: optimizers[other]},
            tiers=tmp_path / last,
            every=1,
            job="two",
            slots=16,
        ) as saver:
            saver.restore_latest()
            for _ in range(3):
                for name in ("critic", "generator"):
                    optimizers[name].zero_grad()
                    models["critic"](models["generator"](torch.ones(2, 4))).mean().backward()
                    optimizers[name].step()
        if last == "generator":
            assert not caplog.records
    (record,) = caplog.records
    assert (
        "extra['generator'] changed in a step that follows the step of the optimizer given"
        in record.message
    )


def test_weights_changed_through_data_after_a_step_are_those_of_the_version(tmp_path: Path) -> None:
    """Version counters do not see it; the model is too large to be compared whole."""
    torch.manual_seed(0)
    model = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with Checkpointer(
        model=model, optimizer=optimizer, tiers=tmp_path, every=1, job="job", keep=9, slots=9
    ) as saver:
        saver.restore_latest()
        for number in range(1, 6):
            model(torch.ones(1, 256)).sum().backward()
            optimizer.step()
            for parameter in model.parameters():
                parameter.data.fill_(number)
    assert contents(tmp_path) == {number: {float(number)} for number in range(1, 6)}
