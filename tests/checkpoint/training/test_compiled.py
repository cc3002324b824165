"""Steps that torch.compile has made, and those in wrappers: the gate holds there as well."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint.slow_copies import notice_no_change, slow_copy
from support.effort import sampled

torch = pytest.importorskip("torch")

from deepvm.checkpoint import Checkpointer  # noqa: E402
from deepvm.checkpoint.files.version_dir import VersionFolder  # noqa: E402
from deepvm.checkpoint.snapshot.host_buffer import Slot  # noqa: E402
from deepvm.errors import RequestError  # noqa: E402

# torch's own, at its first compilation.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
STEPS, EVERY = 16, 3


class Filled:
    """A training after whose step v every parameter is v: the gradient of their sum is 1
    everywhere.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        self.model = torch.nn.Sequential(*[torch.nn.Linear(64, 64, bias=False) for _ in range(12)])
        for p in self.model.parameters():
            torch.nn.init.zeros_(p)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=1.0, maximize=True, foreach=False
        )
        self.folder, self.options = folder, options
        self.stored = self.optimizer.step

    def saver(self, optimizer: Any = None) -> Checkpointer:
        given = {
            "model": self.model,
            "optimizer": optimizer or self.optimizer,
            "every": EVERY,
            "keep": 100,
        }
        return Checkpointer(**given, tiers=[self.folder.as_uri()], **self.options)

    def backward(self) -> None:
        self.optimizer.zero_grad()
        torch.stack([p.sum() for p in self.model.parameters()]).sum().backward()

    def contents(self) -> dict[int, set[float]]:
        found = {}
        for manifest in VersionFolder(self.folder).versions("job"):
            path = VersionFolder(self.folder).file("job", manifest.version)
            tree = torch.load(path, weights_only=True)
            found[tree["version"]] = set().union(
                *(set(t.unique().tolist()) for t in tree["model"].values())
            )
        return found


def whole(run: Filled, backend: str) -> Callable[[], None]:
    def step() -> None:
        run.backward()
        run.optimizer.step()

    return torch.compile(step, backend=backend)


def scaled(run: Filled, backend: str) -> Callable[[], None]:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=1000)

    def step() -> None:
        run.optimizer.zero_grad()
        scaler.scale(torch.stack([p.sum() for p in run.model.parameters()]).sum()).backward()
        scaler.step(run.optimizer)
        scaler.update()

    return step


def scheduled(run: Filled, backend: str) -> Callable[[], None]:
    """A scheduler puts a function of its own in the place of ``optimizer.step``."""
    torch.optim.lr_scheduler.LambdaLR(run.optimizer, lambda step: 1.0)
    return both(run, torch.compile(run.optimizer.step, backend=backend))


def both(run: Filled, step: Callable[[], Any]) -> Callable[[], None]:
    def work() -> None:
        run.backward()
        step()

    return work


WAYS: dict[str, Callable[[Filled, str], Callable[[], None]]] = {
    "compiled": lambda run, backend: both(run, torch.compile(run.optimizer.step, backend=backend)),
    "the class's, compiled": lambda run, backend: both(
        run, partial(torch.compile(type(run.optimizer).step, backend=backend), run.optimizer)
    ),
    "compiled with backward": whole,
    "compiled with a scheduler": scheduled,
    "stored before": lambda run, backend: both(run, run.stored),
    "a scaler": scaled,
}


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    torch._dynamo.reset()


def train(
    run: Filled, way: str, backend: str = "eager", *, compiled_before: bool = False
) -> dict[int, set[float]]:
    step = WAYS[way](run, backend)
    before = 0
    if compiled_before:
        step()
        step()
        before = 2
    with run.saver() as saver:
        for _ in range(STEPS):
            step()
        saver.wait()
        assert saver.version == STEPS
        saver.save(block=True)
    return {
        version: {value - before for value in values} for version, values in run.contents().items()
    }


@pytest.mark.parametrize("way", sampled(WAYS))
def test_a_version_holds_the_numbers_of_one_step(way: str, tmp_path: Path) -> None:
    found = train(Filled(tmp_path), way)
    assert STEPS in found and len(found) >= 2
    assert all(values == {version} for version, values in found.items()), found


