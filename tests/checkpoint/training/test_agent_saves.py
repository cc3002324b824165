"""Saves before a preemption: they need no free slot, older versions give way, and training holds
until it may go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.jobs.agents import BareAgent
from support.jobs.runs import until

torch = pytest.importorskip("torch")
from support.checkpoint.trainings import Fill, contents, model_of  # noqa: E402

from deepvm.checkpoint import Checkpointer, ResumableLoader  # noqa: E402
from deepvm.checkpoint.format.manifest import (  # noqa: E402
    CommitRecord,  # noqa: E402
    Level,
    Shard,
)
from deepvm.checkpoint.tiers.base import Tier  # noqa: E402
from deepvm.errors import CheckpointError, RequestError, TierBusyError  # noqa: E402
from deepvm.io.agent_board import AGENT, Flag, RankFlag, SaveReason  # noqa: E402


class Slow(Tier):
    """Takes versions one after the other; each has to be let through."""

    url = "slow://here"
    streams = True

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.taken: list[int] = []
        self.open = threading.Event()

    def put(self, shard: Shard, acknowledged: Callable[[Level], None]) -> None:
        self.begun.append(shard.version)
        while not self.open.wait(0.01):
            shard.ready(shard.layout.size)
        self.taken.append(shard.version)
        acknowledged(Level.DURABLE)

    def versions(self, job: str) -> tuple[CommitRecord, ...]:
        return ()

    def fetch(self, manifest: CommitRecord, folder: Path) -> Path:
        raise CheckpointError("nothing is here")


class Memory(Slow):
    """An anchor: it has each version at once, and keeps it in memory only."""

    url = "memory://anchor"

    def put(self, shard: Shard, acknowledged: Callable[[Level], None]) -> None:
        shard.ready(shard.layout.size)
        acknowledged(Level.REMOTE)
        shard.lost(CheckpointError("it is in memory only"))


def saver_of(
    tier: Tier | Path | list[Tier | Path], **options: Any
) -> tuple[Callable[[], None], Checkpointer]:
    """A step of a small training, forward and all, and its checkpointer."""
    model = model_of(2, 64)
    optimizer = Fill(model.parameters())

    def step() -> None:
        model(torch.zeros(1, 64)).sum().backward()
        optimizer.step()

    return step, Checkpointer(
        model=model,
        optimizer=optimizer,
        tiers=tier if isinstance(tier, list) else [tier],
        **options,
    )


def test_a_request_has_a_handle(tmp_path: Path) -> None:
    step, saver = saver_of(tmp_path)
    with saver:
        handle, same = saver.request_save(), saver.request_save()
        assert handle is same and handle.version == 0 and not handle.snapshot_done.done()
        step()
        assert handle.version == 1 and saver.request_save() is not handle
        step()
        assert handle.durable.result(20) == 1
        assert max(handle.times.values()) < 15  # from the step on, not from the request


def test_an_urgent_save_needs_no_free_slot_and_older_ones_give_way() -> None:
    tier = Slow()
    step, saver = saver_of(tier, slots=2)
    with saver:
        old = []
        for _ in range(2):
            old.append(saver.request_save())
            step()
            step()
        until(lambda: tier.begun == [1])
        skipped = saver.request_save()
        step()
        step()
        assert skipped.skipped  # both slots are in flight
        urgent = saver.request_save(deadline=time.time() + 600)
        step()
        step()
        tier.open.set()
        assert urgent.durable.result(20) == urgent.version
        assert tier.taken == [1, urgent.version]  # what was being sent fits; what waited is dropped
        assert isinstance(old[1].durable.exception(5), TierBusyError)


def test_what_is_being_sent_gives_way_too_where_both_do_not_fit() -> None:
    tier = Slow()
    step, saver = saver_of(tier, slots=1)
    with saver:
        first = saver.request_save()
        step()
        step()
        until(lambda: tier.begun == [1])
        urgent = saver.request_save(deadline=time.time() - 1)
        step()
        step()
        assert isinstance(first.durable.exception(10), TierBusyError)
        tier.open.set()
        assert urgent.durable.result(20) == urgent.version and tier.taken == [urgent.version]


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BareAgent]:
    (tmp_path / "agent").mkdir()
    found = BareAgent(tmp_path / "agent")
    monkeypatch.setenv(AGENT, str(tmp_path / "agent"))
    yield found
    found.close()


def test_what_passes_between_steps_is_on_the_board(tmp_path: Path, agent: BareAgent) -> None:
    """From the end of a step until the model is used, for an evaluation too.

    Without saves and the first step.
    """
    step, saver = saver_of(tmp_path)
    with saver:
        time.sleep(0.05)
        for number in range(1, 6):
            step()
            time.sleep(0.03)
            if number == 3:
                saver._state.model.eval()(torch.zeros(1, 64))
                saver._state.model.train()
                time.sleep(0.2)
        between_s, of_s = (
            agent.board.of_rank(0, word) / 1e9 for word in (RankFlag.BETWEEN_NS, RankFlag.OF_NS)
        )
    assert 4 * 0.03 <= between_s < 0.22 and between_s + 0.2 <= of_s < 0.5


def test_training_holds_after_a_save_before_a_preemption(agent: BareAgent, tmp_path: Path) -> None:
    step, saver = saver_of(tmp_path / "versions")
    assert saver.restore_latest() == 0
    until(lambda: agent.told("restored"))
    step()
    agent.board.request(SaveReason.EMERGENCY, int((time.time() + 60) * 1000))
    done = threading.Event()

    def train() -> None:
        step()
        step()
        done.set()

    thread = threading.Thread(target=train)
    thread.start()
    (told,) = until(lambda: agent.told("saved"))
    assert (
        told["version"] == 2 and told["save"][0] == SaveReason.EMERGENCY and told["error"] is None
    )
    assert contents(tmp_path / "versions") == {2: {2.0}}
    assert not done.wait(0.2) and agent.board.of_rank(0, RankFlag.HELD) == 2
    agent.board.words[Flag.RESUMED] = 1
    assert done.wait(10)
    thread.join()
    saver.close()


def test_a_version_that_a_newer_urgent_one_replaces_is_not_reported_as_failed(
    agent: BareAgent,
) -> None:
    tier = Slow()
    step, saver = saver_of(tier, slots=1)
    saver.restore_latest()
    first = saver.request_save()
    step()
    step()
    until(lambda: tier.begun == [1])
    agent.board.words[Flag.RESUMED] = 1
    agent.board.request(SaveReason.EMERGENCY, int((time.time() + 0.001) * 1000))  # no time for both
    step()
    step()
    assert isinstance(first.durable.exception(10), TierBusyError)
    tier.open.set()
    until(lambda: agent.told("saved"))
    saver.close()
    assert {(m["version"] > 1, m["error"]) for m in agent.told("saved")} == {(True, None)}


class Evaluated:
    """A training that is evaluated for ever by another thread than the test's, once ``steps`` are
    done.
    """

    def __init__(
        self,
        folder: Path,
        steps: int,
        before: Callable[[torch.nn.Module], object] = lambda _: None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        self.model = model_of(2, 64)
        optimizer = Fill(self.model.parameters())
        self.saver = Checkpointer(model=self.model, optimizer=optimizer, extra=extra, tiers=folder)
        self.saver.restore_latest()
        self.over, self.passes = threading.Event(), 0

        def step() -> None:
            self.model(torch.zeros(1, 64)).sum().backward()
            optimizer.step()

        def train() -> None:
            for _ in range(steps):
                step()
            before(self.model)
            self.model.eval()
            with torch.no_grad():
                while not self.over.wait(0.005):
                    self.model(torch.zeros(1, 64))
                    self.passes += 1
            self.model.train()
            if not steps:
                step()
            for _ in range(2):
                step()

        self.thread = threading.Thread(target=train)
        self.thread.start()
        until(lambda: self.passes)

    def end(self) -> None:
        self.over.set()
        self.thread.join(20)
        self.saver.close()


@pytest.mark.parametrize("loader", [False, True])
@pytest.mark.parametrize("pending", [False, True])
def test_an_evaluation_does_not_keep_a_notice_waiting(
    agent: BareAgent, tmp_path: Path, *, pending: bool, loader: bool
) -> None:
    """Also where the last step's version is not sent yet, because schedulers follow the step, or a
    batch is awaited.
    """
    agent.board.words[Flag.DUE] = 3 if pending else 0
    extra = {"loader": ResumableLoader(torch.utils.data.DataLoader(range(3)))} if loader else {}  # type: ignore[arg-type]
    training = Evaluated(tmp_path / "versions", 3, extra=extra)
    assert not contents(tmp_path / "versions")
    agent.board.request(SaveReason.EMERGENCY, int((time.time() + 20) * 1000))
    until(lambda: agent.board.of_rank(0, RankFlag.HELD) == 3)
    (told,) = until(
        lambda: [m for m in agent.told("saved") if m["save"][0] == SaveReason.EMERGENCY]
    )
    assert (told["version"], told["error"]) == (3, None)
    assert contents(tmp_path / "versions") == {3: {3.0}}
    passes = training.passes
    time.sleep(0.1)
    assert training.passes == passes  # it waits: what it finds out would be lost
    agent.board.words[Flag.RESUMED] = 1
    until(lambda: training.passes > passes)
    training.end()
    assert len({m["version"] for m in agent.told("saved")}) == 1  # nothing is saved twice


def swapped(model: torch.nn.Module) -> None:
    """Moving averages take the place of the weights, as usual libraries do it."""
    for parameter in model.parameters():
        parameter.data.copy_(parameter.data * 0.9)


@pytest.mark.parametrize(
    ("steps", "before", "left_s"),
    [
        (0, lambda _: None, 20),
        (2, lambda model: model(torch.zeros(1, 64)).sum().backward(), 20),
        (2, swapped, 20),
        (2, lambda _: None, 1000),
    ],
    ids=["before-the-first-step", "half-a-step", "other-weights", "in-time"],
)
def test_an_evaluation_in_which_the_state_is_not_that_of_the_last_step_or_time_is_left(
    agent: BareAgent,
    tmp_path: Path,
    steps: int,
    before: Callable[[torch.nn.Module], object],
    left_s: float,
) -> None:
    training = Evaluated(tmp_path / "versions", steps, before)
    agent.board.words[Flag.RESUMED] = 1
    agent.board.request(SaveReason.EMERGENCY, int((time.time() + left_s) * 1000))
    passes = training.passes
    until(lambda: training.passes > passes + 20)
    assert not agent.told("saved")
    training.end()
    (told,) = agent.told("saved")
    assert told["version"] == steps + 1 and contents(tmp_path / "versions") == {
        steps + 1: {steps + 1.0}
    }


@pytest.mark.parametrize("by_steps", [False, True])
def test_a_notice_in_a_validation_within_an_iteration(
    agent: BareAgent, tmp_path: Path, *, by_steps: bool
) -> None:
    """What the last step left is saved with the number of the iteration, which counts as done."""
    model = model_of(2, 64)
    optimizer = Fill(model.parameters())
    saver = Checkpointer(model=model, optimizer=optimizer, tiers=tmp_path / "versions")
    iterations = saver.steps(5) if by_steps else range(saver.restore_latest(), 5)
    over, passes = threading.Event(), threading.Event()
    agent.board.words[Flag.RESUMED] = 1

    def train() -> None:
        for step in iterations:
            model(torch.zeros(1, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 2:
                model.eval()
                with torch.no_grad():
                    while not over.wait(0.005):
                        model(torch.zeros(1, 64))
                        passes.set()
                model.train()

    thread = threading.Thread(target=train)
    thread.start()
    assert passes.wait(20)
    agent.board.request(SaveReason.EMERGENCY, int((time.time() + 20) * 1000))
    until(lambda: contents(tmp_path / "versions") == {3: {3.0}})
    over.set()
    thread.join()
    saver.close()


@pytest.mark.parametrize("own_part", [False, True])
def test_another_module_that_runs_with_gradients_does_not_keep_a_notice_waiting(
    agent: BareAgent, tmp_path: Path, *, own_part: bool
) -> None:
    """A part of the model itself may be the start of the next step: it is not saved in the middle
    of that.
    """
    step, saver = saver_of(tmp_path / "versions")
    saver.restore_latest()
    other = saver._state.model[0] if own_part else model_of(1, 64)
    over = threading.Event()

    def train() -> None:
        step()
        while not over.wait(0.005):
            other(torch.zeros(1, 64)).sum().backward()

    agent.board.words[Flag.RESUMED] = 1
    thread = threading.Thread(target=train)
    thread.start()
    until(lambda: saver.version)
    agent.board.request(SaveReason.EMERGENCY, int((time.time() + 2) * 1000))
    if own_part:
        time.sleep(1.5)
        assert not agent.told("saved")
    else:
        until(lambda: contents(tmp_path / "versions") == {1: {1.0}})
    over.set()
    thread.join()
    saver.close()


@pytest.mark.parametrize("beside", [False, True], ids=["bucket", "folder-too"])
def test_a_save_before_the_end_waits_until_it_outlives_the_anchor(
    agent: BareAgent, tmp_path: Path, beside: bool
) -> None:
    bucket = Slow()
    step, saver = saver_of([Memory(), bucket, *([tmp_path / "disk"] if beside else [])])
    assert saver.restore_latest() == 0
    step()
    agent.board.request(SaveReason.STOP, int((time.time() + 60) * 1000))
    thread = threading.Thread(target=lambda: (step(), step()))
    thread.start()
    until(
        lambda: (
            saver.handles
            and saver.handles[-1].remote_done.done()
            and (not beside or saver.handles[-1].durable.done())
        )
    )
    time.sleep(0.3)
    assert not agent.told("saved") and not agent.board.of_rank(0, RankFlag.HELD)
    bucket.open.set()
    (told,) = until(lambda: agent.told("saved"))
    assert (told["version"], told["error"], told["lasts"]) == (2, None, True)
    until(lambda: agent.board.of_rank(0, RankFlag.HELD) == 2)
    agent.board.words[Flag.RESUMED] = 1
    thread.join()
    saver.close()
    assert not agent.told("lasts")


@pytest.mark.parametrize("reason", [SaveReason.EMERGENCY, SaveReason.STOP])
def test_a_save_that_is_given_up_is_waited_for_no_more(
    agent: BareAgent, reason: SaveReason
) -> None:
    """Where rank 1 waited on, rank 0 waited for it in the next step's collective."""
    bucket = Slow()
    step, saver = saver_of([bucket])
    agent.board.request(reason, int((time.time() + 20) * 1000))
    thread = threading.Thread(target=lambda: (step(), step()))
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    agent.board.words[Flag.RESUMED] = 1
    thread.join(5)
    assert not thread.is_alive()
    bucket.open.set()
    saver.close()


