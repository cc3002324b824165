"""A failure is not waited for twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from support.catalog_signals import KINDS, NOW, REGION, Cloud, denied, resolve

from deepvm.catalog.signals import fetching, signal
from deepvm.catalog.signals.cache import Cache
from deepvm.catalog.signals.fetching import (
    ResolvedSignals,
    SignalRequest,
    recent_failure,
    remember_failure,
)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", "default")


def signals(cache: Cache, cloud: Cloud, minutes: float = 0, mode: str = "auto") -> ResolvedSignals:
    now = NOW + timedelta(minutes=minutes)
    return resolve(REGION, KINDS, mode, cache=cache, providers=cloud, snapshot={}, now=now)


@pytest.mark.parametrize("why", ["network", "timeout", "throttled"])
def test_what_failed_is_not_asked_again_for_five_minutes(cache: Cache, why: str) -> None:
    cloud = Cloud(quotas=denied(why))
    assert "no answer within 30 s" in " ".join(signals(cache, cloud).notes)
    again = signals(cache, cloud, 2)
    assert cloud.fakes["quotas"].calls == [REGION]
    assert "that was 2 min ago, and 'deepvm catalog refresh' asks again" in " ".join(again.notes)
    signals(cache, cloud, 6)
    assert cloud.fakes["quotas"].calls == [REGION, REGION]


@pytest.mark.parametrize(
    "why", ["credentials", "expired", "clock", "permission", "region", "reply"]
)
def test_what_is_refused_at_once_is_tried_at_once_again(cache: Cache, why: str) -> None:
    signals(cache, Cloud(quotas=denied(why)))
    mended = Cloud()
    assert signal.QUOTAS in signals(cache, mended, 1).signals
    assert mended.fakes["quotas"].calls == [REGION]


def test_live_asks_again(cache: Cache) -> None:
    cloud = Cloud(spot=denied())
    signals(cache, cloud)
    mended = Cloud()
    assert signals(cache, mended, 1, "live").signals[signal.SPOT].origin == "live"


SPOT = SignalRequest(REGION, "spot")


def test_one_failure_does_not_prolong_another(cache: Cache) -> None:
    remember_failure(cache, SPOT, denied(), NOW)
    later = NOW + timedelta(minutes=4)
    quotas = SignalRequest(REGION, "quotas")
    remember_failure(cache, quotas, denied(), later)
    assert recent_failure(cache, SPOT, later) and recent_failure(cache, quotas, later)
    later = NOW + timedelta(minutes=5, seconds=1)
    assert not recent_failure(cache, SPOT, later) and recent_failure(cache, quotas, later)


def test_accounts_fail_each_on_their_own(tmp_path: Path) -> None:
    remember_failure(Cache(tmp_path, "one"), SPOT, denied("network"), NOW)
    assert not recent_failure(Cache(tmp_path, "two"), SPOT, NOW)


def test_a_clock_that_was_set_back_forgets(cache: Cache) -> None:
    remember_failure(cache, SPOT, denied(), NOW)
    assert not recent_failure(cache, SPOT, NOW - timedelta(minutes=1))


def test_status_does_not_list_them(cache: Cache) -> None:
    remember_failure(cache, SPOT, denied(), NOW)
    assert cache.entries(NOW) == ()


def test_auto_gives_up_sooner_than_refresh() -> None:
    assert fetching.AUTO_GIVE_UP_S <= 60 < fetching.GIVE_UP_S


def test_boto3_is_not_loaded_by_any_of_this() -> None:
    code = (
        "import deepvm.catalog.signals.fetching, sys, json; print(json.dumps(sorted(sys.modules)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    ).stdout
    assert not {
        "boto3",
        "botocore",
        "pydantic",
        "pandas",
        "numpy",
        "platformdirs",
        "asyncio",
    } & set(json.loads(out))
