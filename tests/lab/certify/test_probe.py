"""What the probe logs beside a training, and that it changes nothing there."""

from __future__ import annotations

import errno
import io
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deepvm.lab.certify import probe as probes
from deepvm.lab.certify.probe import Probe, SampleLog

torch = pytest.importorskip("torch")
nn = torch.nn


class Hooks:
    """The part of ``torch.optim.optimizer`` that the probe uses, for one optimizer."""

    def __init__(self) -> None:
        self.before: list[Callable[..., Any]] = []
        self.after: list[Callable[..., Any]] = []
        self.register_optimizer_step_pre_hook = self.before.append
        self.register_optimizer_step_post_hook = self.after.append

    def step(self, optimizer: Any) -> None:
        for hook in self.before:
            hook(optimizer, (), {})
        optimizer.step()
        for hook in self.after:
            hook(optimizer, (), {})


def lines(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in folder.glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]


def watched(folder: Path) -> Hooks:
    hooks = Hooks()
    Probe(str(folder)).watch_optimizers(hooks)
    return hooks


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


def train(model: Any, optimizer: Any, hooks: Hooks, steps: int = 1) -> None:
    for _ in range(steps):
        model(torch.ones(4, 2) + torch.randn(4, 2)).sum().backward()
        hooks.step(optimizer)


def test_each_step_is_a_line(tmp_path: Path) -> None:
    model, hooks = network(), watched(tmp_path)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), hooks, 3)
    first, *steps = lines(tmp_path)
    assert first["kind"] == "start" and [row["n"] for row in steps] == [1, 2, 3]
    assert len({row["params"] for row in (first, *steps)}) == 4
    assert steps[0]["groups"][0]["lr"] == 0.1 and steps[0]["groups"][0]["momentum"] == 0.9
    assert {row["key"] for row in (first, *steps)} == {first["key"]}


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (lambda model, optimizer: model[0].weight.data.flatten()[0].mul_(1 + 1e-7), "params"),
        (lambda model, optimizer: model[1].running_mean[0].add_(1e-6), "buffers"),
        (lambda model, optimizer: next(iter(optimizer.state.values()))["exp_avg"].mul_(2), "state"),
        (lambda model, optimizer: torch.rand(1), "random"),
        (lambda model, optimizer: random.random(), "random"),
    ],
    ids=["parameter", "buffer", "state", "torch", "python"],
)
def test_each_change_is_seen(tmp_path: Path, change: Callable[..., Any], seen: str) -> None:
    model, hooks = network(), watched(tmp_path)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, hooks)
    optimizer.step = lambda: None  # the lines are of the same moment
    hooks.step(optimizer)
    change(model, optimizer)
    hooks.step(optimizer)
    before, after = lines(tmp_path)[-2:]
    assert [
        name for name in ("params", "buffers", "state", "random") if before[name] != after[name]
    ] == [seen]


def test_the_training_is_not_changed(tmp_path: Path) -> None:
    finals = []
    for hooks in (watched(tmp_path), Hooks()):
        model = network()
        train(model, torch.optim.Adam(model.parameters()), hooks, 5)
        finals.append((probes.digest(model.state_dict().values()), torch.rand(1).item()))
    assert finals[0] == finals[1]


def test_optimizers_keep_their_names_in_the_next_process(tmp_path: Path) -> None:
    """Two of the same shapes are told apart by their order.

    A new optimizer of the same parameters is the same.
    """
    keys = []
    for place in range(2):
        folder = tmp_path / str(place)
        folder.mkdir()
        hooks, models = watched(folder), [network(), network()]
        for model in (*models, models[0]):
            train(model, torch.optim.SGD(model.parameters(), lr=0.1), hooks)
        keys.append([row["key"] for row in lines(folder) if row["kind"] == "step"])
    assert keys[0] == keys[1] and keys[0][0] == keys[0][2] != keys[0][1]


