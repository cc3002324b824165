"""A full disk under the folder of an audit: no fault of the script."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from deepvm.errors import DataError
from deepvm.lab.certify.attempt import check_room, own_files


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_folder_with_room_is_no_fault(tmp_path: Path) -> None:
    check_room(tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(PermissionError), own_files(tmp_path):
        raise PermissionError(errno.EACCES, "Permission denied")


def test_a_full_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(DataError, match=f"{tmp_path}: no space left .* --out DIR"),
        own_files(tmp_path),
    ):
        full()
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(DataError, match="no space left"):
        check_room(tmp_path)
    with pytest.raises(DataError, match="no space left"), own_files(tmp_path):
        raise shutil.Error([("a", "b", "[Errno 28] No space left on device")])


SCRIPTS = {
    "log": "for step in range(4000):\n    log.step(step, range(20), step)\n",
    "checkpoint": "log.step(0, [1], 1)\nPath(out, 'f.safetensors').write_bytes(bytes(10**6))\n",
    "output": "for step in range(40000):\n    print('x' * 99)\n",
}


@pytest.mark.parametrize("what", SCRIPTS)
def test_an_audit_on_a_full_disk(tmp_path: Path, what: str) -> None:
    """Whatever finds no room below the folder of the audit: the probe's log, a checkpoint, what the
    script prints.
    """
    script = tmp_path / "train.py"
    script.write_text(f"""import os
from pathlib import Path
from deepvm.lab import SampleLog
log, out = SampleLog(), os.environ["DEEPVM_AUDIT_DIR"]
{SCRIPTS[what]}""")
    (tmp_path / "disk").mkdir()
    audit = f"{sys.executable} -m deepvm audit --final f.safetensors --out disk/a train.py"
    mount = "mount -t tmpfs -o size=300k none disk || exit 99"
    words = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        f"{mount}; exec {audit}",
    ]
    found = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, env=os.environ, check=False
    )
    if "unshare" in found.stderr or found.returncode == 99:
        pytest.skip("needs unshare and a tmpfs")
    assert found.returncode == 4
    assert f"{tmp_path / 'disk' / 'a'}: no space left for the files of the audit" in found.stderr