class Broken(Memory):
    url = "broken://bucket"

    def put(self, shard: Shard, acknowledged: Callable[[Level], None]) -> None:
        raise CheckpointError("the bucket is gone")


@pytest.mark.parametrize(
    ("tiers", "error", "lasts"),
    [
        ([Memory, Broken], "the bucket is gone", False),
        ([Memory, Broken, Path], None, True),  # better than nothing
        ([Memory], None, False),  # nothing better could be had
    ],
    ids=["bucket-fails", "folder-left", "anchor-alone"],
)
def test_a_save_before_the_end_for_which_the_bucket_fails(
    agent: BareAgent, tmp_path: Path, tiers: list[Any], error: str | None, lasts: bool
) -> None:
    step, saver = saver_of([tmp_path / "disk" if tier is Path else tier() for tier in tiers])
    agent.board.request(SaveReason.STOP, int((time.time() + 60) * 1000))
    agent.board.words[Flag.RESUMED] = 1
    step()
    step()
    (told,) = until(lambda: agent.told("saved"))
    assert (told["version"], told["error"], told["lasts"]) == (1, error, lasts)
    saver.close()


def test_what_the_anchor_has_is_safe_before_a_preemption_and_lasts_later(agent: BareAgent) -> None:
    bucket = Slow()
    step, saver = saver_of([Memory(), bucket])
    agent.board.request(SaveReason.EMERGENCY, int((time.time() + 60) * 1000))
    agent.board.words[Flag.RESUMED] = 1
    step()
    step()
    (told,) = until(lambda: agent.told("saved"))
    assert (told["version"], told["error"], told["lasts"]) == (1, None, False)
    time.sleep(0.2)
    bucket.open.set()
    assert told["pending"]
    (lasts,) = until(lambda: agent.told("lasts"))
    assert lasts["version"] == 1 and lasts["took_s"] - told["took_s"] >= 0.2
    saver.close()


