"""What ordinary training scripts do beside forward, backward and step.

Every version must be the state of one step.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint.slow_copies import slow_copy

torch = pytest.importorskip("torch")

from deepvm.checkpoint import Checkpointer  # noqa: E402
from deepvm.checkpoint.files.version_dir import VersionFolder  # noqa: E402
from deepvm.checkpoint.format.flatten import flatten  # noqa: E402
from deepvm.checkpoint.snapshot.host_buffer import Slot  # noqa: E402
from deepvm.checkpoint.snapshot.snapshotter import PendingSnapshot  # noqa: E402
from deepvm.checkpoint.training.save_handle import Handle  # noqa: E402
from deepvm.errors import CheckpointError, RequestError  # noqa: E402


class Add(torch.optim.Optimizer):
    """Adds one to every parameter: version v of a model that began at zero holds v, and nothing
    else.
    """

    def __init__(
        self, parameters: Any, inside: Callable[[int], None] = lambda number: None
    ) -> None:
        super().__init__(parameters, {"lr": 1.0})
        self.inside, self.n = inside, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.n += 1
        for number, p in enumerate(p for group in self.param_groups for p in group["params"]):
            self.inside(number)
            p.add_(1)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64))
        self.head = torch.nn.Linear(64, 8)
        for p in self.parameters():
            torch.nn.init.zeros_(p)

    def forward(self, x: Any) -> Any:
        return self.head(self.encoder(x))


X = torch.randn(4, 32)


def saved(folder: Path) -> dict[int, Any]:
    """What was saved, by version."""
    here = VersionFolder(folder)
    return {
        m.version: torch.load(here.file("job", m.version), weights_only=True)
        for m in here.versions("job")
    }


def right(folder: Path) -> list[int]:
    """Versions, each of which holds its own number in every parameter."""
    trees = saved(folder)
    for version, tree in trees.items():
        parameters = [
            t for name, t in tree["model"].items() if "running" not in name and "num_" not in name
        ]
        assert {value for t in parameters for value in t.unique().tolist()} == {float(version)}, (
            version
        )
    return sorted(trees)


class Run:
    def __init__(self, folder: Path, every: int | None = 1, **options: Any) -> None:
        self.folder = folder
        self.model = Net()
        self.optimizer = options.pop("optimizer", Add)(self.model.parameters())
        self.saver = Checkpointer(
            model=self.model,
            optimizer=self.optimizer,
            tiers=[folder.as_uri()],
            every=every,
            keep=1000,
            **options,
        )

    def step(self, between: Callable[[], None] = lambda: None) -> None:
        self.model(X).sum().backward()
        between()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.settle()

    def settle(self) -> None:
        """A machine under load may need long for a version; none is to be skipped here."""
        last: Handle | None = self.saver._snapshotter.last
        if last is not None and self.saver._snapshotter.pending is None:
            last.local_done.exception(60)


def test_validation_in_inference_mode(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for _ in range(4):
        run.step()
        run.model.eval()
        with torch.inference_mode():
            run.model(X)
        run.model.train()
    with torch.inference_mode():
        run.saver.save(block=True)
    run.saver.close()
    assert right(tmp_path)[-1] == 4
    assert run.saver.metrics["failed"] == 0


def test_training_forward_in_inference_mode(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for _ in range(3):
        run.step()
        with torch.inference_mode():
            run.model(X)
    run.saver.save(block=True)
    run.saver.close()
    assert right(tmp_path)[-1] == 3 and run.saver.metrics["failed"] == 0


@pytest.mark.parametrize("slow", [False, True])
def test_validation_with_averaged_weights(
    tmp_path: Path, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if slow:
        monkeypatch.setattr(Slot, "copy", slow_copy(0.002))
    run = Run(tmp_path)
    for _ in range(4):
        run.step()
        kept = [p.detach().clone() for p in run.model.parameters()]
        with torch.no_grad():
            for p in run.model.parameters():
                p.fill_(777)
            run.model.eval()
            run.model(X)
            run.model.train()
            for p, value in zip(run.model.parameters(), kept, strict=True):
                p.copy_(value)
    run.saver.save(block=True)
    run.saver.close()
    assert len(right(tmp_path)) >= 2 and run.saver.metrics["failed"] == 0


@pytest.mark.parametrize("slow", [False, True])
def test_weights_that_are_clipped_behind_the_step(
    tmp_path: Path, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a Wasserstein GAN: what the next forward finds is what a cut run must go on with."""
    if slow:
        monkeypatch.setattr(Slot, "copy", slow_copy(0.002))
    run = Run(tmp_path)
    for number in range(1, 5):
        run.step()
        with torch.no_grad():
            run.model.head.weight.fill_(number + 100)
    run.saver.save(block=True)
    run.saver.close()
    trees = saved(tmp_path)
    assert len(trees) >= 2
    for version, tree in trees.items():
        assert tree["model"]["head.weight"].unique().tolist() == [version + 100]
        assert tree["model"]["encoder.0.weight"].unique().tolist() == [version]


