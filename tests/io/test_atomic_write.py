"""Writes that fail leave the old file, or none, and never half of one."""

import os
import subprocess
import sys

import pytest
from support.places import ROOT

from deepvm.errors import DataError
from deepvm.io.atomic_write import write_bytes


def test_writing_replaces_the_file_and_keeps_its_permissions(tmp_path):
    path = tmp_path / "a.json"
    write_bytes(path, b"old")
    path.chmod(0o640)
    write_bytes(path, b"new")
    assert path.read_text() == "new" and path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["a.json"]


def test_writing_through_a_link_keeps_the_link(tmp_path):
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    write_bytes(tmp_path / "link.json", b"new")
    assert (tmp_path / "link.json").is_symlink() and (tmp_path / "real.json").read_text() == "new"


def test_the_longest_name_in_any_script(tmp_path):
    path = tmp_path / ("目" * 83 + "aaaaa\udcff")  # 255 bytes, the last of which is no text
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("name", ["no/such/folder/x.json", "folder", "null", "a\0b"])
def test_places_where_nothing_can_be_written(name, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "null").symlink_to("/dev/null")
    with pytest.raises(DataError, match="cannot be written") as caught:
        write_bytes(tmp_path / name, b"text")
    assert caught.value.exit_code == 4
    assert sorted(os.listdir(tmp_path)) == ["folder", "null"]


def test_a_full_disk_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")
    # A limit on the size of files stands for the full disk; the child alone has it.
    code = f"""
import resource
from deepvm.catalog.store import load_catalog, save_catalog
from deepvm.errors import DataError
catalog = load_catalog("paper")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    save_catalog(catalog, {str(path)!r})
except DataError as error:
    print(type(error).__name__, error.exit_code, error)
"""
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert out.stdout.startswith("DataError 4 ") and "File too large" in out.stdout
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.json"]
