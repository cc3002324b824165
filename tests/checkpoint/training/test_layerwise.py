"""Layer by layer: the same training bit by bit, whole versions, and each layer waits for its own
copy only.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint.slow_copies import notice_no_change, slow_copy
from support.places import TESTS

torch = pytest.importorskip("torch")

from support.checkpoint.trainings import Fill, contents  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from deepvm.checkpoint import Checkpointer  # noqa: E402
from deepvm.checkpoint.snapshot.copying import LayerSlot  # noqa: E402
from deepvm.checkpoint.snapshot.host_buffer import Slot  # noqa: E402
from deepvm.checkpoint.training.layerwise import LayerUpdates  # noqa: E402
from deepvm.errors import RequestError  # noqa: E402

SCRIPT = TESTS / "support" / "checkpoint" / "train_layers.py"


class Net(torch.nn.Module):
    """Convolution, BatchNorm, dropout, a tied weight, a layer used twice, one that no step reaches,
    and one frozen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4)
        self.hidden, self.again = torch.nn.Linear(144, 144), torch.nn.Linear(144, 144, bias=False)
        self.tied = torch.nn.Linear(144, 144)
        self.tied.weight = self.hidden.weight
        self.unused, self.frozen = torch.nn.Linear(3, 3), torch.nn.Linear(144, 144)
        self.frozen.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        x = torch.nn.functional.dropout(self.norm(self.conv(x)), 0.3, self.training).flatten(1)
        return self.frozen(self.tied(self.again(torch.relu(self.again(self.hidden(x))))))


def sgd(groups: Any) -> Any:
    return torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=0.01)


def adam(groups: Any) -> Any:
    return torch.optim.Adam(groups, lr=0.01, amsgrad=True)


def adamw(groups: Any) -> Any:
    return torch.optim.AdamW(groups, lr=0.01, foreach=True)


class Job:
    """A training with two groups of parameters and a scheduler.

    Layer by layer where there is a folder.
    """

    def __init__(self, make: Any, folder: Path | None = None, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = Net()
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in trainable if p.dim() > 1]},
            {"params": [p for p in trainable if p.dim() < 2]},
        ]
        groups[1]["weight_decay"] = 0.0  # type: ignore[assignment]
        self.optimizer = make(groups)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.9)
        self.saver: Checkpointer | None = None
        if folder is not None:
            self.saver = Checkpointer(
                model=self.model,
                optimizer=self.optimizer,
                extra={"scheduler": self.scheduler},
                tiers=[folder.as_uri()],
                strategy="layerwise",
                **{"every": 1, "keep": 1000, **options},
            )

    def step(self, number: int) -> None:
        torch.manual_seed(number)
        self.optimizer.zero_grad()
        self.model(torch.randn(4, 1, 8, 8)).square().mean().backward()
        self.optimizer.step()
        self.scheduler.step()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other


@pytest.mark.parametrize("make", [sgd, adam, adamw])
def test_training_is_the_same_bit_by_bit_and_so_is_every_version(make: Any, tmp_path: Path) -> None:
    whole, layers = Job(make), Job(make, tmp_path)
    assert layers.saver is not None
    expected: dict[int, Any] = {}
    for number in range(1, 9):
        whole.step(number)
        layers.step(number)
        assert_same(layers.state(), whole.state())
        expected[number] = (
            json.loads(json.dumps(whole.optimizer.state_dict()["param_groups"])),
            {k: v.clone() for k, v in whole.model.state_dict().items()},
        )
        grads = [
            (p.grad, q.grad)
            for p, q in zip(whole.model.parameters(), layers.model.parameters(), strict=True)
        ]
        assert all((a is None and b is None) or torch.equal(a, b) for a, b in grads)  # for logs
    layers.saver.save(block=True)
    layers.saver.close()
    paths = sorted(tmp_path.glob("*.pt"))
    assert len(paths) >= 3
    for path in paths:
        tree = torch.load(path, weights_only=True)
        assert set(tree) == {"model", "optimizer", "extra", "version", "fingerprint"}
        groups, tensors = expected[tree["version"]]
        assert_same(dict(tree["model"]), tensors)
        assert_same(json.loads(json.dumps(tree["optimizer"]["param_groups"])), groups)
    again = Job(make)  # without deepvm
    tree = torch.load(paths[-1], weights_only=True)
    again.model.load_state_dict(tree["model"])
    again.optimizer.load_state_dict(tree["optimizer"])
    again.scheduler.load_state_dict(tree["extra"]["scheduler"])
    for number in range(9, 12):
        whole.step(number)
        again.step(number)
    assert_same(again.state(), whole.state())


