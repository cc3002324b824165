"""On a GPU: ``pytest -m gpu tests/checkpoint/snapshot/test_gpu.py``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.checkpoint.slow_copies import notice_no_change  # noqa: E402
from support.checkpoint.trainings import Fill, contents  # noqa: E402

from deepvm.checkpoint import Checkpointer  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
]
STRATEGIES = ["C", "G", "D"]


def busy(cycles: int = 20_000_000) -> None:
    """Keep the stream of the training at work for some milliseconds; the processor goes on."""
    torch.cuda._sleep(cycles)


def model_of(count: int = 8, width: int = 1024, devices: int = 1) -> torch.nn.Module:
    layers = [
        torch.nn.Linear(width, width, bias=False, device=f"cuda:{n % devices}")
        for n in range(count)
    ]
    return torch.nn.Sequential(*layers)


def fill_and_save(
    folder: Path, strategy: str, devices: int = 1, steps: int = 40
) -> dict[int, set[float]]:
    model = model_of(devices=devices)
    optimizer = Fill(model.parameters())
    with Checkpointer(
        model=model,
        optimizer=optimizer,
        tiers=[folder.as_uri()],
        every=3,
        keep=1000,
        strategy=strategy,
    ) as saver:
        for _ in range(steps):
            busy(2_000_000)
            optimizer.step()
        saver.save(block=True)
    return contents(folder)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_version_holds_the_numbers_of_one_step(strategy: str, mappable: Path) -> None:
    found = fill_and_save(mappable, strategy)
    assert 40 in found and len(found) >= 2
    assert all(values == {version} for version, values in found.items()), found


@pytest.mark.parametrize("strategy", ["C", "G"])
def test_without_the_gate_that_test_fails(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutation.

    The copy is held back on its own stream, so that the next steps come meanwhile.
    """
    from deepvm.checkpoint.snapshot.strategies import Cuda

    copy = Cuda.copy

    def late(self: Cuda, stream: Any, *pieces: Any) -> None:
        with self.within([stream]):
            busy()
        copy(self, stream, *pieces)

    monkeypatch.setattr(Cuda, "copy", late)
    assert all(v == {n} for n, v in fill_and_save(tmp_path / "gate", strategy).items())
    monkeypatch.setattr(Checkpointer, "_before_step", Checkpointer._before_forward)
    notice_no_change(monkeypatch)
    assert any(v != {n} for n, v in fill_and_save(tmp_path / "none", strategy).items())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_layers_on_several_devices(strategy: str, mappable: Path) -> None:
    found = fill_and_save(mappable, strategy, devices=2)
    assert all(values == {version} for version, values in found.items()), found


def test_the_processor_does_not_wait_for_the_copy(tmp_path: Path) -> None:
    """The gate is an event in the stream of the training: steps are queued while the device still
    copies.
    """
    model = model_of(16, 2048)
    optimizer = Fill(model.parameters())
    saver = Checkpointer(model=model, optimizer=optimizer, tiers=[tmp_path.as_uri()])
    optimizer.step()
    saver.save(block=True)
    torch.cuda.synchronize()
    busy(1_000_000_000)  # half a second and more: the copy can begin only behind it
    optimizer.step()
    start = time.perf_counter()
    handle = saver.save()
    optimizer.step()
    queued_s = time.perf_counter() - start
    torch.cuda.synchronize()
    assert queued_s < 0.5 * (time.perf_counter() - start)
    assert handle.durable.result(60) == 2
    saver.close()
    assert contents(tmp_path)[2] == {2}


