"""Real torchrun over network namespaces: a curve.

And whatever happens to a host, a report in time and no process left.

Each test marks its processes by a variable of the environment, which all of them inherit: /proc
shows who is left.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.pace import soon
from support.places import ROOT
from support.processes import marked, until

from deepvm.errors import EXTRA_SOURCE
from deepvm.profiling.fit.scaling_document import read_curve

from support.profiling.namespaces import Host, namespaces, need_namespaces  # isort: skip
from support.profiling.scaling_runs import TINY, environment  # isort: skip

MARK = "DEEPVM_TEST_RUN"
LIMIT_S = 240.0
LONG = ("--warmup", 1, "--windows", 400, "--steps", 50, "--repeats", 1)
SHORT = ("--warmup", 1, "--windows", 3, "--steps", 5, "--repeats", 1)


@pytest.fixture(autouse=True)
def _needs_namespaces() -> None:
    need_namespaces()


class Profiler:
    """A running ``deepvm profile scaling`` over namespaces, and all processes that come of it."""

    def __init__(self, hosts: list[Host], *words: object, launcher: str = "netns") -> None:
        mark = secrets.token_hex(8)
        self.mark = f"{MARK}={mark}"
        names = ",".join(h.name for h in hosts)
        given = [*map(str, words), "--launcher", launcher, "--hosts", names, *TINY, "-o", "json"]
        command = [sys.executable, "-m", "deepvm.cli.main", "profile", "scaling", *given]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, env=environment(**{MARK: mark}), stdout=pipe, stderr=pipe, text=True
        )

    def all(self) -> dict[int, str]:
        """Command lines of the processes that live, by their number."""
        return marked(self.mark)

    def workers(self, host: Host) -> list[int]:
        here = host.processes()
        return [
            pid for pid, line in self.all().items() if pid in here and '"work": "train"' in line
        ]

    def await_line(self, beginning: str) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith(beginning):
                return
        pytest.fail(f"it ended before it said {beginning}")

    def end(self) -> tuple[int, dict[str, Any], str]:
        """Exit code, document and messages; nobody is left."""
        out, errors = self.process.communicate(timeout=LIMIT_S)
        self.nobody_left()
        assert "Traceback" not in errors.replace("  Traceback", "")
        return self.process.returncode, json.loads(out) if out else {}, errors

    def nobody_left(self, within_s: float = 8.0) -> None:
        assert until(lambda: not self.all(), within_s), self.all()

    def close(self) -> None:
        for pid in self.all():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.communicate(timeout=10)


Start = Callable[..., Profiler]


@pytest.fixture
def start() -> Iterator[Start]:
    """Profilers, ended in every case."""
    running: list[Profiler] = []

    def one(hosts: list[Host], *words: object, **options: str) -> Profiler:
        running.append(Profiler(hosts, *words, **options))
        return running[-1]

    yield one
    for profiler in running:
        profiler.close()


def training(profiler: Profiler, host: Host) -> int:
    """The number of a host's worker that has been training for a moment."""
    assert until(lambda: profiler.workers(host), 60)
    time.sleep(6)  # past the imports
    return profiler.workers(host)[0]


@pytest.mark.slow
def test_two_hosts(start: Start) -> None:
    with namespaces(2) as hosts:
        code, document, errors = start(hosts, *SHORT).end()
        assert code == 0, errors
        assert [(r["n"], r["failed"]) for r in document["runs"]] == [(2, None), (1, None)]
        assert document["local"] and document["hosts"] == [h.name for h in hosts]
    assert not any(Path("/run/netns").glob(f"dvm{os.getpid()}-*"))


