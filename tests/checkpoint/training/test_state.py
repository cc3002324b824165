"""What a state consists of, when each part of it is read, and that it goes back whole or not at
all.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from deepvm.checkpoint.format.flatten import map_leaves  # noqa: E402
from deepvm.checkpoint.training.state import RANDOM, TrainingState, pack, unpack  # noqa: E402
from deepvm.errors import CheckpointError  # noqa: E402


class Counter:
    """Of no class that torch knows: a scheduler of another library, a moving average."""

    def __init__(self) -> None:
        self.number = 0

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number = state["number"]


class Loader(Counter):
    """A loader that can go on where it was."""

    def __iter__(self) -> Iterator[int]:
        yield self.number


class Sampler(torch.utils.data.Sampler):  # type: ignore[misc]
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def cdata(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def test_only_samplers_and_loaders_are_read_behind_the_step() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    late = {
        "foreign": Counter(),
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1),
        "scaler": torch.amp.GradScaler("cpu"),
        "average": torch.optim.swa_utils.AveragedModel(model),
        "list": torch.nn.ModuleList([model]),  # has __iter__, too
        "second": torch.optim.SGD(model.parameters()),
    }
    state = TrainingState(model, optimizer, {**late, "loader": Loader(), "sampler": Sampler()})
    early = state.early()
    assert set(early) == {"loader", "sampler", RANDOM}
    for value in state.extra.values():
        if isinstance(value, Counter):
            value.number = 7
    extra = state.tree(1, early)["extra"]
    assert (extra["foreign"]["number"], extra["loader"]["number"]) == (7, 0)
    assert set(extra) == {*late, *early}


def test_every_optimizer_gates_what_it_changes() -> None:
    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(3, 3)
    first = torch.optim.Adam(model.parameters())
    second = torch.optim.LBFGS(other.parameters())  # keeps lists of tensors
    loose = torch.nn.Parameter(torch.ones(1))
    third = torch.optim.SGD([loose], momentum=0.9)

    def closure() -> Any:
        loss = other(torch.ones(1, 3)).square().sum()
        loss.backward()
        return loss

    (model(torch.ones(1, 2)).sum() + loose).backward()
    for _ in range(3):
        first.step()
        second.step(closure)
        third.step()
    state = TrainingState(
        model, first, {"other": other, "second": second, "n": Counter(), "third": third}
    )
    assert tuple(state.optimizers.values()) == (first, second, third)
    kept = [*first.state[model.weight].values(), third.state[loose]["momentum_buffer"]]
    history = second.state[other.weight]["old_dirs"]
    assert history
    parameters = [*model.parameters(), *other.parameters(), loose]
    assert {cdata(t) for t in (*parameters, *kept, *history)} <= state.owned().gated
    buffer = torch.zeros(1)
    model.register_buffer("seen", buffer)
    assert cdata(buffer) not in state.owned().gated


def test_wrappings_do_not_show_in_the_names() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    compiled = torch.compile(model, backend="eager")
    for wrapped in (
        compiled,
        torch.nn.DataParallel(model),
        torch.nn.DataParallel(compiled),
        torch.compile(torch.nn.DataParallel(compiled), backend="eager"),
    ):
        state = TrainingState(wrapped, optimizer)
        assert state.model is model
        assert list(state.tree(0, state.early())["model"]) == ["weight", "bias"]


def test_parameters_that_nobody_updates_are_named() -> None:
    model = torch.nn.ModuleDict({n: torch.nn.Linear(2, 2) for n in ("a", "b", "c", "d")})
    model["c"].requires_grad_(False)
    first, second = torch.optim.SGD(model["a"].parameters()), torch.optim.SGD([model["b"].weight])
    assert TrainingState(model, first, {"second": second}).unknown_parameters() == [
        "b.bias",
        "d.weight",
        "d.bias",
    ]
    assert TrainingState(model, torch.optim.SGD(model.parameters())).unknown_parameters() == []


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, width: int = 4, more: bool = False, buffer: bool = False) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, width)
        if more:
            self.third = torch.nn.Linear(4, 4)
        if buffer:
            self.register_buffer("seen", torch.ones(1))

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x))


class Picky(Counter):
    """Takes no state that says 1."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number = -1
        if state["number"] == 1:
            raise TypeError("not this")
        super().load_state_dict(state)


