"""A test that starts a process is of ring 2, or fails in a run of ring 1."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.places import TESTS
from support.process_starts import starts_process

CONFTEST = """
from support import rings
def pytest_configure(config): rings.register(config)
def pytest_collection_modifyitems(items): rings.mark_rings(items)
"""
TESTS_OF_TWO_RINGS = """
import importlib
import socket
import pytest
run = vars(importlib.import_module("sub" + "process"))["run"]
def test_starts():
    run(["true"])
def test_hides():
    with pytest.raises(BaseException):
        run(["true"])
def test_connects():
    socket.create_connection(("192.0.2.1", 9), timeout=0.1)
@pytest.mark.system
def test_marked():
    run(["true"])
def test_none():
    pass
"""


def _direct() -> None:
    subprocess.run(["true"])


def _by_a_helper() -> None:
    _direct()


class _Helper:
    def start(self) -> None:
        subprocess.Popen(["true"])


def _by_a_class() -> None:
    _Helper().start()


def _replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", print)


@pytest.mark.parametrize("function", [_direct, _by_a_helper, _by_a_class])
def test_starts_are_seen_in_the_code(function: object) -> None:
    assert starts_process(function)


def test_what_is_replaced_starts_nothing() -> None:
    assert not starts_process(_replaced) and not starts_process(len)


def test_a_start_fails_a_test_of_ring_1(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS_OF_TWO_RINGS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  system\n")
    words = ["-q", "-p", "no:cacheprovider", "-m", "not system", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", *words]
    environ = {"PYTHONPATH": f"{TESTS}:{TESTS.parent}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert "3 failed, 1 passed" in done.stdout.splitlines()[-1], done.stdout
