"""Calls to a cloud that hangs, fails or answers twice: none piles up or ends a controller."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from deepvm.jobs.cloud import Listing, UnknownError
from deepvm.jobs.controller import cloud_calls
from deepvm.jobs.controller.cloud_calls import CloudCalls
from deepvm.jobs.controller.injector import InjectedFault
from deepvm.jobs.decisions import events as d


class Cloud:
    """Hangs until it is let go, and fails as it is told."""

    near = False

    def __init__(self) -> None:
        self.calls, self.fails, self.go = list[str](), list[Exception](), threading.Event()

    def _called(self, name: str) -> None:
        self.calls.append(name)
        assert self.go.wait(10)
        if self.fails:
            raise self.fails.pop(0)

    def listing(self, job: str) -> Listing:
        self._called("list")
        return Listing({"m1": 1.0})

    def release(self, job: str, machine: str) -> None:
        self._called(f"release {machine}")

    def preempt(self, job: str, machine: str, grace_s: float | None) -> None:
        self._called(f"preempt {machine}")

    def finish(self, job: str) -> None:
        self._called("finish")


def called(cloud: Cloud, work: Any) -> list[d.Event]:
    """What became of calls that ``work`` makes."""
    fed: list[d.Event] = []

    async def run() -> None:
        calls = CloudCalls(cloud, "job", fed.append)  # type: ignore[arg-type]
        await work(calls)
        calls.close()

    asyncio.run(run())
    return fed


def test_a_cloud_that_hangs_is_asked_once() -> None:
    cloud = Cloud()

    async def work(calls: CloudCalls) -> None:
        assert calls.is_list_due(0.0)
        tasks = [
            asyncio.ensure_future(w)
            for w in (calls.list(), calls.release("m1"), calls.release("m2"))
        ]
        await asyncio.sleep(0.1)
        assert not calls.is_list_due(0.0)
        await calls.release("m1")  # one is under way
        cloud.go.set()
        await asyncio.gather(*tasks)
        assert calls.is_list_due(0.0) and not calls.is_list_due(10.0)
        await calls.release("m1")  # it lives all the same

    assert called(cloud, work) == [d.InstancesListed({"m1": 1.0}, {}, {}, frozenset())]
    assert sorted(cloud.calls) == ["list", "release m1", "release m1", "release m2"]


def test_hanging_calls_keep_no_others_waiting() -> None:
    cloud = Cloud()

    async def work(calls: CloudCalls) -> None:
        tasks = [asyncio.ensure_future(calls.release(f"m{n}")) for n in range(20)]
        await asyncio.sleep(0.1)
        began = time.monotonic()
        assert await asyncio.to_thread(lambda: 1) == 1 and len(cloud.calls) == 20
        assert time.monotonic() - began < 5
        cloud.go.set()
        await asyncio.gather(*tasks)

    called(cloud, work)


def test_what_nobody_foresees_is_said_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    cloud = Cloud()
    cloud.go.set()
    cloud.fails = [ValueError("a file that is no JSON"), UnknownError("throttled")]

    async def work(calls: CloudCalls) -> None:
        await calls.list()
        assert calls.is_list_due(0.0)
        await calls.list()

    assert called(cloud, work) == []
    assert [(r.getMessage(), bool(r.exc_info)) for r in caplog.records] == [
        ("a file that is no JSON", True),
        ("throttled", False),
    ]


@pytest.mark.parametrize("wrong", [UnknownError("ssh has failed"), ValueError("a bug")])
def test_a_strike_that_the_cloud_does_not_make_is_said(
    caplog: pytest.LogCaptureFixture, wrong: Exception
) -> None:
    cloud, made = Cloud(), list[bool]()
    cloud.go.set()
    cloud.fails = [wrong]

    async def work(calls: CloudCalls) -> None:
        made.extend(
            [await calls.inject(InjectedFault("m1")), await calls.inject(InjectedFault("m1"))]
        )

    called(cloud, work)
    assert made == [False, True] and str(wrong) in caplog.text


@pytest.mark.parametrize("failures", [2, 1000])
def test_a_job_ends_although_nothing_can_be_removed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failures: int
) -> None:
    monkeypatch.setattr(cloud_calls, "_AGAIN_S", 0.01)
    monkeypatch.setattr(cloud_calls, "_FINISH_S", 0.3)
    cloud = Cloud()
    cloud.go.set()
    cloud.fails = [UnknownError("throttled") for _ in range(failures)]
    called(cloud, lambda calls: calls.finish())
    assert (len(cloud.calls) == 3) == (failures == 2)
    assert ("throttled" in caplog.text) == (failures > 2)
