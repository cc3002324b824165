"""How a checkpointer ends: in the time it was given, never in a forked child, and with a journal
that nobody blocks.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.checkpoint.trainings import Slow  # noqa: E402
from support.pace import soon  # noqa: E402

from deepvm.checkpoint import Checkpointer  # noqa: E402
from deepvm.checkpoint.snapshot.pipeline import Pipeline  # noqa: E402
from deepvm.checkpoint.training import hooks  # noqa: E402
from deepvm.checkpoint.training.save_handle import Journal  # noqa: E402
from deepvm.errors import CheckpointError  # noqa: E402


class Hanging(Slow):
    """Neither takes a version nor settles."""

    def settle(self, limit_s: float) -> bool:
        time.sleep(limit_s)
        return False


def test_the_time_to_close_is_one_for_all_tiers() -> None:
    tiers = [Hanging() for _ in range(4)]
    model = torch.nn.Linear(4, 4)
    saver = Checkpointer(model=model, optimizer=torch.optim.SGD(model.parameters()), tiers=tiers)
    saver.save()
    start = time.monotonic()
    # Four tiers, each twice: 8 seconds
    with soon(3), pytest.raises(CheckpointError, match="not finished in 1 s"):
        saver.close(1.0)
    assert time.monotonic() - start > 0.9
    for tier in tiers:
        tier.go.set()


def test_who_is_done_is_not_blamed_for_others() -> None:
    hanging, done = Hanging(), Slow()
    done.go.set()
    asked: list[float] = []
    done.settle = lambda limit_s: not asked.append(limit_s)  # type: ignore[func-returns-value,method-assign]
    pipeline = Pipeline([hanging, done])
    pipeline.background(lambda: time.sleep(0.2))
    hanging.settle = lambda limit_s: True  # type: ignore[method-assign]
    assert pipeline.close(30.0)
    assert 0 < asked[0] < 29.9


def in_child(work: Callable[[], None]) -> int:
    """The exit status of a forked child that does this."""
    pid = os.fork()
    if not pid:
        status = 1
        signal.alarm(60)  # a child that blocks ends, and the test fails
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1]


@pytest.mark.parametrize("strategy", ["C", "D"])
def test_a_forked_child_leaves_its_parents_files_alone(
    strategy: str, mappable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[tuple[Any, ...]] = []
    monkeypatch.setattr(hooks.atexit, "register", lambda *call: registered.append(call))
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saver = Checkpointer(
        model=model, optimizer=optimizer, tiers=[mappable.as_uri()], strategy=strategy, every=1
    )
    optimizer.step()
    saver.save(block=True)
    # Nothing is under way any more; in D these are files that are not yet versions.
    slots = [
        slot
        for slot in (saver._pipeline.take(30.0), saver._pipeline.take(30.0))
        if slot is not None
    ]
    assert len(slots) == 2
    before = sorted(mappable.iterdir())
    # Torch registers its own, too
    ((call, *arguments),) = [r for r in registered if r[0] is hooks._close]

    def end() -> None:
        call(*arguments)
        assert not saver._closed

    assert in_child(end) == 0
    assert sorted(mappable.iterdir()) == before and (
        strategy == "C" or {s.home for s in slots} <= {*before}
    )
    for slot in slots:
        saver._pipeline.give_back(slot)
    optimizer.step()
    assert saver.save(block=True).remote_done.result(0) == 2
    call(*arguments)  # the parent's own end
    assert saver._closed and sorted(p.suffix for p in mappable.glob("*.pt")) == [".pt", ".pt"]


def test_a_signal_that_logs_does_not_block_who_was_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal([tmp_path / "journal"], "mine")
    write, inside = os.write, []

    def interrupted(descriptor: int, data: bytes) -> int:
        if not inside:
            inside.append(1)
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.01)  # the handler runs here, where the line is half done
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", interrupted)
    previous = signal.signal(signal.SIGUSR1, lambda *_: journal("signal"))
    try:
        # What blocks for ever must not block the tests.
        signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("it blocks")))
        signal.alarm(20)
        journal("step", number=1)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGUSR1, previous)
    rows = [json.loads(line) for line in (tmp_path / "journal").read_text().splitlines()]
    assert [r["event"] for r in rows] == ["signal", "step"]


def test_lines_of_many_threads_stay_whole(tmp_path: Path) -> None:
    journal = Journal([tmp_path / "journal"], "mine")

    def work(number: int) -> None:
        for _ in range(50):
            journal("line", number=number, text="x" * 5000)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = [json.loads(line) for line in (tmp_path / "journal").read_text().splitlines()]
    assert sorted(r["number"] for r in rows) == sorted(list(range(8)) * 50)