def test_a_run_goes_on_layer_by_layer(tmp_path: Path) -> None:
    whole, first = Job(adam), Job(adam, tmp_path)
    for number in range(1, 6):
        first.step(number)
    assert first.saver is not None
    first.saver.save(block=True)
    first.saver.close()
    second = Job(adam, tmp_path)
    assert second.saver is not None and second.saver.restore_latest() == 5
    for number in range(1, 11):
        whole.step(number)
    for number in range(6, 11):
        second.step(number)
    assert_same(second.state(), whole.state())
    second.saver.close()


class FillLayers(Fill):
    """Counts for each parameter by itself."""

    per_parameter = True

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["m"] += 1
                    p.copy_(self.state[p]["m"])


class Filling:
    def __init__(self, folder: Path, layers: int = 8, **options: Any) -> None:
        self.model = torch.nn.Sequential(
            *[torch.nn.Linear(128, 128, bias=False) for _ in range(layers)]
        )
        self.optimizer = FillLayers(self.model.parameters())
        options = {"every": 1, "keep": 1000, "strategy": "layerwise", **options}
        self.saver = Checkpointer(
            model=self.model, optimizer=self.optimizer, tiers=[folder.as_uri()], **options
        )

    def backward(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.zeros(2, 128)).sum().backward()

    def step(self) -> None:
        self.backward()
        self.optimizer.step()


@pytest.mark.parametrize(("every", "slots"), [(1, 2), (3, 2), (2, 1)])
def test_a_version_holds_the_numbers_of_one_step(
    every: int, slots: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Slot, "copy", slow_copy(0.001))
    copied, done = [0], LayerSlot.done

    def counted(self: LayerSlot, storages: Any) -> set[int]:
        found = done(self, storages)
        copied[0] += len(found)
        return found

    monkeypatch.setattr(LayerSlot, "done", counted)
    job = Filling(tmp_path, every=every, slots=slots)
    for _ in range(24):
        job.step()
        made = job.saver._snapshotter
        # A machine under load may need long to write one, and no slot is free then
        if made.last is not None:
            made.finish()
            made.last.local_done.exception(60)
            time.sleep(0.03)
    job.saver.save(block=True)
    job.saver.close()
    found = contents(tmp_path)
    assert (
        24 in found
        and len(found) >= 4
        and all(values == {version} for version, values in found.items())
    ), found
    # A whole version at the least, parameters and state of 8 layers, during backward
    assert copied[0] >= 16


def test_without_the_gate_that_test_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slot, "copy", slow_copy(0.001))
    monkeypatch.setattr(Checkpointer, "_before_layer", lambda self, copies: None)
    notice_no_change(monkeypatch)
    job = Filling(tmp_path, every=2)
    for _ in range(24):
        job.step()
    job.saver.close()
    assert any(values != {version} for version, values in contents(tmp_path).items())


def test_a_layer_waits_for_its_own_copy_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Filling(tmp_path, every=2)
    for _ in range(3):
        job.step()  # version 2 showed where everything is; the layers of version 4 are copied ahead
    first = job.model[0].weight.detach()
    go, copy = threading.Event(), Slot.copy

    def held(self: Slot, sources: Any, which: Any, *reached: Any) -> None:
        at = {s.data_ptr() for s in sources if s is not None}
        assert first.data_ptr() not in at or not reached or len(at) > 2 or go.wait(30)
        copy(self, sources, which, *reached)

    monkeypatch.setattr(Slot, "copy", held)
    job.step()  # the first layer is updated last, and its copy does not end
    job.optimizer.zero_grad()
    thread = threading.Thread(target=job.backward)
    thread.start()
    deadline = time.monotonic() + 20
    others = [layer.weight.detach() for layer in job.model[1:]]
    while any(p.max() < 5 for p in others) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert [float(p.max()) for p in others] == [5] * 7 and float(first.max()) == 4
    go.set()
    thread.join(30)
    assert not thread.is_alive() and float(first.max()) == 5
    job.optimizer.step()
    job.saver.close()
    assert contents(tmp_path)[4] == {4}