@pytest.mark.slow
def test_four_hosts_the_largest_size_first(start: Start) -> None:
    with namespaces(4) as hosts:
        code, document, errors = start(hosts, *SHORT[:-1], 2).end()
    assert code == 0, errors
    assert [(r["n"], r["repeat"]) for r in document["runs"]] == [
        (4, 1),
        (4, 2),
        (2, 1),
        (2, 2),
        (1, 1),
        (1, 2),
    ]
    assert not any(r["failed"] for r in document["runs"])
    assert [p["n"] for p in document["points"]] == [1, 2, 4] and document["points"][0][
        "speedup"
    ] == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_worker_is_killed_in_the_middle(start: Start, number: int) -> None:
    with namespaces(4) as hosts:
        profiler = start(hosts, "--warmup", 1, "--windows", 3, "--steps", 300, "--repeats", 1)
        os.kill(training(profiler, hosts[1]), number)
        with soon(20):
            profiler.await_line("n = 4, repeat 1: failed")
        code, document, errors = profiler.end()
    assert code == 1 and "No time for n = 4" in errors
    first, second = document["runs"][:2]
    assert first["failed"].startswith(
        f"{hosts[1].name}: its process 0 was killed by signal {int(number)}"
    )
    assert (second["n"], second["failed"][:20]) == (4, "3 of 4 hosts are hea")
    assert f"{hosts[1].name}: its process" in second["failed"]
    assert [p["n"] for p in document["points"]] == [1, 2]
    for other in (hosts[0], *hosts[2:]):
        assert other.name not in second["failed"]


@pytest.mark.slow
def test_a_curve_without_the_host_that_failed(start: Start, tmp_path: Path) -> None:
    """One has no link at all, one a python without torch; the others give the sizes they can."""
    bare = tmp_path / "agent"
    with namespaces(4) as hosts:
        hosts[0].cut()
        # -S, and a path with this checkout alone: the interpreter without any installed package
        checkout = shlex.quote(str(ROOT))
        bare.write_text(
            f'#!/bin/sh\nhost=$1; shift 2\n[ "$host" = {hosts[2].name} ] && set -- -S "$@" &&'
            f' PYTHONPATH={checkout}\nexec ip netns exec "$host" {shlex.quote(sys.executable)}'
            ' "$@"\n'
        )
        bare.chmod(0o755)
        code, document, errors = start(
            hosts, *SHORT, "--out", tmp_path / "c.json", launcher=f"{bare} {{host}}"
        ).end()
    assert code == 1, errors
    assert (
        f"{hosts[0].name} is left out: no connection between it and {hosts[1].name},"
        f" {hosts[3].name}" in errors
    )
    assert f"{hosts[2].name} is left out" in errors
    assert f"has no torch: install {EXTRA_SOURCE.format('train')} for it" in errors
    assert [(r["n"], r["failed"] is None) for r in document["runs"]] == [
        (4, False),
        (2, True),
        (1, True),
    ]
    assert [p["n"] for p in document["points"]] == [1, 2]


@pytest.mark.slow
def test_a_link_that_breaks_in_the_middle(start: Start) -> None:
    """Nobody is told.

    The other hosts notice by their time-out, and a look at all shows who it is.
    """
    with namespaces(2) as hosts:
        profiler = start(hosts, *LONG, "--start-timeout", 15, "--timeout", 60)
        training(profiler, hosts[1])
        hosts[1].cut()
        with soon(70):
            profiler.await_line(f"{hosts[1].name} is left out: no connection")
        profiler.process.send_signal(signal.SIGTERM)
        assert profiler.end()[0] == 143


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_nobody_stays_when_the_profiler_ends(
    start: Start, tmp_path: Path, number: int, code: int
) -> None:
    """Not even a worker that is stopped; then the same command goes on."""
    out = tmp_path / "curve.json"
    with namespaces(2) as hosts:
        profiler = start(hosts, *LONG, "--out", out)
        os.kill(training(profiler, hosts[1]), signal.SIGSTOP)
        profiler.process.send_signal(number)
        profiler.process.wait(30)
        profiler.nobody_left(20)
        assert profiler.end()[0] == code
        kept = read_curve(out)
        assert kept is not None and kept.runs == ()
        assert start(hosts, *SHORT, "--out", out).end()[0] == 2  # other windows
        if number == signal.SIGKILL:
            second = start(hosts, *SHORT, "--out", tmp_path / "short.json")
            second.await_line("n = 2, repeat 1 of 1")
            second.process.kill()
            second.process.wait(30)
            second.nobody_left(20)
            code, document, errors = start(hosts, *SHORT, "--out", tmp_path / "short.json").end()
            assert (
                code == 0
                and "goes on after 1 finished runs" in errors
                and "n = 2, repeat" not in errors
            )
            assert [(r["n"], r["failed"]) for r in document["runs"]] == [(2, None), (1, None)]