def job(seed: int, model: Any = None, split: bool = False, extra: Any = None) -> TrainingState:
    torch.manual_seed(seed)
    model = Net() if model is None else model
    groups = [{"params": [p]} for p in model.parameters()] if split else model.parameters()
    optimizer = torch.optim.Adam(groups, lr=0.01 * seed)
    for _ in range(seed):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    return TrainingState(model, optimizer, extra)


def bits(state: TrainingState) -> str:
    extra = {k: v.state_dict() for k, v in state.extra.items()}
    tree = [state.model.state_dict(), state.optimizer.state_dict(), extra, torch.get_rng_state()]
    return repr(map_leaves(tree, lambda tensor: tensor.tolist(), lambda number: number))


def saved(state: TrainingState) -> Any:
    return copy.deepcopy(state.tree(5, state.early()))


def test_a_version_of_another_training_changes_nothing() -> None:
    for other, words in [
        (lambda: job(2, split=True), "its optimizer have 4 parameters, here they have 1, 1, 1, 1"),
        (lambda: job(2, Net(width=3)), "second.weight"),
        (lambda: job(2, Net(more=True)), "4 parameters, here they have 6"),
        (lambda: job(2, Net(buffer=True)), "Missing key.*seen"),
        (lambda: job(2, extra={"lacking": Counter()}), "lacking"),
    ]:
        tree = saved(job(1))
        state = other()
        before = bits(state)
        with pytest.raises(CheckpointError, match=words) as caught:
            state.restore(tree)
        assert "\n" not in str(caught.value)
        assert bits(state) == before


def test_a_second_optimizer_of_another_kind_changes_nothing() -> None:
    def built(count: int) -> TrainingState:
        model = Net()
        second = torch.optim.SGD([torch.nn.Parameter(torch.ones(1)) for _ in range(count)])
        return job(count, model, extra={"second": second, "n": Counter()})

    tree, state = saved(built(1)), built(2)
    before = bits(state)
    with pytest.raises(CheckpointError, match="'second'"):
        state.restore(tree)
    assert bits(state) == before


def test_an_extra_that_fails_takes_everything_back() -> None:
    extra = {"before": Counter(), "picky": Picky(), "average": Net()}
    tree = saved(job(1, extra=extra))
    tree["extra"]["picky"]["number"] = 1
    state = job(2, extra={"before": Counter(), "picky": Picky(), "average": Net()})
    before = bits(state)
    with pytest.raises(CheckpointError, match="TypeError: not this"):
        state.restore(tree)
    assert bits(state) == before


def test_a_version_of_this_training_comes_back_whole() -> None:
    one = job(1, extra={"n": Counter()})
    tree, before = saved(one), bits(one)
    two = job(2, extra={"n": Counter()})
    assert bits(two) != before
    assert two.restore(tree) == 5
    assert bits(two) == before
    tree["optimizer"]["state"][0]["exp_avg"].fill_(99)  # its memory may go away
    assert bits(two) == before


def test_a_model_that_knows_older_names_may_take_them() -> None:
    tree = saved(job(1))
    tree["model"] = {k.replace("first", "old"): v for k, v in tree["model"].items()}
    state = job(2)

    def rename(module: Any, found: dict[str, Any], *_: Any) -> None:
        for key in [k for k in found if k.startswith("old")]:
            found[key.replace("old", "first")] = found.pop(key)

    state.model.register_load_state_dict_pre_hook(rename)
    assert state.restore(tree) == 5
    assert bits(state) == bits(job(1))


def test_a_state_is_taken_whatever_the_default_device_is() -> None:
    model, extra = torch.nn.Linear(2, 2), {"loader": Loader()}
    state = TrainingState(model, torch.optim.SGD(model.parameters()), extra)
    with torch.device("meta"):
        found = state.early()
        record = state.record()
        assert unpack(pack(record, len(record) + 100))["early"]["loader"] == {"number": 0}
        state.restore(state.tree(3, found))
    tensors: list[Any] = []
    map_leaves(found, tensors.append, lambda number: number)
    assert len(tensors) >= 3 and all(t.device.type == "cpu" for t in tensors)
