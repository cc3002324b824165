"""Which ring a test belongs to: a test that starts a process, or forks, is not of ring 1.

``RECORD_RINGS=FILE`` appends, for each test, a line of JSON with its duration and whether it
started a process; markers are set from that record.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"}
_started: list[str] = []


def _audit(event: str, _: tuple[Any, ...]) -> None:
    if event in _STARTS:
        _started.append(event)


class RingRecorder:
    """A pytest plugin that writes the record."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seconds = 0.0
        sys.addaudithook(_audit)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        _started.clear()
        self._seconds = 0.0
        result = yield
        line = {"test": item.nodeid, "s": round(self._seconds, 3), "starts": len(_started)}
        with suppress(OSError), open(self._path, "a") as file:
            file.write(json.dumps(line) + "\n")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds += report.duration


def register(config: pytest.Config) -> None:
    """Record if the environment asks for it."""
    path = os.environ.get("RECORD_RINGS")
    if path:
        config.pluginmanager.register(RingRecorder(path))
