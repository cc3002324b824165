"""eFLOPS of this machine: real training in processes of its own, and every way in which one of them
can fail.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.pace import soon
from support.places import TESTS
from support.processes import children

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from deepvm.errors import DataError, DeepVMError, MeasurementError, RequestError  # noqa: E402
from deepvm.io.host_info import cores  # noqa: E402
from deepvm.profiling.eflops.eflops_worker import Task, Window, run_workers, time_windows  # noqa: E402  # noqa: E402
from deepvm.profiling.eflops.measure_eflops import Eflops, measure_eflops  # noqa: E402
from deepvm.profiling.hosts.machine import Machine  # noqa: E402
from deepvm.profiling.hosts.watchdog import ENDED  # noqa: E402
from deepvm.profiling.workload.images import Images  # noqa: E402
from deepvm.profiling.workload.models import MODELS, forward_flops  # noqa: E402
from deepvm.profiling.workload.spec import Workload  # noqa: E402
from deepvm.profiling.workload.train_step import DTYPES, Ranks, Training, real, synthetic  # noqa: E402

HERE = TESTS / "support" / "profiling"
CPU = torch.device("cpu")
MACHINE: Machine = {
    "processor": "a processor",
    "cores": 4,
    "memory_bytes": 2**33,
    "gpus": ["T4"] * 4,
    "torch": "2.13.0",
    "cuda": "13.0",
    "kernel": "Linux 6",
    "instance_type": "",
}
SMALL: dict[str, Any] = {"batch": 2, "windows": 3, "seconds": 0.01, "device": "cpu"}
TASK = Task(Workload("resnet18", batch=2), "cpu", 2, 1, 3, 0.01, 60.0, "")


def measured(**changes: Any) -> Eflops:
    windows = tuple(Window(100, s) for s in (1.0, 0.98, 1.02))
    fields: dict[str, Any] = {
        "workload": Workload("resnet18"),
        "machine": MACHINE,
        "forward_flops": 1000,
        "device": "cuda",
        "processes": 4,
        "threads": 1,
        "data": "synthetic",
        "steps": 5,
        "warm_up": windows,
        "windows": windows,
        "steady": True,
    }
    return Eflops(**fields | changes)


class Tiny(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
        )
        self.append(nn.Linear(256, 10))


def training_of(model: nn.Module, workload: Workload) -> Training:
    ranks = Ranks(0, 1, CPU, Path("unused"), 10)
    batches = synthetic(workload.batch, workload.resolution, 10, CPU)
    return Training(model, workload, batches, CPU, ranks)


class TestNumbers:
    def test_they_follow_from_the_windows(self) -> None:
        found = measured()
        assert found.images_per_s == 100
        assert found.eflops == 3 * 1000 * 100
        assert found.spread == pytest.approx(1 / 0.98 - 1 / 1.02)
        assert list(found.warnings) == []

    def test_doubt_names_the_next_step(self) -> None:
        for changes, words in [
            ({"steady": False}, "still changed after 3 windows.*--seconds"),
            (
                {"windows": (Window(100, 1.0), Window(100, 1.0), Window(100, 1.2))},
                "differ by 17%.*--windows",
            ),
            ({"processes": 3}, "3 of 4 GPUs.*--processes"),
        ]:
            (warning,) = measured(**changes).warnings
            assert re.search(words, warning)

    def test_the_document_has_its_pinned_form(self) -> None:
        document = measured().document()
        assert list(document)[:6] == [
            "schema_version",
            "eflops",
            "images_per_s",
            "spread",
            "workload",
            "machine",
        ]
        assert document["schema_version"] == "deepvm.eflops/1"
        assert document["workload"] == {
            "model": "resnet18",
            "resolution": 32,
            "batch": 128,
            "dtype": "float32",
            "optimizer": "adam",
        }

    def test_an_independent_stopwatch_agrees(self) -> None:
        """Around the very same steps, so that what else the machine does changes nothing."""
        model, steps, seconds = Tiny(), 0, list[float]()
        training = training_of(model, Workload("tiny", batch=16))

        def count(*_: Any) -> None:
            nonlocal steps
            steps += 1

        def run(wanted: int) -> float:
            before, start = steps, time.monotonic()
            found = training.run(wanted)
            seconds.append(time.monotonic() - start)
            assert steps - before == wanted
            assert found > 0.1 * seconds[-1]
            return found

        model.register_forward_hook(count)
        timing = time_windows(run, 16, 5, 0.05, lambda line: None)
        for window, outside in zip(timing.windows, seconds[-5:], strict=True):
            assert window.images == 16 * timing.steps
            assert 0.5 * outside < window.seconds <= outside
        flops = forward_flops(model, 32)
        assert flops == 2 * (16 * 32 * 32 * 27 + 256 * 10)
        found = measured(windows=timing.windows, forward_flops=flops)
        speeds = sorted(16 * timing.steps / s for s in seconds[-5:])
        assert 0.99 < found.eflops / (3 * flops * speeds[2]) < 2


class TestStep:
    @pytest.mark.parametrize(
        ("dtype", "optimizer"),
        [("float32", "adam"), ("float32", "sgd"), ("bfloat16", "adam"), ("float16", "adam")],
    )
    def test_it_trains(self, dtype: str, optimizer: str) -> None:
        model = Tiny()
        seen: list[torch.dtype] = []
        model[0].register_forward_hook(lambda layer, given, out: seen.append(out.dtype))
        before = [p.detach().clone() for p in model.parameters()]
        training = training_of(model, Workload("tiny", batch=4, dtype=dtype, optimizer=optimizer))
        # A scaler skips steps until its factor is small enough for halves.
        assert training.run(20 if dtype == "float16" else 1) > 0
        assert set(seen) == {DTYPES[dtype]}
        assert all(p.isfinite().all() for p in model.parameters())
        assert not any(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))

    def test_each_process_gets_its_own_images(self) -> None:
        pixels = np.arange(7, dtype=np.uint8)[:, None, None, None] * np.ones(
            (1, 3, 32, 32), np.uint8
        )
        data = Images("idx", pixels, np.arange(7, dtype=np.uint8))
        for rank, own in ((0, [0, 2, 4, 6]), (1, [1, 3, 5])):
            ranks = Ranks(rank, 1, CPU, Path("unused"), 10)
            ranks.world = 2
            following = real(data, 3, 48, CPU, ranks)
            drawn = [following() for _ in range(4)]
            assert [label for _, labels in drawn for label in labels.tolist()] == (own * 4)[:12]
            for images, labels in drawn:
                assert images.shape == (3, 3, 48, 48)
                assert torch.allclose(images[:, 0, 0, 0], labels / 127.5 - 1)

    def test_fewer_images_than_processes_are_refused(self) -> None:
        ranks = Ranks(1, 1, CPU, Path("unused"), 10)
        ranks.world = 2
        data = Images("idx", np.zeros((1, 3, 32, 32), np.uint8), np.zeros(1, np.uint8))
        with pytest.raises(RequestError, match="at least 2 images"):
            real(data, 2, 32, CPU, ranks)


def test_what_cannot_be_used_is_refused_at_once() -> None:
    for changes, message in [
        ({"batch": 1}, "batch: 1 .* from 2 to 65536"),
        ({"resolution": 31}, "from 32 to 2048"),
        ({"windows": 2}, "windows: 2 .* from 3"),
        ({"seconds": float("nan")}, "seconds"),
        ({"seconds": 0}, "seconds from 0.001"),
        ({"timeout_s": float("inf")}, "timeout"),
        ({"processes": 0}, "processes: 0"),
        ({"processes": 10**6}, "cores that this process may use"),
    ]:
        with pytest.raises(RequestError, match=message):
            measure_eflops("resnet18", **(SMALL | changes))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_no_gpu_is_told() -> None:
    with pytest.raises(RequestError, match="sees no NVIDIA GPU here"):
        measure_eflops("resnet18", device="cuda")


OWN = """
import torch
from torch import nn

