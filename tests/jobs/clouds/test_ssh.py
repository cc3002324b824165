"""Jobs on hosts of the user's own: hosts that die, are cut off, are taken, or have no deepvm.

Over a real sshd.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.jobs import worlds
from support.jobs.runs import Home, until
from support.jobs.sshd import serving

from deepvm.jobs.cloud import RefusedError, Start, UnknownError
from deepvm.jobs.clouds.ssh import SshCloud, _digest
from deepvm.jobs.decisions.world import MachineRecord, Pool
from deepvm.jobs.history.history import History
from deepvm.jobs.static_hosts import StaticHosts
from deepvm.profiling.hosts.launcher import Host

POOL = Pool("host", "ssh", "on-demand", 0.0)
LOCAL_AS_FAR = "env HERE={host} sh -c {command}"
"""A launcher that leads here, and of which deepvm does not know that."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    yield found
    found.end()


def job_on(
    home: Home, name: str, hosts: str, train: str, launcher: str | None = "local", **more: Any
) -> Path:
    """A job file beside its file of hosts."""
    (home.folder / "hosts.txt").write_text(hosts)
    machines = {
        "hosts": "hosts.txt",
        **({"launcher": launcher} if launcher else {}),
        **more.pop("machines", {}),
    }
    return home.job(name, train, **{"cloud": "ssh", "machines": machines, **more})


def on_hosts(home: Home) -> Path:
    return home.folder / "data" / "deepvm" / "hosts"


def nothing_is_left(home: Home) -> bool:
    """No process, and of files the logs alone."""
    assert {p.suffix for p in on_hosts(home).rglob("*") if p.is_file() and p.name != "lock"} == {
        ".log"
    }
    return bool(until(lambda: not home.processes(), 10))


def trees(home: Home) -> list[int]:
    """First processes of machines."""
    return [
        p
        for p in home.processes()
        if b"clouds.local_machine" in Path(f"/proc/{p}/cmdline").read_bytes()
    ]


def test_a_job_on_all_hosts_of_a_file(home: Home) -> None:
    hosts = "one price=0.5\ntwo price=0.5\n"
    found = home.document("run", str(job_on(home, "both", hosts, "exec python own.py 40 0.02;")))
    assert (found["state"], found["steps"], found["generations"]) == ("done", 40, 1)
    assert [(m["type"], m["zone"], m["end_reason"]) for m in found["machines"]] == [
        ("host", "ssh", "released")
    ] * 2
    assert found["cost_usd"] > 0 and found["on_demand_cost_usd"] is None
    assert sorted(p.name for p in on_hosts(home).iterdir()) == ["one", "two"]
    assert nothing_is_left(home)


def test_outputs_of_hosts_come_back(home: Home) -> None:
    """By a folder that they share, next to which nothing of the job stays there."""
    (home.code / "plain.py").write_text(
        "import os\nopen(f'own-{os.environ[\"RANK\"]}.txt', 'w').write('x')\n"
    )
    shared = home.folder / "shared"
    more = {"tiers": [shared.as_uri()], "outputs": ["*.txt"], "independent_processes": True}
    path = job_on(home, "brings", "one\ntwo\n", "exec python plain.py;", LOCAL_AS_FAR, **more)
    home.env["DEEPVM_CONTROLLER_HOST"] = "127.0.0.1"
    done = home.run("run", str(path))
    assert done.returncode == 0, done
    got = home.folder / "got"
    found = home.document("jobs", "fetch", "brings", "--to", str(got))
    assert found["problems"] == [] and {p.name for p in got.glob("*.txt")} == {
        "own-0.txt",
        "own-1.txt",
    }
    assert nothing_is_left(home)


@pytest.mark.slow
def test_a_job_that_costs_nothing_has_a_final_document(home: Home) -> None:
    """Hosts without a price, and a number of steps: the forecast of costs is not compared."""
    found = home.document(
        "run", str(job_on(home, "free", "one\n", "exec python own.py 40 0.02;", steps=40))
    )
    assert (found["state"], found["steps"], found["cost_usd"]) == ("done", 40, 0)
    assert found["forecast"]["steps"] == 40 and found["forecast"]["off"]["cost_usd"] is None


@pytest.mark.slow
def test_a_host_whose_processes_die_is_replaced(home: Home) -> None:
    hosts = "a\nb\nc\n"
    job = job_on(
        home,
        "dies",
        hosts,
        "exec python own.py 250 0.03;",
        machines={"count": 2},
        save_policy="static:20",
    )
    process = home.start("run", str(job))
    until(lambda: (home.result / "starts-1").exists())
    os.kill(trees(home)[0], signal.SIGKILL)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 0, said
    found = home.document("jobs", "show", "dies")
    assert (found["state"], found["generations"], found["preemptions"]) == ("done", 2, 1)
    assert sorted(m["end_reason"] for m in found["machines"]) == ["lost", "released", "released"]
    places = [
        json.loads(p.read_text())["host"] for p in (home.jobs / "dies" / "placed").glob("*.json")
    ]
    assert sorted(places) == ["a", "b", "c"]  # the host that has lost a machine comes last
    assert nothing_is_left(home)


