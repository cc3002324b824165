"""The commit protocol by its state machine, and rules that are broken on purpose: each is seen."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from support.checkpoint.state_machine import CLOCK, KEEP, MemoryOnly, OneRank, Protocol, ThreeRanks

from deepvm.checkpoint.format import checksums
from deepvm.checkpoint.node import flusher
from deepvm.checkpoint.node import version_registry as rules
from deepvm.checkpoint.node.flusher import Flusher
from deepvm.checkpoint.node.version_registry import VersionRegistry
from deepvm.checkpoint.node.versions import Claim, Job, Session, State, Version
from deepvm.errors import CheckpointError, DamagedError


@pytest.fixture(autouse=True)
def _nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread plays all: who would wait for another's bytes is refused at once."""
    monkeypatch.setattr(rules, "_ABORT_S", 0.0)
    monkeypatch.setattr(flusher, "time", CLOCK)
    monkeypatch.setattr(checksums, "STEP_BYTES", 300)
    monkeypatch.setattr(rules, "LEAST_PIECE", 1)
    # No machine crashes here, and most time would go there
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


MACHINES = [Protocol, OneRank, MemoryOnly, ThreeRanks]
HEALTH = [HealthCheck.too_slow]


def test_the_protocol() -> None:
    for machine in MACHINES:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=25, stateful_step_count=50, suppress_health_check=HEALTH
            ),
        )


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_the_protocol_for_long(machine: type[Protocol]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=600, stateful_step_count=80, suppress_health_check=HEALTH),
    )


def newest_only(self: Flusher, version: Version) -> None:
    for manifest in self._store.versions(version.job)[KEEP - 1 :]:
        self._store.delete(version.job, manifest.version)


def unverified_counts(self: VersionRegistry, claim: Claim, verified: object) -> None:
    settle(self, claim, claim.version.index.cuts.pieces(claim.view, claim.start))


def unpinned(
    self: VersionRegistry, limit_s: float, resting: Container[str], early_bytes: int | None
) -> object:
    version = next_flush(self, limit_s, resting, early_bytes)
    if version is not None and version.state is State.RECEIVING:
        version.pins -= 1
    return version


def unnoticed(self: Version, rank: int) -> None:
    before = self.renewed
    forget(self, rank)
    self.renewed = before


def said_too_soon(self: Flusher, version: Version, final: Iterable[int]) -> None:
    try:
        write_to_store(self, version, final)
    except CheckpointError:
        if isinstance(final, list):  # it was complete
            raise


def always_flushed(self: VersionRegistry, here: Job, size: int) -> object:
    for job in self.jobs.values():
        for version in job.complete.values():
            version.flushed = True
    return take(self, here, size)


settle, take, next_flush = VersionRegistry.settle, VersionRegistry._slot, VersionRegistry.next_flush
forget, write_to_store = Version.forget, Flusher._put
MUTATIONS = {
    "a commit counts with bytes missing": (Version, "missing", lambda self, rank: iter(())),
    "the newest version has no protection": (Job, "keeps", lambda self, version: False),
    "bytes of an earlier attempt count": (Version, "forget", lambda self, rank: None),
    "bytes that were not verified count": (VersionRegistry, "settle", unverified_counts),
    "a living run is pushed aside": (Session, "alive", lambda self, now, lease_s: False),
    "a slot that is read is used again": (
        Version,
        "used",
        property(lambda self: bool(self.claims)),
    ),
    "a slot that is written is used again": (Version, "used", property(lambda self: self.pins > 0)),
    "the disk keeps the newest only": (Flusher, "_retain", newest_only),
    "a word on an earlier attempt stands for the next": (
        Session,
        "save_again",
        lambda self, number: None,
    ),
    "a slot that is written early is used again": (VersionRegistry, "next_flush", unpinned),
    "what came anew is not noticed by who writes early": (Version, "forget", unnoticed),
    "what failed early is on the disk": (Flusher, "_put", said_too_soon),
    "what is not on the disk goes": (VersionRegistry, "_slot", always_flushed),
}


# The machine that meets it soonest.
SEEN_BY = {
    "the newest version has no protection": MemoryOnly,
    "the disk keeps the newest only": OneRank,
    "a slot that is written is used again": OneRank,
}


RARE = (
    "the disk keeps the newest only",
    "a slot that is written is used again",
    "what came anew is not noticed by who writes early",
)


@pytest.mark.system
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in RARE else n for n in MUTATIONS]
)
def test_a_broken_rule_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTATIONS[name])
    # Without shrinking: that it is seen is all that counts here.
    search = settings(
        max_examples=3000 if name in RARE else 300,
        stateful_step_count=50,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=HEALTH,
    )
    with pytest.raises((AssertionError, DamagedError)):
        run_state_machine_as_test(SEEN_BY.get(name, Protocol), settings=search)