class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)

    def forward(self, images):
        tokens = torch.zeros(len(images), 8, dtype=torch.long, device=images.device)
        return self.head(self.embed(tokens))[:, -1, :10]

def for_other_images():
    return nn.Linear(3, 4)
"""


@pytest.mark.slow
def test_a_model_of_ones_own(
    one_core: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand: a linear layer on 8 tokens is 8 x 16 x 50 multiplications and as many additions."""
    (tmp_path / "own_model.py").write_text(OWN)
    (tmp_path / "json.py").write_text("raise SystemExit('the user has a file of that name')")
    monkeypatch.chdir(tmp_path)
    found = measure_eflops("own_model:Tokens", **SMALL)
    assert found.forward_flops == 2 * 8 * 16 * 50 and found.workload.model == "own_model:Tokens"
    for name, message in {
        "own_model:Token": ".AttributeError: ",
        "no_such:Model": ".ModuleNotFoundError: No module named 'no_such'",
        "own_model:for_other_images": "whose operations can be counted without data .",
    }.items():
        with pytest.raises(RequestError, match=rf"model: '{name}' \(expected .*{message}"):
            measure_eflops(name, **SMALL)


@pytest.mark.slow
def test_a_measurement_on_images_of_a_data_set(one_core: None, tmp_path: Path) -> None:
    (tmp_path / "data_batch_1.bin").write_bytes(bytes(3073) * 3)
    lines: list[str] = []
    before = children(os.getpid())
    found = measure_eflops("resnet18", **SMALL, data=tmp_path, say=lines.append)
    assert children(os.getpid()) == before
    assert (found.data, found.device, found.processes, found.threads) == ("cifar10", "cpu", 1, 1)
    assert found.forward_flops == forward_flops(MODELS["resnet18"](10), 32)
    assert len(found.windows) == 3
    assert {w.images for w in found.windows} == {2 * found.steps}
    assert found.eflops > 1e6
    assert found.machine["torch"] == torch.__version__
    assert lines[0] == "resnet18: 2 images of 32 x 32, float32, adam, on 1 thread of the CPU"
    assert lines[-1].startswith("resnet18: window 3 of 3")