@pytest.mark.slow
def test_notices_on_purpose(home: Home) -> None:
    inject = {"mttp": "1s", "count": 1, "grace": "8s", "seed": 4}
    more = {"inject": inject, "machines": {"count": 1}}
    found = home.document(
        "run", str(job_on(home, "notices", "a\nb\n", "exec python own.py 150 0.03;", **more))
    )
    assert (found["state"], found["notices"], found["lost_steps"]) == ("done", 1, 0)
    assert nothing_is_left(home)


@pytest.mark.slow
def test_a_killed_controller_is_resumed_at_another_port(home: Home) -> None:
    """Hosts have no file in common with it: they are told where it is now."""
    more = {"tiers": [tier(home)], "machines": {"python": sys.executable}}
    job = job_on(
        home,
        "killed",
        "a address=127.0.0.1\n",
        "exec python own.py 300 0.03;",
        LOCAL_AS_FAR,
        **more,
    )
    process = home.start("run", str(job))
    until(lambda: (home.result / "starts-0").exists())
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert [o["machine"] for o in home.document("jobs", "orphans")["orphans"]] == ["m1"]
    found = home.document("jobs", "resume", "killed")
    assert (found["state"], found["generations"], len(found["machines"])) == ("done", 1, 1)
    assert (home.result / "starts-0").read_text() == "0 "
    assert nothing_is_left(home)


@pytest.mark.slow
def test_a_host_without_deepvm_gets_it(home: Home) -> None:
    venv.create(home.folder / "bare", with_pip=False, symlinks=True)
    python = str(home.folder / "bare" / "bin" / "python")
    assert (
        subprocess.run([python, "-c", "import deepvm"], cwd="/", capture_output=True).returncode
        == 1
    )
    machines = {"python": python}
    train = f"exec {python} own.py 40 0.02;"
    found = home.document("run", str(job_on(home, "bare", "a\n", train, machines=machines)))
    assert (found["state"], found["steps"]) == ("done", 40)
    assert (home.result / "done-0").read_text() == "40 "
    assert nothing_is_left(home) and not (on_hosts(home) / ".code").exists()


@pytest.mark.slow
def test_a_job_over_a_real_sshd(home: Home) -> None:
    with serving(home.folder) as (port, key):
        hosts = f"127.0.0.1 port={port}\nlocalhost port={port}\n"
        launcher = f"ssh -F none -i {key} -o BatchMode=yes -o StrictHostKeyChecking=no"
        launcher += (
            f" -o UserKnownHostsFile={home.folder}/known -o SetEnv=XDG_DATA_HOME={home.folder}/data"
            " {host}"
        )
        machines = {"python": sys.executable}
        job = job_on(
            home,
            "sshd",
            hosts,
            "exec python own.py 250 0.03;",
            launcher,
            machines=machines,
            tiers=[tier(home)],
        )
        process = home.start("run", str(job))
        until(lambda: (home.result / "starts-1").exists(), 60)
        os.kill(trees(home)[0], signal.SIGKILL)
        started = home.result / "starts-0"
        until(lambda: started.exists() and len(started.read_text().split()) > 1, 60)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        found = home.document("jobs", "resume", "sshd")
        assert (found["state"], found["steps"], found["preemptions"]) == ("done", 250, 1)
    assert nothing_is_left(home)  # sshd itself knows the folder


def tier(home: Home) -> str:
    return (home.folder / "versions").as_uri()


# --- the cloud alone ---


def cloud_of(folder: Path, *hosts: Host, launcher: str = "local") -> SshCloud:
    (folder / "job").mkdir(exist_ok=True)
    StaticHosts("job-1", launcher, sys.executable, hosts).save(folder / "job")
    return SshCloud(folder)


def ask(cloud: SshCloud, name: str, job: str = "job") -> float:
    start = Start(job, name, b"secret", "http://127.0.0.1:9")
    return cloud.request(MachineRecord(name, POOL, time.time()), start)


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "there"))
    return tmp_path


