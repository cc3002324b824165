"""Samples of steps over time: bounded however long a job takes, and they keep what was lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from deepvm.errors import DataError
from deepvm.jobs.controller import changes
from deepvm.jobs.controller.changes import FLUSH_S, MOST, Sampler, edges, spacing_s
from deepvm.jobs.decisions import events
from deepvm.jobs.decisions.world import JobLimits, JobState, Pool
from deepvm.jobs.history.history import PLACE, History, Sample

WORLD = JobState(JobLimits(1, 1), 0.0, pools=(Pool("a", "z", "spot", 1.0),))


@pytest.fixture
def place(tmp_path: Path) -> dict[str, str]:
    return {PLACE: str(tmp_path / "history.db")}


def world(at_s: float, step: int, generation: int = 1) -> JobState:
    return replace(WORLD, now_s=at_s, reached=step, generation=generation)


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write seldom: each time waits for the disk."""
    monkeypatch.setattr(changes, "FLUSH_S", 20 * FLUSH_S)


@pytest.mark.usefixtures("seldom")
def test_a_long_job_has_no_more_samples_than_a_short_one(place: dict[str, str]) -> None:
    with History.open(place) as history:
        sampler = Sampler(history, "long")
        for second in range(0, 60_000, 10):
            sampler.take(world(float(second), second * 3))
        sampler.close()
        found = history.samples("long")
    assert MOST / 3 < len(found) <= 2 * MOST
    assert (found[0].step, found[-1].step) == (0, 59_990 * 3)
    assert all(a.at_s < b.at_s for a, b in zip(found, found[1:], strict=False))


@pytest.mark.usefixtures("seldom")
def test_what_was_lost_stays_where_it_was_lost(place: dict[str, str]) -> None:
    with History.open(place) as history:
        sampler, step = Sampler(history, "falls"), 0
        for second in range(40_000):
            step = step - 7 if second in (1001, 20_001) else step + 1
            sampler.take(world(float(second), step, 1 + (second > 1000) + (second > 20_000)))
        sampler.close()
        found = history.samples("falls")
    assert [(s.at_s, s.generation) for s in edges(found)] == [
        (1000, 1),
        (1001, 2),
        (20_000, 2),
        (20_001, 3),
    ]
    assert sum(max(a.step - b.step, 0) for a, b in zip(found, found[1:], strict=False)) == 14


@pytest.mark.usefixtures("seldom")
def test_a_job_that_falls_all_the_time_is_bounded_too(place: dict[str, str]) -> None:
    with History.open(place) as history:
        sampler = Sampler(history, "falls")
        for second in range(20_000):
            sampler.take(world(float(second), second % 2 * 5))
        sampler.close()
        assert len(history.samples("falls")) <= 4 * MOST


def test_another_controller_goes_on(place: dict[str, str]) -> None:
    with History.open(place) as history:
        first = Sampler(history, "job")
        for second in range(100):
            first.take(world(float(second), second))
        kept = len(history.samples("job"))
        second_one = Sampler(history, "job")  # the first was killed: what was not written is lost
        for second in range(200, 300):
            second_one.take(world(float(second), second))
        second_one.close()
        found = history.samples("job")
    assert kept >= 100 - FLUSH_S - 1 and found[:kept] == [
        Sample(float(i), 1, i) for i in range(kept)
    ]
    assert found[-1] == Sample(299.0, 1, 299)


def test_writes_are_few(place: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with History.open(place) as history:
        writes = []
        monkeypatch.setattr(History, "add_samples", lambda *a, **k: writes.append(a))
        sampler = Sampler(history, "job")
        for tick in range(1000):
            sampler.take(world(tick * 0.2, tick))
        assert len(writes) <= 200 / FLUSH_S + 1


def test_spacing() -> None:
    for span_s in [0.0, 1.0, 299.0, 301.0, 86_400.0, 1e7]:
        assert span_s <= MOST * spacing_s(span_s) and (
            spacing_s(span_s) == 0.25 or span_s > MOST * spacing_s(span_s) / 2
        )


def test_what_could_not_be_written_is_written_later(
    place: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history is locked for a third of the time; also when the series becomes coarser."""
    add = History.add_samples

    def locked(self: History, name: str, samples: list[Sample], *, instead: bool = False) -> None:
        if samples[-1].at_s % 300 < 100:
            raise DataError("locked")
        add(self, name, samples, instead=instead)

    found = []
    for fails in (False, True):
        with History.open(place) as history:
            if fails:
                monkeypatch.setattr(History, "add_samples", locked)
            name = f"fails {fails}"
            sampler = Sampler(history, name)
            for second in range(0, 2_299):
                sampler.take(world(float(second), second // 2))
            sampler.close()
            found.append(history.samples(name))
    assert len(found[0]) > MOST / 3 and found[0] == found[1]


def test_the_first_refusal_says_when_a_job_gives_up() -> None:
    refusal = events.Refused("m1", "no capacity")
    (first,) = changes.rows_of(WORLD, WORLD, [refusal])
    assert first.facts["why"] == "no capacity; gives up after 60 min without a machine"
    later = replace(WORLD, blocked={WORLD.pools[0]: (9.0, 1)})
    (second,) = changes.rows_of(later, later, [refusal])
    assert second.facts["why"] == "no capacity"