def test_what_is_changed_behind_its_copy_is_copied_again(tmp_path: Path) -> None:
    job = Filling(tmp_path, every=2)
    for number in range(1, 7):
        job.step()
        with torch.no_grad():
            job.model[3].weight += 100  # a moving average, a limit on weights ...
        if number == 4:
            job.model[5].weight.data = torch.full_like(job.model[5].weight, 77.0)
    job.saver.save(block=True)
    job.saver.close()
    trees = {
        int(p.stem[-12:]): torch.load(p, weights_only=True)["model"] for p in tmp_path.glob("*.pt")
    }
    assert float(trees[4]["3.weight"].max()) == 104 and float(trees[4]["5.weight"].max()) == 77
    assert float(trees[6]["3.weight"].max()) == 106 and float(trees[6]["2.weight"].max()) == 6


def test_a_save_by_hand_between_backward_and_step(tmp_path: Path) -> None:
    job = Filling(tmp_path, every=None)
    job.step()
    job.saver.save(block=True)
    job.backward()
    with pytest.raises(RequestError, match="between backward and step"):
        job.saver.save()
    job.optimizer.step()
    job.saver.save(block=True)
    job.saver.close()
    assert contents(tmp_path) == {1: {1}, 2: {2}}


def clip(job: Filling, foreach: bool = False) -> None:
    job.backward()
    torch.nn.utils.clip_grad_norm_(job.model.parameters(), 1.0, foreach=foreach)
    job.optimizer.step()


def clip_together(job: Filling) -> None:
    clip(job, foreach=True)


def clip_values(job: Filling) -> None:
    job.backward()
    torch.nn.utils.clip_grad_value_(job.model.parameters(), 1.0)
    job.optimizer.step()


def accumulate(job: Filling) -> None:
    job.backward()
    job.model(torch.zeros(2, 128)).sum().backward()


def scale(job: Filling) -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(job.model(torch.zeros(2, 128)).sum()).backward()
    scaler.step(job.optimizer)


def close_over(job: Filling) -> None:
    job.optimizer.step(lambda: torch.zeros(1))


def turn_the_rate(job: Filling) -> None:
    job.backward()
    job.optimizer.param_groups[0]["rate"] = 2
    job.optimizer.step()


def add_parameters(job: Filling) -> None:
    job.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})
    job.step()


@pytest.mark.parametrize(
    ("work", "named"),
    [
        (clip, "no clipping"),
        (clip_together, "no clipping"),
        (clip_values, "no clipping"),
        (accumulate, "no accumulation"),
        (scale, "GradScaler"),
        (close_over, "closure"),
        (turn_the_rate, "options that change"),
        (add_parameters, "parameters that were added"),
    ],
)
def test_what_needs_all_gradients_is_refused(
    work: Callable[[Filling], None], named: str, tmp_path: Path
) -> None:
    job = Filling(tmp_path)
    job.step()
    with pytest.raises(RequestError, match="'layerwise' .*strategy=\"C\"") as error:
        work(job)
    assert named in str(error.value)
    job.saver.close()


def test_what_cannot_be_divided_is_refused_at_once(tmp_path: Path) -> None:
    def make(optimizer: Callable[[Any], Any], **options: Any) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        Checkpointer(
            model=model,
            optimizer=optimizer(model),
            tiers=[tmp_path.as_uri()],
            strategy="layerwise",
            **options,
        )

    more = torch.nn.Parameter(torch.ones(3))
    for optimizer, named in (
        (lambda m: torch.optim.LBFGS(m.parameters()), "LBFGS"),
        (lambda m: Fill(m.parameters()), "per_parameter"),
        (lambda m: torch.optim.SGD(m[0].parameters(), lr=1), "SGD without 2 parameters"),
        (lambda m: torch.optim.SGD([*m.parameters(), more], lr=1), "not the model's"),
    ):
        with pytest.raises(RequestError, match=named):
            make(optimizer)
    with pytest.raises(RequestError, match="GradScaler"):
        make(
            lambda m: torch.optim.SGD(m.parameters(), lr=1),
            extra={"scaler": torch.amp.GradScaler("cpu")},
        )