@pytest.mark.system
def test_hosts_that_do_not_answer_are_unknown(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One command leads there as long as a file exists."""
    switch = there / "switch"
    switch.touch()
    launcher = (
        f"sh -c 'test -e {switch} || {{ echo no route >&2; exit 255; }}; exec \"$@\"' {{host}}"
    )
    cloud = cloud_of(there, Host("a"), launcher=launcher)
    launched_s = ask(cloud, "m1")
    switch.unlink()
    assert cloud.listing("job").alive == {"m1": launched_s}
    with pytest.raises(UnknownError, match="a does not answer: no route"):
        cloud.release("job", "m1")
    assert cloud.listing("job").alive == {"m1": launched_s}
    with pytest.raises(RefusedError, match="no host is free"):
        ask(cloud, "m2")
    monkeypatch.setattr("deepvm.jobs.clouds.ssh._LET_GO_S", 0.0)  # nobody waits for it any more
    assert not cloud.listing("job").alive and not cloud.listing("job").ended
    switch.touch()
    again = SshCloud(there)
    assert again.listing("job").alive == {"m1": launched_s}  # it was there all the time
    again.release("job", "m1")
    assert list(again.listing("job").ended) == ["m1"]


def test_a_host_that_was_silent_at_the_end_is_cleared_later(
    there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settings, with the machine's secret, its code and data stay there until 'deepvm jobs
    orphans --release'.
    """
    home, switch = Home(there), there / "switch"
    switch.touch()
    jobs = home.jobs
    jobs.mkdir(parents=True)
    monkeypatch.setenv("DEEPVM_DATA_DIR", str(jobs.parent))
    launcher = f"sh -c 'test -e {switch} && exec \"$@\"' {{host}}"
    cloud = cloud_of(jobs, Host("a"), launcher=launcher)
    ask(cloud, "m1")
    switch.unlink()
    with pytest.raises(UnknownError):
        cloud.release("job", "m1")
    cloud.finish("job")
    over = worlds.one_machine(name="job")
    with History.open() as history:
        worlds.store(
            history,
            replace(over, row=replace(over.row, spec={**over.row.spec, "cloud": "ssh"})),
            jobs / "job",
        )
    switch.touch()
    left = there / "there" / "deepvm" / "hosts" / "a" / "job-1"
    for words in ((), ("--release",)):
        assert left.is_dir()
        home.env |= {"XDG_DATA_HOME": str(there / "there")}
        done = home.run("jobs", "orphans", *words)
        assert done.returncode == 0 and "m1" in done.stdout, done
    assert not left.exists()


CODE = "0" * 32


@pytest.mark.system
def test_code_that_another_start_has_just_unpacked_stays(there: Path) -> None:
    """Between the interpreter's first look and the machine nothing but a lock says that the code is
    needed.
    """
    cloud = cloud_of(there, Host("a"))
    ask(cloud, "m1")
    cloud.release("job", "m1")
    hosts = there / "there" / "deepvm" / "hosts"
    code = hosts / ".code" / CODE
    code.mkdir(parents=True)
    starting = os.open(hosts, os.O_RDONLY)
    fcntl.flock(starting, fcntl.LOCK_SH)
    cloud.finish("job")
    assert code.is_dir() and not (hosts / "a" / "job-1").exists()
    ask(cloud, "m2")
    cloud.release("job", "m2")
    os.close(starting)
    cloud.finish("job")
    assert not code.exists()


@pytest.mark.system
def test_nothing_begins_on_a_host_while_code_is_removed_there(there: Path) -> None:
    cloud = cloud_of(there, Host("a"))
    hosts = there / "there" / "deepvm" / "hosts"
    began = time.monotonic()
    ask(cloud, "m1")
    took_s = time.monotonic() - began
    cloud.release("job", "m1")
    removing = os.open(hosts, os.O_RDONLY)
    fcntl.flock(removing, fcntl.LOCK_EX)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(ask, cloud, "m2")
        time.sleep(2 * took_s)
        assert not asked.done()
        os.close(removing)
        assert asked.result(30) > 0
    cloud.release("job", "m2")


@pytest.mark.system
def test_a_host_is_taken_once_whoever_asks(there: Path) -> None:
    cloud = cloud_of(there, Host("a"), Host("b"))
    (there / "other").mkdir()
    StaticHosts("other-2", "local", "", (Host("a"), Host("b"))).save(there / "other")
    ask(cloud, "m1")
    ask(cloud, "m1", "other")
    with pytest.raises(RefusedError, match=r"m1 of other-2 is there"):
        ask(cloud, "m2")
    cloud.release("other", "m1")
    ask(cloud, "m2")
    for machine in ("m1", "m2"):
        cloud.release("job", machine)
    for job in ("job", "other"):
        cloud.finish(job)
        assert (there / job / "placed" / "over").exists()


@pytest.mark.system
def test_no_secret_stands_in_the_words_of_a_command(there: Path) -> None:
    seen = there / "seen"
    launcher = f'sh -c \'printf "%s " "$@" >> {seen}; exec "$@"\' {{host}}'
    cloud = cloud_of(there, Host("a"), launcher=launcher)
    ask(cloud, "m1")
    cloud.release("job", "m1")
    assert b"secret".hex() not in seen.read_text() and "def main" in seen.read_text()


@pytest.mark.system
def test_an_older_python_is_refused_in_words(there: Path) -> None:
    old = there / "python3"
    fake = "import sys; sys.version_info = (3, 7, 1); exec(sys.argv.pop(1))"
    old.write_text(f"#!/bin/sh\nshift\nexec {sys.executable} -c '{fake}' \"$@\"\n")
    old.chmod(0o755)
    (there / "job").mkdir()
    StaticHosts("job-1", "local", str(old), (Host("a"),)).save(there / "job")
    with pytest.raises(RefusedError, match=r"is Python 3\.7; deepvm needs 3\.10"):
        ask(SshCloud(there), "m1")


def test_the_address_of_the_controller(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = "sh -c true {host}"
    assert cloud_of(there, Host("a")).host("job") == "127.0.0.1"
    assert cloud_of(there, Host("a", "127.0.0.1"), launcher=far).host("job") == "127.0.0.1"
    with pytest.raises(
        RefusedError, match=r"^no-such.invalid cannot be resolved .*CONTROLLER_HOST"
    ):
        cloud_of(there, Host("a", "no-such.invalid"), launcher=far).host("job")
    monkeypatch.setenv("DEEPVM_CONTROLLER_HOST", "10.1.2.3")
    assert SshCloud(there).host("job") == "10.1.2.3"
    assert len(_digest()) == 32


@pytest.mark.parametrize(
    ("hosts", "more", "said"),
    [
        ("a\n", {"cloud": "local"}, "cloud: 'local' (expected the cloud ssh"),
        ("a\n", {"machines": {"count": 2}}, "machines.count: 2 (expected at most 1"),
        ("a\n", {"anchor": {"type": "big"}}, "anchor.type"),
        pytest.param("a\n", {"launcher": LOCAL_AS_FAR}, "tiers", marks=pytest.mark.slow),
        pytest.param(
            "a\nb type=memory\n",
            {"launcher": LOCAL_AS_FAR, "anchor": {"type": "memory"}},
            "tiers: 'none' (expected what all hosts reach: [s3://bucket/run], or"
            " file:// of a folder that they share, as the anchor's memory ends with the job",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "a\n", {"launcher": "teleport"}, "machines.launcher: 'teleport'", marks=pytest.mark.slow
        ),
        pytest.param("", {}, "hosts.txt", marks=pytest.mark.slow),
        pytest.param("a\na\n", {}, "machines.hosts", marks=pytest.mark.slow),
        pytest.param("a price=free\n", {}, "line 1", marks=pytest.mark.slow),
    ],
)
def test_what_cannot_be_run_on_hosts(
    home: Home, hosts: str, more: dict[str, Any], said: str
) -> None:
    job = job_on(home, "bad", hosts, "true;", **more)
    done = home.run("run", str(job))
    assert done.returncode in (2, 4) and said in done.stderr and "Traceback" not in done.stderr, (
        done
    )
    assert not home.document("jobs", "ls")["jobs"]


def test_what_hosts_are_taken(home: Home) -> None:
    hosts = "a type=big price=1\nb type=small price=0.5\nc type=small price=0.5\n"
    job = job_on(home, "plan", hosts, "true;", anchor={"type": "big"})
    said = home.run("run", str(job), "--dry-run").stdout
    assert (
        "2 x small on-demand, 1 x big to keep checkpoints in memory; up to $2.00/h in ssh" in said
    )


def test_hosts_are_counted_with_their_own_prices(home: Home) -> None:
    job = job_on(home, "priced", "a\nb price=1.5\nc\n", "true;")
    assert "up to $1.50/h" in home.run("run", str(job), "--dry-run").stdout
    found = home.document("run", str(job), "--dry-run")
    assert (found["usd_per_hour"], found["machines"][0]["usd_per_hour"]) == (1.5, 0.5)


def test_a_host_that_cannot_be_resolved_ends_the_job_before_it_is_recorded(home: Home) -> None:
    more = {"launcher": LOCAL_AS_FAR, "tiers": [home.folder.as_uri()]}
    job = job_on(home, "far", "a address=no-such.invalid\n", "true;", **more)
    done = home.run("run", str(job), "--yes")
    assert done.returncode == 5 and "no-such.invalid cannot be resolved" in done.stderr, done
    assert not home.document("jobs", "ls")["jobs"]
