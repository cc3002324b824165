"""Local machines: nothing of one that has ended is taken for alive, or stays on the disk."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.jobs.runs import Home, until

from deepvm.jobs.agent.notices import ENDPOINT
from deepvm.jobs.cloud import Start
from deepvm.jobs.clouds import local
from deepvm.jobs.clouds.aws.s3_read import metadata
from deepvm.jobs.clouds.local import LocalCloud
from deepvm.jobs.clouds.ssh_host import HostCloud
from deepvm.jobs.decisions.world import MachineRecord, Pool
from deepvm.jobs.wire import new_secret, secret_of

POOL = Pool("g4dn.xlarge", "here", "spot", 0.3)


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[LocalCloud]:
    found = LocalCloud(tmp_path, allocation_s=0.0)
    found.request(
        MachineRecord("m1", POOL, time.time()),
        Start("job", "m1", secret_of(new_secret(), "m1"), "http://:9"),
    )
    yield found
    found.release("job", "m1")


@pytest.mark.system
@pytest.mark.parametrize("by_s", [3600.0, -3600.0])
def test_lives_are_as_long_as_they_were_whoever_sets_the_clock(
    cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch, by_s: float
) -> None:
    launched_s, true = cloud.listing("job").alive["m1"], time.time
    monkeypatch.setattr(time, "time", lambda: true() + by_s)
    assert cloud.listing("job").alive == {"m1": launched_s}
    cloud.release("job", "m1")
    (times,) = cloud.listing("job").ended.values()
    assert times[0] == launched_s and 0 <= times[1] - times[0] < 30


@pytest.mark.system
@pytest.mark.parametrize("kind", [LocalCloud, HostCloud])
def test_what_its_processes_take_for_the_metadata_service(
    kind: type[LocalCloud], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine's own; not on hosts of one's own, which may be instances with a role."""
    monkeypatch.delenv(ENDPOINT, raising=False)
    cloud = kind(tmp_path / "other")
    cloud.request(
        MachineRecord("m1", POOL, time.time()),
        Start("job", "m1", secret_of(new_secret(), "m1"), "http://:9"),
    )
    try:
        place = str(cloud._machine("job", "m1"))
        environ = until(lambda: _environ_of("deepvm.jobs.agent.main", place))
        if kind is HostCloud:
            assert ENDPOINT not in environ
        else:
            monkeypatch.setenv(ENDPOINT, environ[ENDPOINT])
            assert metadata("instance-type") == POOL.instance_type
    finally:
        cloud.release("job", "m1")


def _environ_of(*words: str) -> dict[str, str]:
    """The environment of the process with these words; empty if there is none."""
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (place / "cmdline").read_bytes().decode("utf-8", "replace")
            if all(word in line for word in words):
                pairs = (place / "environ").read_bytes().decode("utf-8", "replace").split("\0")
                return dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    return {}


@pytest.mark.slow
def test_trainers_see_the_metadata_service_of_their_machine(tmp_path: Path) -> None:
    home = Home(tmp_path)
    try:
        (home.code / "asks.py").write_text(
            "import os\n"
            "from deepvm.jobs.clouds.aws.s3_read import metadata\n"
            "open(os.environ['RESULT'] + '/said', 'w').write(metadata('instance-type'))\n"
        )
        assert home.document("run", str(home.job("asks", "python asks.py")))["state"] == "done"
        assert (home.result / "said").read_text() == "g4dn.xlarge"
    finally:
        home.end()


@pytest.mark.system
def test_two_who_look_at_once_see_the_same(
    cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller and 'deepvm jobs': neither takes the other for a machine that lives."""
    cloud.release("job", "m1")
    locked, seen = local._locked, list[list[str]]()

    def look(*words: Any) -> bool:
        free = locked(*words)
        if not seen:
            seen.append([])
            seen[0] += cloud.listing("job").alive
        return free

    monkeypatch.setattr(local, "_locked", look)
    assert not cloud.listing("job").alive and seen == [[]]


ENDS: dict[str, Callable[[LocalCloud], None]] = {
    "released": lambda cloud: cloud.release("job", "m1"),
    "lost": lambda cloud: cloud.preempt("job", "m1", None),
    "taken": lambda cloud: cloud.preempt("job", "m1", 0.1),
}


@pytest.mark.system
@pytest.mark.parametrize("how", ENDS)
def test_code_and_data_go_with_their_machine(cloud: LocalCloud, tmp_path: Path, how: str) -> None:
    """As the disk of a VM does; its log stays."""
    place = tmp_path / "job" / "machines" / "m1"
    until((place / "agent").is_dir)
    elsewhere = tmp_path / "mounted"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    for name in ("code", "data", "data/train"):
        (place / "agent" / name).mkdir(exist_ok=True)
    (place / "agent" / "data" / "mount").symlink_to(elsewhere)
    ENDS[how](cloud)
    until(lambda: not cloud.listing("job").alive)
    assert (
        not (place / "agent").exists()
        and (place / "machine.log").exists()
        and (elsewhere / "kept").exists()
    )


@pytest.mark.system
def test_what_a_killed_controller_left_goes_at_the_end_of_the_job(
    cloud: LocalCloud, tmp_path: Path
) -> None:
    agent = tmp_path / "job" / "machines" / "m1" / "agent"
    cloud.release("job", "m1")
    agent.mkdir()
    cloud.finish("job")
    assert not agent.exists()
