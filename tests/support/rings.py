"""Which ring a test belongs to: `make test` (ring 1), `make test-system` (2), `make test-slow` (3).

A test that starts a process or a slow server is of ring 2: it has the marker ``system``, which is
added where the code of the test, of its fixtures or of their helpers says so. A few that compute
for seconds have it, too. In a run without the tests of ring 2 (``-m "not system"``), such a start
fails, and so does a connection that leaves this machine.

``RECORD_RINGS=FILE`` appends a line of JSON for each test: wall seconds, CPU seconds with those of
its children, what it starts.
"""

from __future__ import annotations

import ipaddress
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

from support import quick_disks
from support.process_starts import listeners, starts_process

HIGHER_RINGS = {"system", "slow", "alone", "gpu", "browser", "mpi"}
"""Markers of tests that may start processes."""
_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"}


def mark_rings(items: list[pytest.Item]) -> None:
    """Add rings to tests by what their code says.

    ``system`` is for tests that start processes, ``slow`` for those in a browser.
    """
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker("slow")
        if any(item.get_closest_marker(name) for name in ("browser", "mpi")) or _starts(item):
            item.add_marker("system")


def keep_modules_together(items: list[pytest.Item]) -> None:
    """Have one worker run all tests of ring 1 in a module: what they share is made once.

    Tests of ring 2 wait a lot; they are spread over all workers unless they share a fixture.
    """
    for item in items:
        if item.get_closest_marker("xdist_group"):
            continue
        file = item.nodeid.partition("::")[0]
        spread = any(item.get_closest_marker(name) for name in HIGHER_RINGS)
        if not spread or _shares_a_fixture(item, file):
            item.add_marker(pytest.mark.xdist_group(file))


def _shares_a_fixture(item: pytest.Item, file: str) -> bool:
    definitions = item._fixtureinfo.name2fixturedefs.values()
    return any(
        one.scope == "module" and one.baseid == file for several in definitions for one in several
    )


def _starts(item: pytest.Item) -> bool:
    definitions = item._fixtureinfo.name2fixturedefs.values()
    fixtures = [definition.func for several in definitions for definition in several]
    return any(map(starts_process, [item.function, *fixtures]))


class RingGuard:
    """A pytest plugin: tests of ring 1 start no process and connect to this machine only."""

    def __init__(self, *, is_strict: bool, record: str | None) -> None:
        self._is_strict = is_strict
        self._record = record
        self._test: pytest.Item | None = None
        self._is_guarded = False
        self._events: list[str] = []
        self._unseen: list[str] = []
        watched = _STARTS | {"socket.connect"}

        def audit(event: str, arguments: tuple[Any, ...]) -> None:
            if event in watched:  # few of the thousands that a test causes
                self._audit(event, arguments)

        sys.addaudithook(audit)
        listeners.append(self._leaves_ring_1)
        start = BaseProcess.start

        def guarded(process: BaseProcess) -> None:
            self._leaves_ring_1("multiprocessing")
            start(process)

        BaseProcess.start = guarded  # type: ignore[method-assign]
        if is_strict:
            quick_disks.sync_nothing()

    def pytest_collection_finish(self) -> None:
        if self._is_strict:
            quick_disks.sync_no_databases()

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _STARTS:
            if not _lists_fonts(arguments):
                self._leaves_ring_1(event)
        elif _is_remote(arguments[1]):
            self._leaves_ring_1(f"connection to {arguments[1]}")

    def _leaves_ring_1(self, event: str) -> None:
        if self._test is None:
            return
        self._events.append(event)
        if self._is_guarded:
            self._unseen.append(event)
            pytest.fail(f"a test of ring 1 does this: {event}. Mark it with pytest.mark.system")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._events.clear()
        self._test = item
        marks = {mark.name for mark in item.iter_markers()}
        self._is_guarded = self._is_strict and not marks & HIGHER_RINGS
        before = os.times()
        try:
            result = yield
        finally:
            self._test = None
        if self._record:
            self._write(item, before)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        """Fail also where the test's own code has caught the failure."""
        report: Any = yield
        if self._unseen and report.passed:
            report.outcome = "failed"
            report.longrepr = f"a test of ring 1 does this: {self._unseen}"
        self._unseen = []
        return report

    def _write(self, item: pytest.Item, before: os.times_result) -> None:
        after = os.times()
        line = {
            "test": item.nodeid,
            "s": round(after.elapsed - before.elapsed, 3),
            "cpu": round(sum(after[:4]) - sum(before[:4]), 3),
            "marks": sorted({m.name for m in item.iter_markers()} & HIGHER_RINGS),
            "does": sorted(set(self._events)),
        }
        with suppress(OSError), open(self._record or os.devnull, "a") as file:
            file.write(json.dumps(line) + "\n")


def _lists_fonts(arguments: tuple[Any, ...]) -> bool:
    """Whether it is matplotlib's first call on a machine."""
    return len(arguments) > 1 and arguments[1][:1] == ["fc-list"]


def _is_remote(address: Any) -> bool:
    if not isinstance(address, tuple):
        return False  # a socket in the file system
    try:
        return not ipaddress.ip_address(address[0]).is_loopback
    except ValueError:
        return address[0] not in ("localhost", "")


def register(config: pytest.Config) -> None:
    is_strict = "not system" in config.getoption("markexpr")
    record = os.environ.get("RECORD_RINGS")
    config.pluginmanager.register(RingGuard(is_strict=is_strict, record=record))