@pytest.mark.parametrize("there", [True, False])
def test_a_bucket_that_fails_behind_the_anchor_is_told_of(agent: BareAgent, there: bool) -> None:
    step, saver = saver_of([Memory(), *([Broken()] if there else [])])
    agent.board.request(SaveReason.INSURANCE, 0)
    step()
    step()
    until(lambda: agent.told("saved"))
    saver.close()
    found = [told["error"] for told in agent.told("lasts")]
    assert found == ["the bucket is gone"] if there else not any(found)


def test_the_agents_save_policy_and_the_trainings_own(agent: BareAgent, tmp_path: Path) -> None:
    step, saver = saver_of(tmp_path / "versions", every=5, keep=0, slots=8)
    with saver:
        for number in range(1, 13):
            agent.board.words[Flag.DUE] = ((number - 1) // 4 + 1) * 4
            step()
    reasons = {m["version"]: SaveReason(m["save"][0]) for m in agent.told("saved")}
    assert reasons == {
        4: SaveReason.INSURANCE,
        5: SaveReason.NONE,
        8: SaveReason.INSURANCE,
        10: SaveReason.NONE,
        12: SaveReason.INSURANCE,
    }


def test_tiers_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(1, 8)
    monkeypatch.setenv("DEEPVM_TIERS", f"{(tmp_path / 'a').as_uri()} {(tmp_path / 'b').as_uri()}")
    with Checkpointer(model=model, optimizer=Fill(model.parameters())) as saver:
        saver.save(block=True)
    assert contents(tmp_path / "a") and contents(tmp_path / "b")
    monkeypatch.delenv("DEEPVM_TIERS")
    monkeypatch.setenv("DEEPVM_AGENT", str(tmp_path))
    with pytest.raises(RequestError, match="DEEPVM_TIERS"):
        Checkpointer(model=model, optimizer=Fill(model.parameters()))


def test_keep_and_steps_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the job file says them; what the script says itself wins."""
    monkeypatch.setenv("DEEPVM_KEEP", "3")
    monkeypatch.setenv("DEEPVM_SAVE_EVERY", "2")
    for name, options, found in (
        ("job", {}, {8, 10, 12}),
        ("script", {"every": 3, "keep": 2}, {9, 12}),
        ("all", {"keep": 0}, {2, 4, 6, 8, 10, 12}),
    ):
        step, saver = saver_of(tmp_path / name, slots=8, **options)
        with saver:
            for _ in range(12):
                step()
        assert set(contents(tmp_path / name)) == found, name
    for variable in ("DEEPVM_KEEP", "DEEPVM_SAVE_EVERY"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "many")
            with pytest.raises(
                RequestError, match=rf"{variable}: 'many' \(expected a whole number"
            ):
                saver_of(tmp_path / "bad")


def test_steps_of_the_job_file_are_periodic_saves(
    agent: BareAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPVM_SAVE_EVERY", "5")
    step, saver = saver_of(tmp_path / "versions", slots=8)
    with saver:
        for _ in range(12):
            step()
    told = {m["version"]: SaveReason(m["save"][0]) for m in agent.told("saved")}
    assert told == {5: SaveReason.NONE, 10: SaveReason.NONE}


def test_a_trainer_of_an_older_generation_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(1, 8)
    monkeypatch.setenv("DEEPVM_EPOCH", "2")
    with Checkpointer(model=model, optimizer=Fill(model.parameters()), tiers=tmp_path) as newer:
        monkeypatch.setenv("DEEPVM_EPOCH", "1")
        with pytest.raises(CheckpointError, match="generation 1 is over: 2 has started"):
            Checkpointer(model=model, optimizer=Fill(model.parameters()), tiers=tmp_path)
        newer.save(block=True)
    monkeypatch.setenv("DEEPVM_EPOCH", "two")
    with pytest.raises(RequestError, match="DEEPVM_EPOCH"):
        Checkpointer(model=model, optimizer=Fill(model.parameters()), tiers=tmp_path)
