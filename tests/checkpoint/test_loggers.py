"""Events for loggers: all of them, in order.

A logger that is slow or broken costs the training nothing.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from deepvm.checkpoint import Checkpointer  # noqa: E402
from deepvm.checkpoint import loggers as module  # noqa: E402
from deepvm.checkpoint.loggers import Delivery, TensorBoard  # noqa: E402
from deepvm.checkpoint.training import save_handle  # noqa: E402
from deepvm.errors import CheckpointError, RequestError  # noqa: E402

Events = list[tuple[str, Mapping[str, Any]]]


class Writer:
    """What a ``SummaryWriter`` was told."""

    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int | None]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        assert not isinstance(scalar_value, (bool, str))
        self.scalars.append((tag, scalar_value, global_step))


def train(folder: Path, journal: Any, steps: int = 3) -> Checkpointer:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Checkpointer(
        model=model, optimizer=optimizer, tiers=(folder / "v").as_uri(), job="mine", journal=journal
    ) as saver:
        for _ in range(steps):
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            saver.save(block=True)
    return saver


def test_a_logger_and_a_file_get_the_same(tmp_path: Path) -> None:
    seen: Events = []
    train(tmp_path, [tmp_path / "journal.jsonl", lambda event, facts: seen.append((event, facts))])
    rows = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    key = lambda row: (row["event"], row.get("version") or 0)  # noqa: E731  two threads tell of one version
    assert sorted(({"event": event, **facts} for event, facts in seen), key=key) == sorted(
        rows, key=key
    )
    assert [event for event, _ in seen][-1] == "closed"
    assert [f["version"] for e, f in seen if e == "durable"] == [1, 2, 3]


def test_tensorboard_has_scalars_by_version(tmp_path: Path) -> None:
    writer = Writer()
    train(tmp_path, TensorBoard(writer))
    durable = [
        (value, step) for tag, value, step in writer.scalars if tag == "checkpoint/durable/seconds"
    ]
    assert [step for _, step in durable] == [1, 2, 3] and all(
        0 < value < 60 for value, _ in durable
    )
    tags = {tag for tag, _, _ in writer.scalars}
    assert {
        "checkpoint/snapshot/stall_s",
        "checkpoint/sent/bytes",
        "checkpoint/closed/saved",
    } <= tags
    assert not any("version" in tag or "rank" in tag or "time" in tag for tag in tags)


def test_tensorboard_counts_what_is_lost() -> None:
    writer, facts = Writer(), {"time": "now", "job": "j", "rank": 0, "error": "full"}
    board = TensorBoard(writer, "ckpt")
    for event, version in (("failed", 3), ("skipped", 4), ("failed", 9)):
        board(event, {**facts, "version": version})
    assert writer.scalars == [("ckpt/failed", 1, 3), ("ckpt/skipped", 1, 4), ("ckpt/failed", 2, 9)]


def test_tensorboard_itself(tmp_path: Path) -> None:
    pytest.importorskip(
        "tensorboard", reason="the adapter needs a writer alone; this one is TensorBoard's own"
    )
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "board")) as writer:
        train(tmp_path, TensorBoard(writer))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(tmp_path / "board"))
    found.Reload()
    assert [row.step for row in found.Scalars("checkpoint/durable/seconds")] == [1, 2, 3]


def test_the_training_does_not_wait_for_a_slow_logger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    go = threading.Event()
    monkeypatch.setattr(save_handle, "_LOGGER_S", 0.1)
    begin = time.monotonic()

    def slow(event: str, facts: Mapping[str, Any]) -> None:
        go.wait(60)

    train(tmp_path, slow)
    assert time.monotonic() - begin < 30
    go.set()
    (said,) = (
        r.getMessage() for r in caplog.records if "did not take all events" in r.getMessage()
    )
    # Three events of each of three versions, and the end: all but perhaps the one that it is at.
    assert int(said.split(":")[1].split()[0]) >= 9


def test_a_logger_that_fails_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []
    good: list[str] = []

    def bad(event: str, facts: Mapping[str, Any]) -> None:
        calls.append(event)
        raise ValueError("no network")

    saver = train(tmp_path, [bad, lambda event, facts: good.append(event)])
    # Two threads report the first version: either may come first
    assert calls in (["snapshot"], ["durable"]) and good.count("durable") == 3
    assert [h.durable.result(0) for h in saver.handles] == [1, 2, 3]
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == [
        "bad failed at an event of the checkpoints; it gets no more of them"
    ]


def test_events_that_pile_up_are_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_MOST_WAITING", 5)
    go, seen = threading.Event(), list[str]()

    def slow(event: str, facts: Mapping[str, Any]) -> None:
        go.wait(20)
        seen.append(event)

    delivery = Delivery(slow)
    for number in range(20):
        delivery(str(number), {})
    go.set()
    delivery.close(20)
    assert seen == [str(n) for n in range(len(seen))] and len(seen) in (5, 6)
    assert f"{20 - len(seen)} are lost" in caplog.text


def test_a_signal_that_saves_does_not_deadlock() -> None:
    """The handler's event may come in the midst of another one's."""
    seen: Events = []
    delivery = Delivery(lambda event, facts: seen.append((event, facts)))
    previous = signal.signal(signal.SIGALRM, lambda *_: delivery("signal", {}))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        for number in range(3000):
            delivery("step", {"number": number})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    delivery.close(20)
    assert [facts["number"] for event, facts in seen if event == "step"] == list(range(3000))
    assert any(event == "signal" for event, _ in seen)


@pytest.mark.parametrize("journal", [5, [5], [None]])
def test_what_is_no_logger(tmp_path: Path, journal: Any) -> None:
    with pytest.raises(RequestError, match="journal"):
        train(tmp_path, journal)


def test_a_failed_version_is_told(tmp_path: Path) -> None:
    writer = Writer()
    (tmp_path / "v").mkdir()
    saver_of = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(saver_of.parameters(), lr=0.1)
    saver = Checkpointer(
        model=saver_of,
        optimizer=optimizer,
        tiers=(tmp_path / "v").as_uri(),
        journal=TensorBoard(writer),
    )
    (tmp_path / "v").rmdir()
    (tmp_path / "v").write_text("in the way")
    saver_of(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    for end in (lambda: saver.save(block=True), saver.close):
        with pytest.raises(CheckpointError):
            end()
    assert ("checkpoint/failed", 1, 1) in writer.scalars
    assert os.path.isfile(tmp_path / "v")
