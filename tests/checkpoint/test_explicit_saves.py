"""A save that was asked for is of the moment of the call, and is never lost in silence."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from support.checkpoint.trainings import Fill, Slow, contents, model_of, simple  # noqa: E402

from deepvm.checkpoint import Checkpointer  # noqa: E402
from deepvm.errors import CheckpointError, RequestError  # noqa: E402


def large(folder: Path, **options: Any) -> tuple[Any, Fill, Checkpointer]:
    """A state that takes a moment to copy."""
    model = model_of(8, 512)
    optimizer = Fill(model.parameters())
    return (
        model,
        optimizer,
        Checkpointer(model=model, optimizer=optimizer, tiers=folder, job="job", **options),
    )


def add(parameter: Any) -> None:
    with torch.no_grad():
        parameter.add_(100)


@pytest.mark.parametrize(
    "change", [add, lambda p: p.data.add_(100)], ids=["in place", "through data"]
)
def test_what_changes_after_a_save_is_not_in_it(
    change: Callable[[Any], object], tmp_path: Path
) -> None:
    model, optimizer, saver = large(tmp_path)
    optimizer.step()
    handle = saver.save()
    for parameter in model.parameters():
        change(parameter)
    assert handle.durable.result(30) == 1
    saver.close()
    assert contents(tmp_path) == {1: {1.0}}


@pytest.mark.parametrize("draw", [lambda: torch.rand(1), random.random], ids=["torch", "random"])
def test_a_save_after_a_scheduled_one_of_the_same_step_has_the_random_state_of_now(
    draw: Callable[[], Any], tmp_path: Path
) -> None:
    model, optimizer, saver = large(tmp_path, every=1)
    model(torch.ones(1, 512)).sum().backward()
    optimizer.step()
    same = saver.handles[-1]
    assert saver.save(block=True) is same  # nothing has changed
    draw()
    assert saver.save(block=True) is not same
    expected = draw()
    saver.restore_latest()
    assert draw() == expected
    saver.close()


def test_a_save_waits_for_a_slot() -> None:
    tier = Slow()
    optimizer, saver = simple(tier, every=1, slots=1)
    optimizer.step()
    optimizer.step()
    timer = threading.Timer(0.3, tier.go.set)
    timer.start()
    assert saver.save().remote_done.result(30) == 2
    saver.close()
    assert tier.taken == [1, 2]


def test_a_save_within_an_iteration_is_of_its_end(tmp_path: Path) -> None:
    """With ``block`` it is of now, and again of the end if that differs.

    Too early it would be of neither.
    """
    model, optimizer, saver = large(tmp_path, keep=9)
    for step in saver.steps(4):
        if step == 2:
            with pytest.raises(RequestError, match="before an optimizer has stepped"):
                saver.save(block=True)
        optimizer.step()
        if step == 1:
            handle = saver.save(best=True)
            assert handle.version == 0
        if step == 2:
            saver.save(block=True)
            assert contents(tmp_path)[3] == {3.0}
        if step:
            add(model[0].weight)
    assert handle.version == 2 and handle.best
    saver.close()
    assert {version: max(values) for version, values in contents(tmp_path).items()} == {
        2: 102.0,
        3: 103.0,
    }


@pytest.mark.parametrize("saved_after", [False, True])
def test_a_loop_that_is_left_does_not_save_half_an_iteration(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, saved_after: bool
) -> None:
    """What was asked for in it fails, and ``close()`` raises, unless the state is saved after the
    loop.
    """
    _, optimizer, saver = large(tmp_path)
    for _ in saver.steps(10):
        optimizer.step()
        if saver.version == 2:
            handle = saver.save()
            break
    with pytest.raises(
        CheckpointError, match="version 3 is not saved: its iteration was left before the end"
    ):
        handle.durable.result(0)
    assert "call save(block=True) after the loop" in caplog.text
    if saved_after:
        saver.save(block=True)
        saver.close()
    else:
        with pytest.raises(CheckpointError, match="version 3 was due and is not safe"):
            saver.close()
    assert contents(tmp_path) == ({3: {3.0}} if saved_after else {})


def test_a_save_whose_iteration_is_given_up_by_a_restore_fails(tmp_path: Path) -> None:
    _, optimizer, saver = large(tmp_path, every=1)
    for step in saver.steps(3):
        optimizer.step()
        if step == 1 and not saver.handles[1:]:
            handle = saver.save()
            assert saver.restore_latest() == 1
            break
    with pytest.raises(CheckpointError, match="a checkpoint was restored before the end"):
        handle.durable.result(0)
    saver.close()


FULL = """
import contextlib, sys, torch
from deepvm.checkpoint import Checkpointer
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.Adam(model.parameters())
ck = Checkpointer(model=model, optimizer=optimizer, tiers=sys.argv[1], every=1, job="job", slots=9)
for step in ck.steps(6):
    model(torch.ones(1, 256)).sum().backward()
    optimizer.step()
    for handle in ck.handles:
        handle.local_done.exception(30)
    if step == 2:  # version 2 is safe
        with contextlib.suppress(OSError), open(sys.argv[2] + "/filler", "wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
ck.close()
print("closed")
"""  # noqa: E501


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk, which takes root")
def test_a_disk_that_fills_up_is_an_error_at_the_end(tmp_path: Path) -> None:
    """The exit code is not 0, and the last lines name what is lost and what is safe."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        words = [sys.executable, "-c", FULL, f"file://{tmp_path}/versions", str(tmp_path)]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=120)
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)
    assert ended.returncode == 1 and "closed" not in ended.stdout, ended.stderr
    assert (
        "version 6 was due and is not safe" in ended.stderr
        and "No space left on device" in ended.stderr
    )
    assert "the newest that is safe: version 2" in ended.stderr


def test_a_lost_version_is_named_once_when_an_error_ends_the_training(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It does not hide that error."""
    tier = Slow(CheckpointError("the place is gone"))
    tier.go.set()
    optimizer, saver = simple(tier, every=1)
    with pytest.raises(ZeroDivisionError), saver:
        optimizer.step()
        saver.wait()
        raise ZeroDivisionError
    assert "version 1 was due and is not safe: the place is gone" in caplog.text