def test_layer_by_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers as without, and versions of one step each although the copies are late."""
    from deepvm.checkpoint.snapshot.strategies import Cuda

    copy = Cuda.copy

    def late(self: Cuda, stream: Any, *pieces: Any) -> None:
        with self.within([stream]):
            busy(3_000_000)
        copy(self, stream, *pieces)

    monkeypatch.setattr(Cuda, "copy", late)
    found = {}
    for mode in ("plain", "layerwise"):
        torch.manual_seed(0)
        model = model_of(6, 512)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        saver = None
        if mode == "layerwise":
            options = {"tiers": [tmp_path.as_uri()], "every": 2, "keep": 1000, "strategy": mode}
            saver = Checkpointer(model=model, optimizer=optimizer, **options)
        states = {}
        for step in range(1, 21):
            optimizer.zero_grad()
            model(torch.randn(64, 512, device="cuda")).square().mean().backward()
            optimizer.step()
            states[step] = {k: v.cpu().clone() for k, v in model.state_dict().items()}
        found[mode] = states
        if saver is not None:
            saver.save(block=True)
            saver.close()
    assert all(
        torch.equal(v, found["layerwise"][n][k])
        for n, s in found["plain"].items()
        for k, v in s.items()
    )
    paths = sorted(tmp_path.glob("*.pt"))
    assert len(paths) >= 3
    for path in paths:
        tree = torch.load(path, weights_only=True, map_location="cpu")
        assert all(
            torch.equal(v, found["plain"][tree["version"]][k]) for k, v in tree["model"].items()
        )


class Job:
    """Mixed precision with a GradScaler, BatchNorm, dropout, and the optimizer of a test."""

    def __init__(self, folder: Path, options: dict[str, Any], strategy: str) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(256, 512),
            torch.nn.BatchNorm1d(512),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(512, 10),
        ).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, **options)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
        self.saver = Checkpointer(
            model=self.model,
            optimizer=self.optimizer,
            extra={"scaler": self.scaler},
            tiers=[folder.as_uri()],
            every=5,
            strategy=strategy,
        )

    def train(self, until: int) -> None:
        while self.saver.version < until:
            x = torch.randn(32, 256, device="cuda")
            self.optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = self.model(x).square().mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def bits(self) -> list[bytes]:
        tensors = [*self.model.state_dict().values()]
        tensors += [t for s in self.optimizer.state_dict()["state"].values() for t in s.values()]
        return [t.detach().cpu().contiguous().numpy().tobytes() for t in tensors]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "options", [{}, {"fused": True}, {"capturable": True}, {"foreach": False}], ids=str
)
def test_an_interrupted_run_goes_on_bit_by_bit(
    options: dict[str, Any], strategy: str, mappable: Path
) -> None:
    whole = Job(mappable / "whole", options, strategy)
    whole.train(20)
    cut = Job(mappable / "cut", options, strategy)
    cut.train(12)
    cut.saver.close()
    again = Job(mappable / "cut", options, strategy)
    assert again.saver.restore_latest() == 10
    again.train(20)
    assert again.bits() == whole.bits() and again.scaler.get_scale() == whole.scaler.get_scale()
    whole.saver.close()
    again.saver.close()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_stall_is_small(strategy: str, mappable: Path) -> None:
    """Against torch.save, in one run, medians.

    The time of a step includes what the GPU's stream waits.
    """
    model = model_of(24, 2048)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    x = torch.randn(4096, 2048, device="cuda")

    def steps(count: int = 4) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        torch.cuda.synchronize()

    def seconds(work: Any) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    steps()
    saver = Checkpointer(
        model=model, optimizer=optimizer, tiers=[mappable.as_uri()], strategy=strategy
    )

    def blocking() -> None:
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
            mappable / "plain.pt",
        )
        steps()

    def ours() -> None:
        saver.save()
        steps()

    for _ in range(3):
        ours()
        saver.save(block=True).snapshot_done.result(60)
    bare, plain, with_us = [], [], []
    for _ in range(7):
        bare.append(seconds(steps))
        plain.append(seconds(blocking))
        with_us.append(seconds(ours))
        saver.save(block=True)
    saver.close()
    middle = [sorted(times)[3] for times in (bare, plain, with_us)]
    assert middle[2] - middle[0] < 0.3 * (middle[1] - middle[0]), middle


def test_memory_is_page_locked(tmp_path: Path) -> None:
    model = model_of(2)
    optimizer = Fill(model.parameters())
    with Checkpointer(model=model, optimizer=optimizer, tiers=[tmp_path.as_uri()]) as saver:
        optimizer.step()
        saver.save(block=True)
        slot = saver._pipeline.take(30)
        assert slot is not None and all(target.is_pinned() for target in slot.targets)
        saver._pipeline.give_back(slot)
    assert not slot.targets  # released, and with it the lock


def test_g_without_room_is_c(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    free, _ = torch.cuda.mem_get_info()
    taken = torch.empty(max(free - 2**28, 0), dtype=torch.uint8, device="cuda")
    model = model_of(24, 2048)
    optimizer = (
        Fill(model.parameters()) if free > 2**31 else pytest.skip("too little memory for this test")
    )
    with Checkpointer(
        model=model, optimizer=optimizer, tiers=[tmp_path.as_uri()], strategy="G"
    ) as saver:
        optimizer.step()
        saver.save(block=True)
    del taken
    assert "C is used" in caplog.text and contents(tmp_path) == {1: {1}}