@pytest.mark.parametrize(
    "backend",
    ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)],
    ids=["aot", "inductor"],
)
@pytest.mark.parametrize("compiled_before", [False, True], ids=["after", "before"])
def test_as_a_backend_runs_it(backend: str, compiled_before: bool, tmp_path: Path) -> None:
    """Also what was compiled, and had run, before there was a checkpointer."""
    found = train(Filled(tmp_path), "compiled", backend, compiled_before=compiled_before)
    assert STEPS in found and len(found) >= 2
    assert all(values == {version} for version, values in found.items()), found


def test_without_the_gate_that_test_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutation: copies are slow, so that the next compiled steps come meanwhile, and nobody
    waits for them.
    """
    monkeypatch.setattr(Slot, "copy", slow_copy(0.001))
    assert all(
        values == {version}
        for version, values in train(Filled(tmp_path / "gate"), "compiled").items()
    )
    monkeypatch.setattr(Checkpointer, "_before_step", Checkpointer._before_forward)
    notice_no_change(monkeypatch)
    found = train(Filled(tmp_path / "none"), "compiled")
    assert any(values != {version} for version, values in found.items())


class Nested(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def test_a_compiled_step_within_a_step_is_one(tmp_path: Path) -> None:
    run = Filled(tmp_path)
    run.optimizer = Nested(run.model.parameters(), lr=1.0, maximize=True, foreach=False)
    found = train(run, "compiled")
    assert all(values == {version} for version, values in found.items()), found


def test_other_compiled_optimizers_wait_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two optimizers one is an extra: its step must wait for the copy as well."""
    monkeypatch.setattr(Slot, "copy", slow_copy(0.001))
    run = Filled(tmp_path)
    halves = [*run.model.parameters()]
    run.optimizer, other = (
        torch.optim.SGD(h, lr=1.0, maximize=True, foreach=False) for h in (halves[:6], halves[6:])
    )
    run.options["extra"] = {"other": other}
    steps = [torch.compile(o.step, backend="eager") for o in (other, run.optimizer)]
    with run.saver() as saver:
        for _ in range(STEPS):
            torch.stack([p.sum() for p in halves]).sum().backward()
            for step in steps:
                step()
            for p in halves:
                p.grad = None
        saver.save(block=True)
    found = run.contents()
    assert len(found) >= 2 and all(values == {version} for version, values in found.items()), found


def test_a_graph_that_must_be_whole_is_refused_with_the_reason(tmp_path: Path) -> None:
    """torch's own optimizers break it themselves; a class of one's own need not."""
    run = Filled(tmp_path)
    with run.saver():
        run.backward()
        with pytest.raises(torch._dynamo.exc.Unsupported, match="without fullgraph=True"):
            torch.compile(run.optimizer.step, backend="eager", fullgraph=True)()


class Wrapper(torch.optim.Optimizer):
    """What Accelerate's AcceleratedOptimizer is: an optimizer by its class, without hooks of its
    own.
    """

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    @property
    def state(self) -> Any:
        return self.optimizer.state

    @state.setter
    def state(self, state: Any) -> None:
        self.optimizer.state = state

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: Any) -> None:
        self.optimizer.param_groups = groups

    def state_dict(self) -> Any:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.optimizer.load_state_dict(state)

    def step(self, closure: Any = None) -> None:
        self.optimizer.step(closure)


def test_a_wrapped_optimizer(tmp_path: Path) -> None:
    run = Filled(tmp_path)
    wrapper = Wrapper(run.optimizer)
    with run.saver(wrapper) as saver:
        for _ in range(STEPS):
            run.backward()
            wrapper.step()
        assert saver.version == STEPS
        saver.save(block=True)
    found = run.contents()
    assert len(found) >= 2 and all(values == {version} for version, values in found.items()), found
    again = Filled(tmp_path)
    with again.saver(Wrapper(again.optimizer)) as saver:
        assert saver.restore_latest() == STEPS


@pytest.mark.parametrize(
    "wrong", [None, [1], torch.nn.Linear(1, 1)], ids=["none", "list", "module"]
)
def test_what_is_no_optimizer_is_refused(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"optimizer: .* a torch.optim.Optimizer"):
        Checkpointer(model=torch.nn.Linear(1, 1), optimizer=wrong, tiers=[tmp_path.as_uri()])
