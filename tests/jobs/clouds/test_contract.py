"""What every cloud must do: ask once for each name, list what lives and what has ended, release,
take back.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.jobs.runs import until
from support.profiling.namespaces import need_namespaces

from deepvm.jobs.cloud import Cloud, Launch, OwnedHosts, RemoteCloud, Start, UnknownError
from deepvm.jobs.clouds.local import LocalCloud
from deepvm.jobs.clouds.netns import NetnsCloud
from deepvm.jobs.clouds.registry import CLOUDS
from deepvm.jobs.clouds.ssh import SshCloud
from deepvm.jobs.decisions.world import MachineRecord, Pool
from deepvm.jobs.static_hosts import StaticHosts
from deepvm.jobs.wire import new_secret, secret_of
from deepvm.profiling.hosts.launcher import Host

POOL = Pool("g4dn.xlarge", "here", "spot", 0.3)


@pytest.fixture
def alone() -> Iterator[None]:
    """Networks are named after the job: no other test process uses this name meanwhile."""
    with (Path(tempfile.gettempdir()) / "deepvm-tests-netns-job.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(
    params=[*(c for c in CLOUDS if c != "aws"), "kept", pytest.param("aws", marks=pytest.mark.slow)]
)
def cloud(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cloud]:
    assert request.param in ("local", "kept", "netns", "ssh", "aws"), (
        "a new cloud comes under this contract, too"
    )
    found: Cloud
    if request.param == "aws":  # whose machines are of a simulated EC2, and no processes here
        found = request.getfixturevalue("ec2").cloud(tmp_path)
    elif request.param == "ssh":
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "there"))
        (tmp_path / "job").mkdir()
        hosts = tuple(
            Host(f"h{n}", type=POOL.instance_type, usd_per_hour=POOL.usd_per_hour)
            for n in range(1, 5)
        )
        StaticHosts("job-1", "local", "", hosts).save(tmp_path / "job")
        found = SshCloud(tmp_path)
    else:
        if request.param == "netns":
            need_namespaces()
            request.getfixturevalue("alone")
        if request.param == "kept":  # where unshare is refused
            monkeypatch.setattr("deepvm.jobs.clouds.local.unshared", list)
        found = (NetnsCloud if request.param == "netns" else LocalCloud)(tmp_path, allocation_s=0.0)
    yield found
    for machine in found.listing("job").alive:
        found.release("job", machine)
    found.finish("job")


def ask(cloud: Cloud, name: str) -> float:
    """Machines whose agents find no controller: they try for ever."""
    start = Start("job", name, secret_of(new_secret(), name), f"http://{cloud.host('job')}:9")
    pool = replace(POOL, zone=cloud.whole()) if isinstance(cloud, RemoteCloud) else POOL
    made = cloud.request(MachineRecord(name, pool, time.time()), start)
    return made.launched_s if isinstance(made, Launch) else made


def same(cloud: Cloud, one_s: float, other_s: float) -> bool:
    """Whether two times are of one launch: EC2 says whole seconds."""
    return abs(one_s - other_s) <= (2.0 if isinstance(cloud, RemoteCloud) else 0.0)


def test_life_of_a_machine(cloud: Cloud) -> None:
    assert not cloud.listing("job").alive and not cloud.listing("job").ended
    before = time.time()
    launched_s = ask(cloud, "m1")
    assert before <= launched_s <= time.time()
    ((name, since_s),) = cloud.listing("job").alive.items()
    assert name == "m1" and same(cloud, since_s, launched_s) and not cloud.listing("other").alive
    cloud.release("job", "m1")
    found = cloud.listing("job")
    assert not found.alive and list(found.ended) == ["m1"]
    began_s, ended_s = found.ended["m1"]
    assert same(cloud, began_s, launched_s) and began_s <= ended_s <= time.time()
    cloud.release("job", "m1")  # once more, and one that never was
    cloud.release("job", "m9")
    assert cloud.listing("job") == found


def test_machines_are_found_by_their_owner(cloud: Cloud, tmp_path: Path) -> None:
    """Whatever the job, where a cloud has others' machines beside these.

    Elsewhere their job's folder is needed.
    """
    if not isinstance(cloud, OwnedHosts):
        assert not isinstance(cloud, RemoteCloud)
        return
    assert not cloud.used(tmp_path) and not cloud.jobs() and cloud.used(tmp_path)
    ask(cloud, "m1")
    assert list(cloud.jobs()) == ["job"]
    cloud.release("job", "m1")
    assert not cloud.jobs()


def test_asked_twice_for_one_name_it_is_one_machine(cloud: Cloud) -> None:
    assert same(cloud, ask(cloud, "m1"), ask(cloud, "m1"))
    assert list(cloud.listing("job").alive) == ["m1"]


@pytest.mark.slow
def test_many_at_once(cloud: Cloud) -> None:
    threads = [threading.Thread(target=ask, args=(cloud, f"m{n}")) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(cloud.listing("job").alive) == ["m1", "m2", "m3", "m4"]


def test_what_has_ended_is_not_made_again(cloud: Cloud) -> None:
    ask(cloud, "m1")
    cloud.release("job", "m1")
    ask(cloud, "m1")
    found = cloud.listing("job")
    assert not found.alive and list(found.ended) == ["m1"]


def test_taken_back_at_once_and_with_a_notice(cloud: Cloud, tmp_path: Path) -> None:
    if not cloud.can_preempt:
        with pytest.raises(UnknownError, match="itself"):
            cloud.preempt("job", "m1", None)
        return
    ask(cloud, "m1")
    ask(cloud, "m2")
    cloud.preempt("job", "m1", None)
    assert list(cloud.listing("job").alive) == ["m2"]
    began = time.time()
    cloud.preempt("job", "m2", 3.0)
    assert "m2" in cloud.listing("job").alive
    until(lambda: not cloud.listing("job").alive, 20)
    assert 2.9 < time.time() - began < 20
    reasons = [
        json.loads((place_of(tmp_path, m) / "ended.json").read_text())["why"] for m in ("m1", "m2")
    ]
    assert reasons == ["preempted", "preempted"]
    assert cloud.listing("job").taken == {"m1", "m2"}


@pytest.mark.slow
def test_a_rebalance_ends_nothing(cloud: Cloud, tmp_path: Path) -> None:
    if not cloud.can_preempt:
        with pytest.raises(UnknownError, match="itself"):
            cloud.recommend("job", "m1")
        return
    ask(cloud, "m1")
    cloud.recommend("job", "m1")
    cloud.recommend("job", "m1")
    cloud.recommend("job", "m9")
    time.sleep(0.5)
    assert list(cloud.listing("job").alive) == ["m1"]
    cloud.preempt("job", "m1", 0.5)
    until(lambda: cloud.listing("job").taken == {"m1"}, 20)


def test_what_a_machine_has_said(cloud: Cloud, tmp_path: Path) -> None:
    ask(cloud, "m1")
    assert cloud.last_lines("job", "m9") == []
    if isinstance(cloud, RemoteCloud):
        assert all(isinstance(line, str) for line in cloud.last_lines("job", "m1"))
        return
    with (place_of(tmp_path, "m1") / "machine.log").open("a") as log:
        log.writelines(f"line {n}\n" for n in range(5_000))
    assert cloud.last_lines("job", "m1") == [f"line {n}" for n in range(4_960, 5_000)]
    cloud.release("job", "m1")
    assert "line 4999" in cloud.last_lines("job", "m1") and not cloud.listing("job").taken


DAEMON = """
import os, sys
if "deepvm.jobs.agent.main" in sys.orig_argv:
    place = os.path.dirname(sys.orig_argv[-2])
    child = os.fork()
    if not child:
        os.setsid()
        if not os.fork():
            os.execv(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(600)", "daemon", place])
        os._exit(0)
    os.waitpid(child, 0)
"""  # noqa: E501
"""A sitecustomize with which the agent, in the place of a trainer, leaves a process that nobody
waits for.
"""


@pytest.mark.parametrize("end", ["release", "preempt"])
def test_no_process_outlives_its_machine(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Nor does one that has left its group and its parents: a daemon that a trainer has started."""
    if isinstance(cloud, RemoteCloud):
        pytest.skip(
            "machines that are no processes of this computer; tests/jobs/clouds/aws runs some"
        )
    (tmp_path / "sitecustomize.py").write_text(DAEMON)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    )
    ask(cloud, "m1")
    place = place_of(tmp_path, "m1")
    (daemon,) = until(lambda: [pid for pid, words in _of(place) if "daemon" in words])
    # Of a session whose leader has ended
    assert os.getsid(daemon) not in [pid for pid, _ in _of(place)]
    if end == "release":
        cloud.release("job", "m1")
    else:
        cloud.preempt("job", "m1", None)
    assert not _of(place)


def place_of(folder: Path, machine: str) -> Path:
    """The folder of a machine, wherever its cloud has it."""
    return next(folder.rglob(f"machines/{machine}"))


def _of(place: Path) -> list[tuple[int, list[str]]]:
    """The processes that name a machine's folder, with their words."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_text(errors="replace").split("\0")
                if str(place) in " ".join(words):
                    found.append((int(process.name), words))
    return found
