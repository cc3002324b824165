"""A job's folder to which nothing can be written, as after an error of its disk: the job waits, or
trains on.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs.campaign import processes, world_of
from support.jobs.kills import CHAIN, final_of, nothing_is_left
from support.jobs.runs import Home, until
from support.profiling.namespaces import need_namespaces

pytestmark = pytest.mark.slow  # whole jobs

STEPS = 4000


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    need_namespaces()
    found = Home(tmp_path)
    (found.code / "chain.py").write_text(CHAIN)
    yield found
    found.end()


@contextlib.contextmanager
def read_only(folder: Path, machines: list[int]) -> Iterator[None]:
    """Also where these processes have a view of the file system of their own."""
    views = [[], *(["nsenter", "-t", str(pid), "-m", "-p"] for pid in machines)]
    for view in views:
        subprocess.run([*view, "mount", "--bind", str(folder), str(folder)], check=True, timeout=30)
        subprocess.run(
            [*view, "mount", "-o", "remount,bind,ro", str(folder)], check=True, timeout=30
        )
    with pytest.raises(OSError, match="Read-only"):
        (folder / "mine").touch()
    try:
        yield
    finally:
        for view in views:  # a machine may be gone
            subprocess.run(
                [*view, "umount", "-l", str(folder)],
                check=not view,
                capture_output=True,
                timeout=30,
            )


def versions(home: Home) -> list[int]:
    folders = (home.jobs / "ro" / "versions" / "ro" / "backups").glob("0*/whole.json")
    return sorted(int(file.parent.name[:12]) for file in folders)


@pytest.mark.parametrize("lost", [False, True])
def test_a_folder_that_becomes_read_only_for_a_while(home: Home, lost: bool) -> None:
    """Saves fail, and are said to.

    A machine that is lost meanwhile is replaced as soon as one can be made.
    """
    process = home.start(
        "run", str(home.job("ro", f"exec python chain.py {STEPS};", save_policy="static:25"))
    )
    try:
        until(lambda: versions(home))
        with read_only(home.jobs / "ro", processes(home, "machine")):
            before = versions(home)
            if lost:
                os.kill(processes(home, "machine")[0], signal.SIGKILL)
            time.sleep(4)
            assert versions(home) == before and process.poll() is None
        if lost:
            until(lambda: (world := world_of(home, "ro")) is not None and world.generation == 2, 90)
        until(lambda: versions(home) != before, 60)
        home.hurry()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
    assert (home.result / "final-0").read_text() == final_of(STEPS)
    found = nothing_is_left(home, "ro")
    assert (found["state"], found["generations"], len(found["machines"])) == (
        "done",
        1 + lost,
        1 + lost,
    )
    said = (home.jobs / "ro" / "machines" / "m1" / "machine.log").read_text()
    assert (
        re.search(r"is not backed up: .*/\.backups\.epoch\.lock: Read-only file system\n", said)
        or lost
    )