def test_a_momentum_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """MoCo: parameters of no optimizer change in forward. No version mixes steps.

    From the second on they are right.
    """
    monkeypatch.setattr(Slot, "copy", slow_copy(0.002))
    caplog.set_level(logging.WARNING)
    run = Run(tmp_path, every=3)
    key = torch.nn.Linear(64, 64)
    key.requires_grad_(False).weight.zero_()
    run.model.key = key
    forward = run.model.forward

    def moco(x: Any) -> Any:
        with torch.no_grad():
            key.weight.add_(1)
        return forward(x)

    run.model.forward = moco
    for _ in range(16):
        run.step()
    run.saver.close()
    trees = saved(tmp_path)
    assert trees and "were changed in forward or backward" in caplog.text
    for version, tree in trees.items():
        assert tree["model"]["key.weight"].unique().tolist() == [version], version


def test_other_weights_for_one_call(tmp_path: Path) -> None:
    run = Run(tmp_path)
    other = {name: torch.full_like(p, 777.0) for name, p in run.model.named_parameters()}
    for _ in range(4):
        run.step()
        torch.func.functional_call(run.model, other, (X,))
    run.saver.save(block=True)
    run.saver.close()
    assert right(tmp_path)[-1] == 4 and run.saver.metrics["failed"] == 0


