"""Which job a training continues, and how to continue one whose model or optimizer was built
differently by its end.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from torch.nn.utils import parametrizations, prune  # noqa: E402

from deepvm.checkpoint import Checkpointer, inspect_latest  # noqa: E402
from deepvm.errors import CheckpointError, RequestError  # noqa: E402

nn = torch.nn


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes another script of this process."""
    monkeypatch.delenv("DEEPVM_JOB")
    return lambda path: monkeypatch.setattr(
        sys.modules["__main__"], "__file__", path, raising=False
    )


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def train(model: Any, optimizer: Any, steps: int = 2) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()


def saved_by(folder: Path, **options: Any) -> str:
    """Train for two steps and save; returns the job's name."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    with Checkpointer(model=model, optimizer=optimizer, tiers=folder, **options) as saver:
        train(model, optimizer)
        saver.save(block=True)
        return saver.job


def restored(folder: Path, allow_fresh: bool = False, **options: Any) -> int:
    model = net()
    with Checkpointer(
        model=model, optimizer=torch.optim.Adam(model.parameters()), tiers=folder, **options
    ) as saver:
        return saver.restore_latest(allow_fresh=allow_fresh)


def test_scripts_do_not_continue_each_other(
    tmp_path: Path, script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "deepvm.checkpoint")
    script("/one/train.py")
    name = saved_by(tmp_path)
    assert name.startswith("train-")
    assert restored(tmp_path) == 2
    assert f"(job {name}, " in caplog.text and f"file {name}-000000000002.pt" in caplog.text
    script("/two/train.py")
    assert restored(tmp_path) == 0
    assert f"starts at 0; other jobs there: {name}" in caplog.text


NAME = (
    "from deepvm.checkpoint.files.file_names import derived_name\nimport os, multiprocessing as"
    " m\n{}\n"
)


def test_a_restart_has_the_same_name_however_it_is_started(tmp_path: Path) -> None:
    """Nor does it depend on arguments, the working directory, or the process that trains."""
    spawn = (
        "if __name__ == '__main__': p = m.get_context('spawn').Process(target=show); p.start();"
        " p.join()"
    )
    (tmp_path / "my train.py").write_text(
        NAME.format(f"os.chdir('/')\ndef show(): print(derived_name())\n{spawn}")
    )
    (tmp_path / "module.py").write_text(NAME.format("print(derived_name())"))

    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{Path(__file__).parents[2]}:{tmp_path}"}

    def name(*words: str, cwd: Path = tmp_path, code: str | None = None) -> str:
        command = [sys.executable, *words]
        return subprocess.check_output(command, cwd=cwd, env=environ, input=code, text=True).strip()

    spawned = name("my train.py")
    assert spawned == name(str(tmp_path / "my train.py"), "--lr", "0.1", cwd=Path("/"))
    assert spawned.startswith("my-train-")
    assert name("module.py") == name("-m", "module", cwd=Path("/")) != spawned
    code = NAME.format("print(derived_name())")
    assert name(code=code) == name("-", "--lr", code=code) != name(code=code, cwd=Path("/"))
    assert name("-c", code) == name("-c", code, "--lr") != name("-c", code, cwd=Path("/"))


def add_group(model: Any, optimizer: Any) -> None:
    optimizer.add_param_group({"params": model[1].parameters()})


def grow(model: Any, _: Any) -> None:
    model.queue = torch.ones(3, 2)


CHANGES: list[tuple[Callable[[Any, Any], Any], Callable[[Any], bool], str]] = [
    (
        add_group,
        lambda tree: len(tree["optimizer"]["param_groups"]) > 1,
        "2, 2 parameters, here they have 2",
    ),
    (grow, lambda tree: tree["model"]["queue"].shape == (3, 2), "size mismatch for queue"),
    (
        lambda model, _: prune.l1_unstructured(model[0], "weight", 4),
        lambda tree: "0.weight_mask" in tree["model"],
        "0.weight_orig",
    ),
    (
        lambda model, _: parametrizations.weight_norm(model[0]),
        lambda tree: any("parametrizations" in name for name in tree["model"]),
        "parametrizations",
    ),
]


@pytest.mark.parametrize(("change", "shows", "words"), CHANGES)
def test_what_is_built_differently_after_some_step_is_restored_by_inspecting_first(
    tmp_path: Path, change: Any, shows: Any, words: str
) -> None:
    def made() -> tuple[Any, Any]:
        model = net()
        model.register_buffer("queue", torch.zeros(0, 2))
        return model, torch.optim.Adam(model[0].parameters())

    assert inspect_latest(tiers=tmp_path) is None
    model, optimizer = made()
    with Checkpointer(model=model, optimizer=optimizer, tiers=tmp_path) as saver:
        train(model, optimizer)
        change(model, optimizer)
        train(model, optimizer)
        saver.save(block=True)
    model, optimizer = made()
    saver = Checkpointer(model=model, optimizer=optimizer, tiers=tmp_path)
    with saver, pytest.raises(CheckpointError, match=rf"{words}.*inspect_latest\(tiers=\.\.\.\)"):
        saver.restore_latest()
    tree = inspect_latest(tiers=tmp_path)
    assert tree is not None and tree["version"] == 4 and shows(tree)
    assert all(tensor.device.type == "meta" for tensor in tree["model"].values())
    again, optimizer_again = made()
    change(again, optimizer_again)
    with Checkpointer(model=again, optimizer=optimizer_again, tiers=tmp_path) as saver:
        assert saver.restore_latest() == 4
        whole = torch.load(next(tmp_path.glob("*04.pt")), weights_only=True)
        present = again.state_dict()
        assert present.keys() == whole["model"].keys()
        assert all(torch.equal(value, present[name]) for name, value in whole["model"].items())
        assert repr(optimizer_again.state_dict()) == repr(whole["optimizer"])


class Extra:
    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


class Own(nn.Linear):  # type: ignore[misc]
    """A module with a state that is an object."""

    def get_extra_state(self) -> object:
        return Extra(1)

    def set_extra_state(self, state: object) -> None:
        """Nothing."""


def with_buffer(tensor: Any) -> Any:
    model = net()
    model.register_buffer("odd", tensor)
    return model


def with_metadata() -> Any:
    model = net()
    model[0]._register_state_dict_hook(
        lambda module, state, prefix, metadata: metadata.update(odd=Extra(1))
    )
    return model


def in_inference_mode() -> Any:
    with torch.inference_mode():
        return torch.ones(3)


def nested_in_itself() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("model", "extra", "words"),
    [
        (
            lambda: with_buffer(torch.ones(1).expand(4)),
            None,
            r"for model\.odd: 'an expanded tensor.*\.clone\(\)",
        ),
        (
            lambda: with_buffer(in_inference_mode()),
            None,
            r"for model\.odd: 'a tensor of inference_mode.*\.clone\(\)",
        ),
        (
            lambda: with_buffer(torch.nested.nested_tensor([torch.ones(1)])),
            None,
            r"nested tensor.*\.unbind\(\)",
        ),
        (lambda: with_metadata(), None, r"'Extra' .*save its fields"),
        (lambda: Own(4, 4), None, r"_extra_state.*'Extra' .*save its fields"),
        (
            lambda: nn.LazyLinear(4),
            None,
            r"one forward, model\(example\), before the Checkpointer is made",
        ),
        (
            net,
            lambda: with_buffer(torch.ones(1).expand(4)),
            r"for extra\['odd'\]\.odd: 'an expanded tensor",
        ),
        (net, lambda: Extra(np.ones(3)), r"'ndarray'.*torch\.from_numpy\(x\).*\.numpy\(\)"),
        (net, lambda: Extra(np.float64(1)), r"'float64'.*x\.item\(\)"),
        (net, lambda: Extra(deque([1])), r"'deque'.*list\(x\).*deque\(state"),
        (net, lambda: Extra({1}), r"'set'.*sorted\(x\)"),
        (net, lambda: Extra(torch.Generator()), r"'Generator'.*x\.get_state\(\)"),
        (net, lambda: Extra(nested_in_itself()), "nested in itself"),
    ],
)
def test_what_could_not_be_restored_is_refused_at_once_with_the_way_out(
    tmp_path: Path, model: Any, extra: Any, words: str
) -> None:
    made = model()
    with pytest.raises(RequestError, match=words):
        Checkpointer(
            model=made,
            optimizer=torch.optim.SGD(made.parameters()),
            extra={"odd": extra()} if extra else {},
            tiers=tmp_path,
        )


@pytest.mark.parametrize("way_out", [lambda t: t.clone(), lambda t: torch.stack(list(t))])
def test_the_ways_out_can_be_restored(tmp_path: Path, way_out: Any) -> None:
    def made() -> tuple[Any, Any, Extra]:
        model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4))
        model.register_buffer("odd", way_out(torch.ones(1).expand(4)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(torch.ones(1, 4))  # gives the lazy layer its shape
        return model, optimizer, Extra([0])

    model, optimizer, extra = made()
    with Checkpointer(
        model=model, optimizer=optimizer, extra={"e": extra}, tiers=tmp_path
    ) as saver:
        train(model, optimizer)
        extra.value = torch.from_numpy(np.arange(3))
        model.odd.add_(torch.arange(4.0))
        saver.save(block=True)
    again, optimizer_again, extra_again = made()
    with Checkpointer(
        model=again, optimizer=optimizer_again, extra={"e": extra_again}, tiers=tmp_path
    ) as saver:
        assert saver.restore_latest() == 2
    assert repr(again.state_dict()) == repr(model.state_dict())
    assert repr(optimizer_again.state_dict()) == repr(optimizer.state_dict())
    assert extra_again.value.numpy().tolist() == [0, 1, 2]


SCRIPT = """
import os, signal, sys, torch
from deepvm.checkpoint import Checkpointer
model = torch.nn.Linear(32, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=LR)
ck = Checkpointer(model=model, optimizer=optimizer, tiers=[sys.argv[1]], every=1)
start = ck.restore_latest()
print(start, flush=True)
for step in range(start, 60):
    optimizer.zero_grad()
    model(torch.randn(8, 32)).square().mean().backward()
    optimizer.step()
    if step == int(sys.argv[2]):
        ck.save(block=True)
        os.kill(os.getpid(), signal.SIGKILL)