needs_two = pytest.mark.skipif(cores() < 2, reason="two processes need two cores")


@pytest.mark.slow
@needs_two
def test_two_processes_train_one_model_by_ddp() -> None:
    found = measure_eflops("resnet18", **SMALL, processes=2)
    assert (found.processes, found.threads) == (2, cores() // 2)
    assert {w.images for w in found.windows} == {2 * 2 * found.steps}


def fault(
    monkeypatch: pytest.MonkeyPatch, kind: str, rank: int, task: Task = TASK, within: float = 60
) -> DeepVMError:
    monkeypatch.setenv("FAULT", f"{kind} {rank}")
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
    before = children(os.getpid())
    with soon(within), pytest.raises(DeepVMError) as raised:
        run_workers(task, lambda line: None, "faulty_worker")
    assert children(os.getpid()) == before
    return raised.value


@pytest.mark.system
@pytest.mark.parametrize(
    ("kind", "rank", "error", "message"),
    [
        (
            "raise",
            1,
            MeasurementError,
            "process 2 of 2: RuntimeError: the fan has stopped; try --processes 1",
        ),
        pytest.param("memory", 1, RequestError, "CUDA out of memory", marks=pytest.mark.slow),
        pytest.param(
            "kill",
            1,
            RequestError,
            "batch: 2 .* no less; .*killed, as Linux",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "segv",
            1,
            MeasurementError,
            "process 2 of 2: its command was killed by SIGSEGV",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "segv",
            0,
            MeasurementError,
            "process 1 of 2: its command was killed by SIGSEGV",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "exit",
            1,
            MeasurementError,
            "exit code 7; its last line: something last",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_process_that_fails_is_named_with_its_reason(
    kind: str, rank: int, error: type[DeepVMError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fault(monkeypatch, kind, rank)
    assert isinstance(found, error)
    assert re.search(message, str(found)), found


@pytest.mark.system
def test_processes_that_end_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    found = fault(monkeypatch, "early", 0)
    assert "process 1 of 2: its command ended with exit code 0" in str(found)


@pytest.mark.system
def test_processes_that_say_nothing_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "silent 0")
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
    before = children(os.getpid())
    with pytest.raises(MeasurementError, match="nothing was received for 1.01 s .*--timeout"):
        run_workers(replace(TASK, timeout_s=1.0), lambda line: None, "faulty_worker")
    assert children(os.getpid()) == before


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_hangs_in_the_middle_is_ended_with_the_other(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fault(monkeypatch, "hang", rank, replace(TASK, timeout_s=30.0), within=120)
    assert isinstance(found, MeasurementError)


def test_a_worker_ends_with_its_input(tmp_path: Path) -> None:
    """It would train for minutes, and somebody still reads what it writes."""
    task = replace(TASK, processes=1, windows=1000, seconds=0.5)
    command = [
        sys.executable,
        "-m",
        "deepvm.profiling.eflops.eflops_worker",
        json.dumps(asdict(task)),
        "0",
        str(tmp_path / "unused"),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdin is not None
        worker.stdin.close()
        assert worker.wait(60) == ENDED


@pytest.mark.system
def test_damaged_images_are_told_as_such(one_core: None, tmp_path: Path) -> None:
    (tmp_path / "data_batch_1.bin").write_bytes(b"\x63" + bytes(3072))
    with pytest.raises(DataError, match="data_batch_1.bin: label 99"):
        measure_eflops("resnet18", **SMALL, data=tmp_path)


@pytest.mark.system
def test_what_does_not_fit_is_told_with_the_next_step(one_core: None) -> None:
    """60000 images of 2048 x 2048 are 3 TB; nothing of it is touched."""
    with pytest.raises(
        RequestError,
        match="batch: 60000 .*less, such as 30000: resnet18 at 2048 x 2048: D.*allocat",
    ):
        measure_eflops("resnet18", **SMALL | {"batch": 60000}, resolution=2048)
