"""On what a run was made."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepvm.lab.running.environment import environment, file_system

MOUNTS = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:25 / /data rw - xfs /dev/sdb1 rw
31 30 0:26 / /data/my\040runs rw master:2 - nfs4 host:/runs rw
40 22 0:30 / /hidden rw - xfs /dev/sdc1 rw
41 22 0:31 / /hidden rw - tmpfs tmpfs rw
a line that says nothing
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home/me", "ext4"),
        ("/data/lab", "xfs"),
        ("/data/my runs/lab", "nfs4"),
        ("/database", "ext4"),
        ("/hidden/lab", "tmpfs"),
    ],
)
def test_the_file_system_is_that_of_the_nearest_mount(
    tmp_path: Path, folder: str, kind: str
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert file_system(Path(folder), mounts) == kind


def test_where_the_system_does_not_tell(tmp_path: Path) -> None:
    assert file_system(tmp_path, tmp_path / "nothing") == "unknown"


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