def test_buffers_that_are_not_saved_do_not_count(tmp_path: Path) -> None:
    model, hooks = network(), watched(tmp_path)
    model.register_buffer("cache", torch.zeros(1), persistent=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    train(model, optimizer, hooks)
    model.cache += 1
    optimizer.step = lambda: None
    hooks.step(optimizer)
    before, after = lines(tmp_path)[-2:]
    assert before["buffers"] == after["buffers"]


def test_a_mistake_of_the_probe_ends_no_training(tmp_path: Path) -> None:
    hooks = watched(tmp_path)
    optimizer = torch.optim.SGD(network().parameters(), lr=0.1)
    optimizer.param_groups[0]["params"].append("no tensor")
    for hook in (*hooks.before, *hooks.after):
        hook(optimizer, (), {})
    assert {row["kind"] for row in lines(tmp_path)} == {"error"}


# --- writes ---------------------------------------------------------------------------------------


class Killed(BaseException):
    """In place of SIGKILL."""


@pytest.fixture
def torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bytes]]:
    """Each file in whose write the process would have been killed, and what was in it then."""
    seen: list[tuple[str, bytes]] = []

    def kill(self: probes.Killer, file: str = "") -> None:
        seen.append((file, (tmp_path / "a.pt").read_bytes()))
        raise Killed

    monkeypatch.setattr(probes.Killer, "kill", kill)
    return seen


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], Probe]:
    """One that is to kill in a write after so many steps and so many other writes: the answer is
    there already.
    """

    def make(after: int, skip: int) -> Probe:
        monkeypatch.setenv("DEEPVM_AUDIT_KILL", "write")
        point = {"after": after, "delay_s": 0.0, "limit": after, "skip": skip}
        (tmp_path / probes.POINT).write_text(json.dumps(point))
        return Probe(str(tmp_path))

    return make


def saving(probe: Probe) -> Callable[..., None]:
    """torch.save as the probe wraps it."""
    module = SimpleNamespace(save=torch.save)
    probe.watch_torch_save(module)
    return module.save  # type: ignore[no-any-return]


Make = Callable[[int, int], Probe]
Torn = list[tuple[str, bytes]]


def test_it_is_killed_in_the_middle_of_a_write(tmp_path: Path, torn: Torn, probe: Make) -> None:
    save, value, path = saving(probe(0, 1)), {"w": torch.arange(100)}, tmp_path / "a.pt"
    save(value, path)
    whole = path.read_bytes()
    assert torch.equal(torch.load(path)["w"], value["w"])
    with pytest.raises(Killed):
        save(value, path)
    ((file, data),) = torn
    assert file == str(path) and 0 < len(data) < len(whole) and whole.startswith(data[:10])
    assert [(row["kind"], row["file"]) for row in lines(tmp_path)] == [("write", file)] * 2


def test_in_a_write_to_an_open_file_too(tmp_path: Path, torn: Torn, probe: Make) -> None:
    path, whole = tmp_path / "a.pt", io.BytesIO()
    torch.save(torch.arange(5), whole)
    with pytest.raises(Killed), path.open("wb") as file:
        saving(probe(0, 0))(torch.arange(5), file)
    assert 0 < path.stat().st_size < len(whole.getvalue()) and torn[0][0] == str(path)


def test_a_write_into_memory_is_no_checkpoint(tmp_path: Path, torn: Torn, probe: Make) -> None:
    with tempfile.TemporaryFile() as unnamed:
        for target in (io.BytesIO(), unnamed):
            saving(probe(0, 0))(torch.arange(5), target)
            assert target.tell()
    assert not torn and not lines(tmp_path)


def test_not_in_a_write_before_its_step(tmp_path: Path, torn: Torn, probe: Make) -> None:
    watching, hooks, model = probe(2, 0), Hooks(), network()
    save, path = saving(watching), tmp_path / "a.pt"
    watching.watch_optimizers(hooks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, hooks)
    save(torch.arange(5), path)
    train(model, optimizer, hooks)
    assert not torn
    assert (
        json.loads((tmp_path / probes.FIRST).read_text())["params"] == lines(tmp_path)[0]["params"]
    )
    with pytest.raises(Killed):
        save(torch.arange(5), path)


def test_before_the_answer_is_there_no_write_is_killed(
    tmp_path: Path, torn: Torn, probe: Make
) -> None:
    """Of ranks that write before rank 0 has made its first step."""
    save = saving(probe(0, 0))
    (tmp_path / probes.POINT).unlink()
    save(torch.arange(5), tmp_path / "a.pt")
    assert not torn and (tmp_path / "a.pt").exists()


def test_safetensors_are_seen_too(tmp_path: Path, torn: Torn, probe: Make) -> None:
    files = pytest.importorskip("safetensors.torch")
    module = SimpleNamespace(save=files.save, save_file=files.save_file)
    probe(0, 1).watch_safetensors(module)
    module.save_file({"w": torch.arange(100)}, tmp_path / "a.pt")
    assert torch.equal(files.load_file(tmp_path / "a.pt")["w"], torch.arange(100))
    whole = (tmp_path / "a.pt").read_bytes()
    with pytest.raises(Killed):
        module.save_file({"w": torch.arange(100)}, tmp_path / "a.pt")
    assert 0 < len(torn[0][1]) < len(whole)


