"""On what a run was made."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepvm.lab.running.manifest import environment


@pytest.mark.system
def test_the_file_system_of_a_folder() -> None:
    assert environment(Path("/proc"))["disk"] == "proc file system"


@pytest.mark.system
def test_all_items_of_a_table_are_there(tmp_path: Path) -> None:
    found = environment(tmp_path)
    assert set(found) == {
        "OS",
        "CPU",
        "cores",
        "memory",
        "disk",
        "Python",
        "PyTorch",
        "NumPy",
        "backend",
        "deepvm",
    }
    assert all(found.values()) and found["memory"].endswith(" GiB") and found["cores"][0].isdigit()