def test_a_refused_training_goes_on_as_usual() -> None:
    """In DistributedDataParallel with a communication hook of its own."""
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        model = DistributedDataParallel(torch.nn.Linear(3, 3))
        model.register_comm_hook(None, lambda state, bucket: averaged(bucket))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with pytest.raises(RequestError, match="communication hook"):
            LayerUpdates(model, optimizer, lambda layer: None, lambda layer: None, 1)
        before = model.module.weight.detach().clone()
        for _ in range(2):  # a second backward pass before the step: layerwise would refuse it
            model(torch.ones(1, 3)).sum().backward()
        assert torch.equal(before, model.module.weight)
        optimizer.step()
        assert torch.equal(before - 2, model.module.weight)
    finally:
        torch.distributed.destroy_process_group()


def averaged(bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def test_after_close_the_training_goes_on_as_usual(tmp_path: Path) -> None:
    whole, layers = Job(sgd), Job(sgd, tmp_path)
    assert layers.saver is not None
    for number in range(1, 3):
        whole.step(number)
        layers.step(number)
    layers.saver.close()
    for number in range(3, 6):
        whole.step(number)
        layers.step(number)
    assert_same(layers.state(), whole.state())


@pytest.mark.slow
def test_two_ranks_layer_by_layer(tmp_path: Path) -> None:
    """The same numbers as DistributedDataParallel alone, whole versions, and the refusals that need
    ranks.
    """
    out = tmp_path / "found"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(SCRIPT),
    ]
    command += [(tmp_path / "versions").as_uri(), str(out)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(2)]
    for own in found:
        assert own["layerwise"]["bits"] == own["plain"]["bits"]
        assert own["ahead"] > 0 and own["layerwise"]["disagreements"] == 0
        assert set(own["refused"]) == {"clip", "accumulate", "unused", "hook", "bare"}
        assert all("layerwise" in told for told in own["refused"].values()), own["refused"]
    paths = sorted((tmp_path / "versions").glob("*.pt"))
    assert len(paths) >= 4
    for path in paths:
        tree = torch.load(path, weights_only=True)
        assert found[0]["plain"]["sums"][str(tree["version"])] == [
            float(t.double().sum()) for t in tree["model"].values() if t.is_floating_point()
        ] + [float(s["exp_avg"].double().sum()) for s in tree["optimizer"]["state"].values()]


def test_the_whole_optimizer_is_what_is_divided() -> None:
    """An attribute that a scheduler puts on the instance must not come into the parts: it would
    step the whole.
    """
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    torch.optim.lr_scheduler.ConstantLR(optimizer)
    updates = LayerUpdates(model, optimizer, lambda layer: None, lambda layer: None, 1)
    before = model.weight.detach().clone()
    model(torch.ones(1, 3)).sum().backward()
    assert not torch.equal(before, model.weight) and updates.ahead
    optimizer.step()
    assert not updates.ahead
    assert torch.allclose(
        before - model.weight, torch.full((3, 3), optimizer.param_groups[0]["lr"])
    )


@pytest.mark.parametrize("failure", ["backward", "clip"])
def test_an_unfinished_step_can_be_forgotten(failure: str) -> None:
    """As when a version was restored behind an error: the next step is a whole one, of the restored
    numbers.
    """
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    updates = LayerUpdates(model, optimizer, lambda layer: None, lambda layer: None, 1)
    x, kept = torch.randn(2, 4), copy.deepcopy(model.state_dict())

    def step(clip: bool = False) -> None:
        optimizer.zero_grad()
        model(x).square().sum().backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.001)
        optimizer.step()

    def fail(gradient: Any) -> None:
        raise ArithmeticError("in backward")

    if failure == "backward":
        handle = model[0].weight.register_hook(fail)
        with pytest.raises(ArithmeticError):
            step()
        handle.remove()
    else:
        with pytest.raises(RequestError, match="clipping"):
            step(clip=True)
    assert updates.ahead and not torch.equal(kept["1.weight"], model[1].weight)
    model.load_state_dict(kept)
    optimizer.state.clear()
    updates.reset()
    assert not updates.ahead
    step()
    assert not updates.ahead
    other = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    other.load_state_dict(kept)
    plain = torch.optim.Adam(other.parameters(), lr=0.1)
    other(x).square().sum().backward()
    plain.step()
    assert_same(model.state_dict(), other.state_dict())