def test_transformations_while_a_version_is_due(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.model.encoder[1].eval()  # no transformation may change it
    parameters = {name: p.detach() for name, p in run.model.named_parameters()}
    for _ in range(3):
        run.step()
        torch.func.grad(lambda p: torch.func.functional_call(run.model, p, (X,)).sum())(parameters)
        torch.func.vmap(lambda x: x + 1)(X)
    run.saver.save(block=True)
    run.saver.close()
    assert right(tmp_path)[-1] == 3


def test_a_model_whose_own_forward_is_never_called(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for _ in range(4):
        run.model.head(run.model.encoder(X)).sum().backward()
        run.optimizer.step()
        run.settle()
    run.saver.save(block=True)
    run.saver.close()
    assert right(tmp_path)[-1] == 4
    for version, tree in saved(tmp_path).items():
        assert int(tree["model"]["encoder.1.num_batches_tracked"]) == version


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_inside_a_step(tmp_path: Path, error: type[BaseException]) -> None:
    def fails(number: int) -> None:
        if run.optimizer.n == 4 and number == 3:
            raise error

    run = Run(tmp_path, every=None, optimizer=lambda p: Add(p, fails))
    for _ in range(3):
        run.step()
    run.saver.save(block=True)
    with pytest.raises(error):
        run.step()
    with pytest.raises(RequestError, match="during optimizer.step"):
        run.saver.save(block=True)
    assert run.saver.restore_latest() == 3
    run.step()
    run.saver.save(block=True)
    run.saver.close()
    assert right(tmp_path) == [3, 4]


def test_a_signal_inside_a_step(tmp_path: Path) -> None:
    told: list[str] = []

    def notice(*_: Any) -> None:
        try:
            run.saver.save(block=True)
        except RequestError as problem:
            told.append(str(problem))
            run.saver.request_save()

    def raised(number: int) -> None:
        if run.optimizer.n == 3 and number == 2:
            signal.raise_signal(signal.SIGUSR1)

    run = Run(tmp_path, every=None, optimizer=lambda p: Add(p, raised))
    before = signal.signal(signal.SIGUSR1, notice)
    try:
        for _ in range(4):
            run.step()
    finally:
        signal.signal(signal.SIGUSR1, before)
    run.saver.close()
    assert "request_save()" in told[0]
    assert right(tmp_path) == [3]


def test_other_threads_ask_and_do_not_save(tmp_path: Path) -> None:
    run = Run(tmp_path, every=None)
    problems: list[Exception] = []

    def poll() -> None:
        try:
            run.saver.save()
        except RequestError as problem:
            problems.append(problem)
        run.saver.request_save()

    run.step()
    thread = threading.Thread(target=poll)
    thread.start()
    thread.join()
    run.step()
    run.saver.close()
    assert "another thread" in str(problems[0])
    assert right(tmp_path) == [2]


def test_an_interrupt_while_a_version_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, every=None)
    run.step()
    run.saver.save(block=True)
    move, count = Slot.copy, [0]

    def interrupted(self: Slot, *args: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            count[0] += 1
            if count[0] <= 3:
                raise KeyboardInterrupt
        move(self, *args)

    monkeypatch.setattr(Slot, "copy", interrupted)
    for _ in range(3):
        run.step()
        with pytest.raises(KeyboardInterrupt):
            run.saver.save(block=True)  # the slot of the one before comes back in the background
    assert run.saver.save(block=True).version == 4
    run.saver.close()
    assert right(tmp_path) == [1, 4]


def test_two_optimizers(tmp_path: Path) -> None:
    """The one that steps last is the one whose steps count."""
    model = Net()
    first = torch.optim.Adam(model.encoder.parameters())
    last = torch.optim.Adam(model.head.parameters())
    saver = Checkpointer(
        model=model,
        optimizer=last,
        extra={"first": first},
        tiers=[tmp_path.as_uri()],
        every=1,
        keep=1000,
    )
    digest = {}
    for number in range(1, 6):
        model(X).square().sum().backward()
        first.step()
        last.step()
        digest[number] = [p.detach().clone() for p in model.parameters()]
    saver.save(block=True)
    saver.close()
    trees = saved(tmp_path)
    assert 5 in trees
    for version, tree in trees.items():
        names = [name for name, _ in model.named_parameters()]
        assert all(
            torch.equal(tree["model"][n], value)
            for n, value in zip(names, digest[version], strict=True)
        )
        for part in (tree["optimizer"], tree["extra"]["first"]):
            assert {float(values["step"]) for values in part["state"].values()} == {version}


def test_of_several_ranks_none_takes_a_slot_alone(tmp_path: Path) -> None:
    """Without an agreement, a rank that has room must not save what another one skips."""
    run = Run(tmp_path, every=None)
    run.step()
    run.saver.save(block=True)
    made = run.saver._snapshotter
    made._ranks.world = 2
    try:
        early = made._state.early()
        tree = made._state.tree(1, early)
        parts = flatten(tree)
        assert made._fits(parts)
        begun = PendingSnapshot(Handle(1), tree["model"], early, 0.0, parts, made._state.owned())
        assert not made._copy(begun, 0.0)
    finally:
        made._ranks.world = 1
    run.saver.close()


def test_a_grad_scaler_goes_on_where_it_was(tmp_path: Path) -> None:
    """Its scale grows behind steps; a batch that overflows is no step, and no version."""

    def begin() -> tuple[Net, torch.optim.Optimizer, Any, Checkpointer]:
        torch.manual_seed(1)
        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        tiers = [tmp_path.as_uri()]
        return (
            model,
            optimizer,
            scaler,
            Checkpointer(model=model, optimizer=optimizer, extra={"s": scaler}, tiers=tiers),
        )

    def batch(
        model: Net, optimizer: torch.optim.Optimizer, scaler: Any, factor: float = 1.0
    ) -> None:
        optimizer.zero_grad()
        scaler.scale(model(X).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()

    model, optimizer, scaler, saver = begin()
    for _ in range(5):
        batch(model, optimizer, scaler)
    batch(model, optimizer, scaler, float("inf"))
    assert saver.version == 5 and scaler.get_scale() == 16.0  # 8, grown twice, and once halved
    batch(model, optimizer, scaler)
    saver.save(block=True)
    saver.close()
    again = begin()
    assert again[3].restore_latest() == 6
    assert again[2].state_dict() == scaler.state_dict()
    for run in ((model, optimizer, scaler), again[:3]):
        batch(*run)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), again[0].parameters(), strict=True)
    )
    assert again[2].get_scale() == scaler.get_scale() == 32.0
    again[3].close()


def test_parameters_of_no_optimizer_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Net()
    optimizer = Add(model.head.parameters())
    Checkpointer(model=model, optimizer=optimizer, tiers=[tmp_path.as_uri()]).close()
    assert (
        "4 parameters that can be trained, encoder.0.weight for one, belong to no optimizer"
        in caplog.text
    )


def test_copies_of_a_model_are_not_watched(tmp_path: Path) -> None:
    run = Run(tmp_path, every=None)
    run.step()
    twin = copy.deepcopy(run.model)
    torch.optim.swa_utils.AveragedModel(run.model)
    twin(X)
    torch.save(run.model, io.BytesIO())
    copy.deepcopy(run.optimizer)
    assert run.saver.version == 1
    run.saver.close()


