"""What is told of other processes, on real ones."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support.processes import until

from deepvm.io.processes import environment_of, open_files, processes


def test_a_process_with_its_environment_and_files(tmp_path: Path) -> None:
    read, written = tmp_path / "read", tmp_path / "written"
    read.touch()
    with written.open("w") as out, read.open() as into:
        other = subprocess.Popen(
            ["sleep", "60"], stdin=into, stdout=out, env={"PATH": os.environ["PATH"], "MARK": "7"}
        )
    try:
        assert other.pid in processes() and os.getpid() in processes()
        # Popen returns when exec has closed its files, and Linux tells a new environment a little
        # later.
        assert until(lambda: b"MARK=7" in environment_of(other.pid), 10)
        assert {str(read), str(written)} <= set(open_files(other.pid))
        assert str(written) in open_files(other.pid, for_writing=True)
        assert str(read) not in open_files(other.pid, for_writing=True)
    finally:
        other.kill()
        other.wait()
    assert environment_of(other.pid) == [] and open_files(other.pid) == []