ck.save(block=True)
ck.close()
"""


@pytest.mark.slow
def test_a_script_without_a_name_is_killed_restarted_and_changed(tmp_path: Path) -> None:
    train_py, environ = tmp_path / "train.py", {**os.environ, "OMP_NUM_THREADS": "1"}
    del environ["DEEPVM_JOB"]

    def run(kill: int, *before: str, lr: float = 0.001) -> tuple[int, list[str], str]:
        train_py.write_text(SCRIPT.replace("LR", str(lr)))
        words = [sys.executable, *before, str(train_py), (tmp_path / "ck").as_uri(), str(kill)]
        done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout.split(), done.stderr

    assert run(7)[:2] == (-signal.SIGKILL, ["0"])
    code, out, err = run(-1)
    assert (code, out) == (0, ["8"]) and "file train-" in err
    code, out, err = run(-1, lr=0.1)
    assert code and not out and "['lr']: 0.001 -> 0.1" in err
    code, out, _ = run(-1, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1")
    assert (code, out) == (0, ["60"])


def test_without_tiers_checkpoints_go_to_a_folder_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The three lines of a first script work as they are; an agent's machine may vanish."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DEEPVM_TIERS", raising=False)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Checkpointer(model=model, optimizer=optimizer) as ck:
        for _ in ck.steps(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        ck.save(block=True)
    assert f"checkpoints go to {tmp_path / 'checkpoints'}" in caplog.text
    with Checkpointer(model=model, optimizer=optimizer) as ck:
        assert list(ck.steps(3)) == []
    monkeypatch.setenv("DEEPVM_AGENT", str(tmp_path))
    with pytest.raises(RequestError, match="tiers.*at least one"):
        Checkpointer(model=model, optimizer=optimizer)
