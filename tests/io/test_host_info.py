"""What the machine has, on this one and on made-up ones."""

from __future__ import annotations

import multiprocessing
import os
import platform
from pathlib import Path

import pytest

from deepvm.io import host_info
from deepvm.io.host_info import cores, machine_memory, processor


def test_cores_are_those_that_this_process_may_use(one_core: None) -> None:
    assert cores() == 1


@pytest.mark.parametrize(("counted", "expected"), [(6, 6), (None, 1)])
def test_cores_of_a_system_without_affinity(
    counted: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 1 <= cores() <= multiprocessing.cpu_count()
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: counted)
    assert cores() == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            ["processor\t: 0", "model name\t: Xeon(R): 8259CL @ 2.50GHz", "model name\t: another"],
            None,
        ),
        (["processor\t: 0", "CPU implementer\t: 0x41"], platform.machine()),
        ([], platform.machine()),
    ],
)
def test_the_processors_name(
    lines: list[str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_info, "_lines", lambda path: lines)
    assert processor() == (expected or "Xeon(R): 8259CL @ 2.50GHz")


def test_this_machine_has_memory() -> None:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < (machine_memory() or 0) <= pages


@pytest.mark.parametrize(
    ("files", "memory"),
    [
        ({}, None),
        ({"proc/meminfo": "MemFree: 7 kB\nMemTotal:       1000 kB\n"}, 1_024_000),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, 1_024_000),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "500000\n"}, 500_000),
        (
            {
                "proc/self/cgroup": "0::/only/the/host/knows\n",
                "sys/fs/cgroup/memory.max": "400000\n",
            },
            400_000,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "2000000\n"}, 1_024_000),
        (
            {
                "proc/self/cgroup": "5:cpu:/a\n4:memory:/a\n0::/\n",
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "300000\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            300_000,
        ),
    ],
)
def test_the_memory_of_a_machine(tmp_path: Path, files: dict[str, str], memory: int | None) -> None:
    for name, text in {
        **({"proc/meminfo": "MemTotal: 1000 kB\n"} if files else {}),
        **files,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert machine_memory(tmp_path) == memory
