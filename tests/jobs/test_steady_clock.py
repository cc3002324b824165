"""A clock that others cannot set."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from deepvm.jobs import steady_clock
from deepvm.jobs.steady_clock import CLOCK, SteadyClock, clock_of, job_time_s


def set_wall(monkeypatch: pytest.MonkeyPatch, by_s: float) -> None:
    true = time.time()
    began = time.monotonic()
    monkeypatch.setattr(time, "time", lambda: true + by_s + time.monotonic() - began)


@pytest.mark.parametrize("by_s", [3600.0, -3600.0])
def test_setting_the_wall_clock_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, by_s: float
) -> None:
    clock, before_s = clock_of(tmp_path), time.time()
    set_wall(monkeypatch, by_s)
    assert clock.now_s() == pytest.approx(before_s, abs=1.0)
    assert clock.of_wall_s(time.time() + 120.0) == pytest.approx(before_s + 120.0, abs=1.0)
    another = clock_of(tmp_path, before_s)  # of the next controller
    assert another == clock and job_time_s(tmp_path, time.time()) == pytest.approx(
        before_s, abs=1.0
    )


def test_after_a_reboot_it_starts_by_the_wall_clock_after_all_that_was_written_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock_of(tmp_path)
    monkeypatch.setattr(steady_clock, "boot_id", lambda: "another")
    assert SteadyClock.load(tmp_path / CLOCK) is None and job_time_s(tmp_path, 7.0) == 7.0
    set_wall(monkeypatch, -3600.0)
    least_s = time.time() + 3600.0
    assert clock_of(tmp_path, least_s).now_s() >= least_s


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"boot": ""}', '{"boot": "", "zero_s": 1}'])
def test_a_file_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / CLOCK).write_text(text)
    assert SteadyClock.load(tmp_path / CLOCK) is None
    assert clock_of(tmp_path).now_s() == pytest.approx(time.time(), abs=1.0)