def test_it_is_killed_at_a_step(
    tmp_path: Path, torn: list[tuple[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is there before the question: nobody waits for it."""
    (tmp_path / "a.pt").touch()
    monkeypatch.setenv("DEEPVM_AUDIT_KILL", "step")
    (tmp_path / probes.POINT).write_text(
        json.dumps({"after": 3, "delay_s": 0.0, "limit": 3, "skip": 0})
    )
    model, hooks = network(), watched(tmp_path)
    with pytest.raises(Killed):
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), hooks, 5)
    assert [row["kind"] for row in lines(tmp_path)] == ["start", "step", "step", "step"]
    assert (
        json.loads((tmp_path / probes.FIRST).read_text())["params"] == lines(tmp_path)[0]["params"]
    )


# --- full disks -----------------------------------------------------------------------------------


def test_a_line_that_cannot_be_written_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is a torn one taken for a whole one: the audit is told by a file that goes."""
    write = os.write
    for written in (OSError(errno.ENOSPC, "No space left on device"), 3):

        def full(file: int, data: bytes, written: Any = written) -> int:
            if isinstance(written, OSError):
                raise written
            return write(file, data[:written])

        (tmp_path / probes.COMPLETE).touch()
        model, hooks = network(), watched(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(probes.os, "write", full)
            train(model, torch.optim.SGD(model.parameters(), lr=0.1), hooks)
        assert not (tmp_path / probes.COMPLETE).exists()


# --- the start of a process -----------------------------------------------------------------------

SITE = f"""import importlib.util, os
spec = importlib.util.spec_from_file_location("p", {probes.__file__!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.install(os.path.dirname(os.path.abspath(__file__)))
"""


def python(code: str, folder: Path, *paths: Path, **environment: str) -> str:
    (folder / "hook").mkdir(exist_ok=True)
    (folder / "hook" / "sitecustomize.py").write_text(SITE)
    path = os.pathsep.join(map(str, (folder / "hook", *paths)))
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": path, **environment}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=120
    ).stdout


def test_the_sitecustomize_that_is_hidden_is_run(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sitecustomize.py").write_text("print('mine')")
    assert python("print('script')", tmp_path, tmp_path / "mine") == "mine\nscript\n"


def test_torch_is_not_loaded_for_it(tmp_path: Path) -> None:
    code = "import sys; print([m for m in ('torch', 'numpy', 'deepvm') if m in sys.modules])"
    assert python(code, tmp_path, DEEPVM_AUDIT_LOG=str(tmp_path)) == "[]\n"


def test_the_script_does_not_see_the_folder_of_the_hook(tmp_path: Path) -> None:
    assert (
        python("import sys; print([p for p in sys.path if p.endswith('hook')])", tmp_path) == "[]\n"
    )


def test_a_forked_process_has_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    code = f"""import importlib.util, os
spec = importlib.util.spec_from_file_location("p", {probes.__file__!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
log = module.Log({str(tmp_path / "log")!r}, "steps")
log.add({{"kind": "step"}})
if not os.fork():
    log.add({{"kind": "step"}})
    os._exit(0)
os.wait()"""
    python(code, tmp_path)
    assert [len(path.read_text().splitlines()) for path in (tmp_path / "log").iterdir()] == [1, 1]


@pytest.mark.slow
def test_a_process_logs_by_itself(tmp_path: Path) -> None:
    code = """import torch
from torch import save
w = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([w], lr=0.1)
w.sum().backward()
optimizer.step()
save(w, "w.pt")
from safetensors.torch import save_file
save_file({"w": w.data}, "w.safetensors")"""
    (tmp_path / "log").mkdir()
    python(
        f"import os; os.chdir({str(tmp_path)!r})\n{code}",
        tmp_path,
        DEEPVM_AUDIT_LOG=str(tmp_path / "log"),
        RANK="3",
    )
    assert [(row["kind"], row.get("file", "")) for row in lines(tmp_path / "log")] == [
        ("start", ""),
        ("step", ""),
        ("write", "w.pt"),
        ("write", "w.safetensors"),
    ]
    assert next((tmp_path / "log").iterdir()).name.startswith("steps-3-")


# --- samples --------------------------------------------------------------------------------------


def test_samples_are_logged_in_an_audit_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SampleLog().step(0, [1, 2], 0.5)
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("DEEPVM_AUDIT_LOG", str(tmp_path))
    log = SampleLog()
    log.step(7, torch.tensor([3, 4]), torch.tensor(0.1, requires_grad=True), epoch=2)
    log.step(8, ["a", "b"])
    keys = ("global_step", "epoch", "sample_ids", "loss_hex")
    found = [{key: row[key] for key in keys} for row in lines(tmp_path)]
    assert found == [
        {
            "global_step": 7,
            "epoch": 2,
            "sample_ids": ["3", "4"],
            "loss_hex": float(torch.tensor(0.1)).hex(),
        },
        {"global_step": 8, "epoch": 0, "sample_ids": ["a", "b"], "loss_hex": None},
    ]
