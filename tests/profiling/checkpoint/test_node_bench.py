"""The bench of a memory node: every figure is measured and adds up, what does not fit is said,
nothing stays behind.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from deepvm.cli.main import main
from deepvm.errors import CheckpointError, RequestError
from deepvm.io import host_info
from deepvm.profiling.checkpoint import node_bench, node_process
from deepvm.profiling.checkpoint.node_bench import NodeBench, NodeRow, run_node_bench
from deepvm.profiling.hosts.watchdog import ENDED
from deepvm.reports.text import print_text

MB = 10**6


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_bench, "_DIRECT_BYTES", 2**23)
    monkeypatch.setattr(node_bench, "WARM_UPS", 1)


@pytest.mark.system
def test_trainers_and_sizes_are_measured(tmp_path: Path) -> None:
    lines: list[str] = []
    found = run_node_bench([1, 3], [2 * MB, 5 * MB + 1], 2, folder=tmp_path, say=lines.append)
    assert [(row.trainers, row.bytes) for row in found.rows] == [
        (1, 2 * MB),
        (3, 2 * MB),
        (1, 5 * MB + 1),
        (3, 5 * MB + 1),
    ]
    for row in found.rows:
        assert (
            row.seconds
            and row.bytes_s
            and row.plain_1_bytes_s
            and row.plain_2_bytes_s
            and not row.problem
        )
        assert row.bytes_s == pytest.approx(row.trainers * row.bytes / row.seconds)
        assert row.ratio == pytest.approx(row.bytes_s / row.plain_2_bytes_s)
        assert row.fairness is not None and 0 < row.fairness <= 1
        if row.trainers == 1:
            assert row.fairness == 1
    assert found.limits["memory_copy_bytes_s"] and len(lines) == 4 * 3
    assert not list(tmp_path.iterdir())


@pytest.mark.system
def test_ranks_share_a_state(tmp_path: Path) -> None:
    """The node has all of it when the last rank's part has come: a version is complete then."""
    (row,) = run_node_bench([2], [3 * MB + 1], 1, ranks=3, folder=tmp_path).rows
    assert (row.trainers, row.ranks) == (2, 3) and row.seconds and row.bytes_s
    assert row.bytes_s == pytest.approx(2 * (3 * MB + 1) / row.seconds)


@pytest.mark.system
def test_what_does_not_fit_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(node_bench, "available_memory", lambda: 2**30 + 7 * MB)
    found = run_node_bench([1, 2], [2 * MB], 1, folder=tmp_path)
    assert found.rows[0].bytes_s and not found.rows[0].problem
    assert found.rows[1].bytes_s is None and "of memory" in found.rows[1].problem
    print_text("ckpt_bench_node", bench=found)
    assert "2 x 2 MB: needs" in capsys.readouterr().out


def test_available_memory(tmp_path: Path) -> None:
    assert host_info.available_memory(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 100 kB\nMemAvailable:  40 kB\n")
    assert host_info.available_memory(tmp_path) == 40 * 1024
    here = host_info.available_memory()
    assert here is None or 0 < here <= (host_info.machine_memory() or here)


def test_arguments_that_cannot_be_used() -> None:
    for arguments in [
        {"trainers": [0]},
        {"trainers": [65]},
        {"ranks": 0},
        {"trainers": [9], "ranks": 8},
        {"reps": 0},
        {"folder": Path("/nowhere")},
    ]:
        with pytest.raises(RequestError):
            run_node_bench(**{"trainers": [1], "sizes": [MB], **arguments})


@pytest.mark.system
def test_a_trainer_that_fails_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node holds fewer than two versions of it."""
    monkeypatch.setattr(
        node_bench, "MemoryNode", lambda folder, size: node_process.MemoryNode(folder, 3 * MB)
    )
    with pytest.raises(CheckpointError, match="a trainer of the benchmark failed: .*space for 2"):
        run_node_bench([1], [8 * MB], 1, folder=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.system
def test_a_trainer_that_dies_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_bench, "PEERS", "deepvm.errors")
    with pytest.raises(CheckpointError, match="its command ended with exit code 0"):
        run_node_bench([1], [MB], 1, folder=tmp_path)


def test_peers_end_with_the_benchmark() -> None:
    words = [sys.executable, "-m", node_bench.PEERS, '{"limit_s": 60}']
    done = subprocess.run(words, input=b"", capture_output=True, timeout=60)
    assert done.returncode == ENDED
    assert (
        "torch"
        not in subprocess.run(
            [
                sys.executable,
                "-c",
                "import sys, deepvm.profiling.checkpoint.node_peers; print(*sys.modules)",
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
    )


def test_a_disk_without_direct_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(node_bench.os, "open", refuse)
    assert node_bench._direct_speed(tmp_path, 1) is None


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    row = NodeRow(4, 1, 100 * MB, 0.1, 4e9, 5e9, 6e9, 0.667, 0.9)
    machine = {
        "processor": "P",
        "cores": 2,
        "file_system": "ext4",
        "measured_at": "2026-11-27T20:00:00Z",
    }
    limits = {"memory_copy_bytes_s": 1.2e10, "direct_write_bytes_s": None}
    print_text("ckpt_bench_node", bench=NodeBench(5, machine, limits, [row]))
    out = capsys.readouterr().out
    assert (
        "0.67" in out
        and "0.90" in out
        and "4.00" in out
        and "no O_DIRECT" in out
        and "2026-11-27T20:00:00Z" in out
    )


@pytest.mark.parametrize(
    ("state", "sizes"),
    [("0.5,1,2MB", [500_000, MB, 2 * MB]), ("1MiB", [2**20]), ("1MB, 2MiB", [MB, 2 * 2**20])],
)
def test_the_command(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    sizes: list[int],
) -> None:
    asked: list[Any] = []

    def bench(trainers: list[int], found: list[int], reps: int, **options: object) -> NodeBench:
        asked.append((trainers, found, reps, options["ranks"]))
        return NodeBench(reps, {}, {}, [NodeRow(1, 1, 5, problem="it was not")])

    monkeypatch.setattr(node_bench, "run_node_bench", bench)
    words = [
        "ckpt",
        "bench",
        "--trainers",
        "1, 4",
        "--state",
        state,
        "--reps",
        "3",
        "--ranks",
        "2",
        "--dir",
        str(tmp_path),
    ]
    with pytest.raises(SystemExit) as end:
        main([*words, "-o", "json"])
    document = json.loads(capsys.readouterr().out)
    assert end.value.code == 0 and asked == [([1, 4], sizes, 3, 2)]
    assert (
        document["schema_version"] == "deepvm.ckpt-bench-node/1"
        and document["rows"][0]["problem"] == "it was not"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--trainers", "x"],
        ["--trainers", "1", "--state", "5"],
        ["--trainers", "1", "--plot", "x.svg"],
    ],
)
def test_words_that_cannot_be_used(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    begin = time.monotonic()
    with pytest.raises(SystemExit) as end:
        main(["ckpt", "bench", *words])
    assert end.value.code == 2 and time.monotonic() - begin < 20


@pytest.mark.slow
@pytest.mark.alone
def test_eight_trainers_are_served_alike(tmp_path: Path) -> None:
    """And the node keeps up with plain TCP (60 % where it was measured, half of that asked for).

    Once more if other work came between.
    """
    for _ in range(2):
        (row,) = run_node_bench([8], [64 * MB], 5, folder=tmp_path).rows
        assert row.ratio is not None and row.fairness is not None
        if row.ratio >= 0.3 and row.fairness >= 0.5:
            return
    raise AssertionError(f"ratio {row.ratio:.2f}, fairness {row.fairness:.2f}")