def test_a_compiled_model(tmp_path: Path) -> None:
    """One graph, and files whose names are those of the plain model."""
    run = Run(tmp_path)
    torch._dynamo.reset()
    compiled = torch.compile(run.model, backend="eager", fullgraph=True)
    for _ in range(4):
        compiled(X).sum().backward()
        run.optimizer.step()
        run.settle()
    run.saver.save(block=True)
    run.saver.close()
    assert right(tmp_path)[-1] == 4
    wrapped = Checkpointer(
        model=compiled, optimizer=run.optimizer, tiers=[(tmp_path / "w").as_uri()]
    )
    wrapped.save(block=True)
    wrapped.close()
    (tree,) = saved(tmp_path / "w").values()
    assert "head.weight" in tree["model"]


def test_a_step_inside_a_step_counts_once(tmp_path: Path) -> None:
    class Twice(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    # From now on the step of SGD itself is hooked
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    run = Run(tmp_path, every=None, optimizer=Twice)
    for _ in range(4):
        run.step()
    assert run.saver.version == 4
    run.saver.close()


class Odd:
    def __init__(self) -> None:
        self.value: Any = 1

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: Any) -> None:
        self.value = state["value"]


def test_a_refused_constructor_leaves_nothing_behind(tmp_path: Path) -> None:
    model, odd = Net(), Odd()
    optimizer = Add(model.parameters())
    odd.value = {1, 2}
    with pytest.raises(RequestError, match="value"):
        Checkpointer(
            model=model, optimizer=optimizer, extra={"odd": odd}, tiers=[tmp_path.as_uri()], every=1
        )
    model(X).sum().backward()
    optimizer.step()
    assert not optimizer._optimizer_step_post_hooks and not model._forward_pre_hooks


def test_an_extra_that_becomes_something_else_does_not_stop_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd = Odd()
    run = Run(tmp_path, extra={"odd": odd})
    run.step()
    run.step()
    odd.value = {1, 2}
    run.step()
    run.step()
    odd.value = 5
    run.step()
    run.saver.save(block=True)
    run.saver.close()
    assert "is not saved" in caplog.text and "odd" in caplog.text
    assert right(tmp_path)[-1] == 5


def test_after_close_nothing_is_saved(tmp_path: Path) -> None:
    run = Run(tmp_path, every=None)
    run.step()
    run.saver.save(block=True)
    run.saver.close()
    run.step()
    with pytest.raises(CheckpointError, match="closed"):
        run.saver.save(block=True)
    assert right(tmp_path) == [1]


def test_what_is_saved_by_hand_is_the_present_state(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.1)
    saver = Checkpointer(
        model=model,
        optimizer=optimizer,
        extra={"plateau": plateau},
        tiers=[tmp_path.as_uri()],
        every=1,
        keep=1000,
    )
    model(X).sum().backward()
    optimizer.step()
    model(X)  # the version of the schedule is taken here
    plateau.step(1.0)
    plateau.step(1.0)
    saver.save(block=True)
    lr = optimizer.param_groups[0]["lr"]
    assert saved(tmp_path)[1]["optimizer"]["param_groups"][0]["lr"] == lr < 1
    model.load_state_dict({name: value + 3 for name, value in model.state_dict().items()})
    saver.save(block=True)
    assert torch.equal(saved(tmp_path)[1]["model"]["head.weight"], model.head.weight.detach())
    first = saver.save(block=True)
    assert saver.save(block=True) is first  # nothing has changed
    saver.close()


def test_a_version_that_was_damaged_is_made_again(tmp_path: Path) -> None:
    run = Run(tmp_path, every=None)
    for _ in range(2):
        run.step()
        run.saver.save(block=True)
    file = VersionFolder(tmp_path).file("job", 2)
    with file.open("r+b") as stream:
        stream.seek(3000)
        stream.write(b"?")
    assert run.saver.restore_latest() == 1
    run.step()
    run.saver.save(block=True)
    run.saver.close()
    assert right(tmp_path) == [1, 2]


def test_an_own_scheduler_belongs_to_its_step(tmp_path: Path) -> None:
    class Scheduler(Odd):
        def step(self) -> None:
            self.value += 1

    scheduler = Scheduler()
    run = Run(tmp_path, extra={"scheduler": scheduler})
    for _ in range(5):
        run.step()
        scheduler.step()
    run.saver.save(block=True)
    run.saver.close()
    for version, tree in saved(tmp_path).items():
        assert tree["extra"]["scheduler"]["value"] == version + 1


def test_another_default_device(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        run = Run(tmp_path)
        stack.enter_context(torch.device("meta"))
        for _ in range(3):
            run.optimizer.step()
        run.saver.save(block=True)
        run.saver.close()
    assert right(tmp_path)[-1] == 3
