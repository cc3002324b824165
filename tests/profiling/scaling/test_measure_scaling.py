"""The speed-up curve: its numbers, its file, and real training runs on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.profiling.scaling_runs import TINY, environment
from support.small_disk import small_disk

from deepvm.core.training.steptime import StepTimeFit
from deepvm.errors import DataError, MeasurementError, RequestError
from deepvm.io.atomic_write import write_bytes
from deepvm.profiling.fit.scaling_document import Curve, Run, check_same, read_curve, write_curve
from deepvm.profiling.hosts.launcher import Host, Launcher
from deepvm.profiling.hosts.machine import describe
from deepvm.profiling.scaling import scaling_host
from deepvm.profiling.scaling.measure_scaling import (
    Limits,
    Outcome,
    Ready,
    Task,
    _fit,
    _law,
    _leave_out,
    _Session,
    measure_scaling,
)

SHORT = ("--warmup", "1", "--windows", "2", "--steps", "3", "--repeats", "1")
CURVE = Curve(
    workload=Task("m").workload("cpu", 1),
    hosts=("a", "b"),
    plan={"sizes": [1, 2, 4], "repeats": 2},
    local=False,
    runs=(
        Run(4, 1, failed="b: gone"),
        Run(2, 1, (0.5, 0.6, 9.0), 1.0),
        Run(2, 2, (0.8, 0.8, 0.8), 1.0),
        Run(1, 1, (0.4,), 1.0),
    ),
    machine={"processor": "p", "gpus": []},
)


def scaling(*words: object, limit_s: float = 120, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deepvm.cli.main", "profile", "scaling", *map(str, words)]
    return subprocess.run(
        command, env=environment(**more), capture_output=True, text=True, timeout=limit_s
    )


# --- numbers ---


def test_speedups_are_those_of_the_same_work() -> None:
    """A step of 2 VMs is twice the work: S(2) = 2 x 0.4 s / 0.7 s, with 0.7 s the median of the
    runs' medians.
    """
    one, two = CURVE.points
    assert (one.n, one.seconds, one.speedup) == (1, 0.4, 1.0)
    assert (
        two.n == 2
        and two.seconds == pytest.approx(0.35)
        and two.speedup == pytest.approx(0.8 / 0.7)
    )
    assert [n for n, _ in CURVE.samples] == [2, 2, 1]
    assert [s for _, s in CURVE.samples] == pytest.approx([0.8 / 0.6, 1.0, 1.0])
    assert CURVE.missing == (4,)
    alone = replace(CURVE, runs=CURVE.runs[:3])
    assert alone.points[0].speedup is None and alone.samples == () and alone.missing == (1, 4)


BATCHES = replace(
    CURVE,
    plan={"sizes": [1, 2], "repeats": 2, "batches": [128, 64]},
    runs=(
        Run(2, 1, (0.5, 0.7), 1.0, batch=128),
        Run(2, 2, (0.8, 0.8), 1.0, batch=128),
        Run(2, 1, (0.3,), 1.0, batch=64),
        Run(1, 1, (0.4,), 1.0, batch=128),
        Run(1, 1, failed="out of memory", batch=64),
    ),
)


def test_of_several_batches_the_first_has_the_curve_and_all_have_cells() -> None:
    assert [(p.n, p.seconds) for p in BATCHES.points] == [(1, 0.4), (2, pytest.approx(0.35))]
    assert len(BATCHES.samples) == 3 and BATCHES.missing == (1,)
    cells = {(c.n, c.batch): c for c in BATCHES.cells}
    assert set(cells) == {(1, 128), (2, 128), (2, 64)}
    two = cells[2, 128]
    assert (two.gpus, two.runs, two.step_s) == (2, 2, pytest.approx(0.7))
    assert two.spread == pytest.approx(0.3 / 0.7)
    assert BATCHES.steps == ((2, 2, 128, 0.6), (2, 2, 128, 0.8), (2, 2, 64, 0.3), (1, 1, 128, 0.4))
    assert replace(BATCHES, local=True).steps == ((1, 1, 128, 0.4),)
    assert CURVE.batches == (128,) and {c.batch for c in CURVE.cells} == {128}


def test_a_document_of_several_batches_comes_back_and_is_a_law(tmp_path: Path) -> None:
    file = tmp_path / "curve.json"
    whole = replace(BATCHES, step_time=_law(BATCHES))
    write_curve(file, whole)
    document, again = json.loads(file.read_text()), read_curve(file)
    assert again is not None and again.runs == BATCHES.runs and again.batches == (128, 64)
    assert [c["step_s"] for c in document["cells"]] == [0.4, 0.3, 0.7]
    assert StepTimeFit.of_document(document["step_time"]).measured is not None
    few = replace(BATCHES, runs=BATCHES.runs[:3])
    assert _law(few) is None and few.document()["step_time"] is None


def test_batches() -> None:
    task = Task("m", 128, batches=(64, 128, 32))
    assert task.all_batches == (128, 64, 32) and task.sizes_for(2) == (1, 2)
    with pytest.raises(RequestError, match="batch"):
        Task("m", 128, batches=(0,)).sizes_for(2)
    text = Task("gpt2", 2, sequence=64, method="fsdp", checkpointing=True).workload("cuda", 8)
    assert text["resolution"] is None and text["activation_checkpointing"] is True
    assert (text["sequence"], text["method"], text["processes"]) == (64, "fsdp", 8)
    assert (
        not {"method", "trains", "sequence", "activation_checkpointing"}
        & Task("m").workload("cpu", 1).keys()
    )


class Scripted:
    """A coordinator whose runs end as a test says: by number of hosts and batch."""

    def __init__(self, failing: dict[tuple[int, int], Outcome]) -> None:
        self.failing, self.asked = failing, list[tuple[int, int]]()

    def run(self, hosts: Any, workload: Any) -> Outcome:
        self.asked.append((len(hosts), workload["batch"]))
        return self.failing.get(self.asked[-1], Outcome((0.1 * workload["batch"],)))


def test_a_batch_that_is_too_large_for_all_hosts_costs_no_host() -> None:
    """Alone, a host would be blamed for it, and be missing for the batches that fit."""
    full = Outcome(why="out of memory", failed={"a": "out of memory", "b": "out of memory"})
    task, coordinator = Task("m", 64, batches=(256,), repeats=1), Scripted({(2, 256): full})
    said = list[str]()
    session = _Session(task, coordinator, [Host("a"), Host("b")], None, said.append)  # type: ignore[arg-type]
    session.healthy = (ready("a"), ready("b"))
    session.curve = replace(
        CURVE, workload=task.workload("cpu", 1), runs=(), plan={"sizes": [1, 2], "repeats": 1}
    )
    for n in (2, 1):
        for batch in task.all_batches:
            session.measure(n, batch)
    assert coordinator.asked == [(2, 64), (2, 256), (1, 64)] and len(session.healthy) == 2
    assert [r.batch for r in session.curve.good] == [64, 64]
    assert session.curve.runs[-1].failed == "a batch of 256 failed on all of 2 hosts"
    assert any("n = 2, batch 256, repeat 1: failed: out of memory" in line for line in said)


def test_a_single_host_is_not_lost_with_a_batch_that_is_too_large() -> None:
    full = Outcome(why="out of memory", failed={"a": "out of memory"})
    task, coordinator = Task("m", 256, batches=(64,), repeats=2), Scripted({(1, 256): full})
    session = _Session(task, coordinator, [Host("a")], None, lambda line: None)  # type: ignore[arg-type]
    session.healthy = (ready("a"),)
    session.curve = replace(
        CURVE, workload=task.workload("cpu", 1), runs=(), plan={"sizes": [1], "repeats": 2}
    )
    for batch in task.all_batches:
        session.measure(1, batch)
    assert [(r.batch, r.failed is None) for r in session.curve.runs] == [
        (256, False),
        (64, True),
        (64, True),
    ]


def test_sizes() -> None:
    assert Task("m").sizes_for(1) == (1,)
    assert Task("m").sizes_for(6) == (1, 2, 4, 6)
    assert Task("m").sizes_for(8) == (1, 2, 4, 8)
    assert Task("m", sizes=(3, 1, 3)).sizes_for(4) == (1, 3)
    for sizes in ((2, 4), (1, 9), (0, 1)):
        with pytest.raises(RequestError, match="up to the number of hosts"):
            Task("m", sizes=sizes).sizes_for(8)
    with pytest.raises(RequestError, match="windows"):
        Task("m", windows=0).sizes_for(8)


def ready(name: str) -> Ready:
    return Ready(Host(name), 1, (), name, "", describe())


def test_who_is_left_out_when_connections_fail() -> None:
    for pairs, left_out in [
        ([], ""),
        ([(3, 0), (3, 1), (3, 2), (0, 3), (1, 3)], "d"),
        ([(1, 0), (2, 0), (3, 0)], "a"),  # nobody reaches the first
        ([(0, 1)], "b"),  # one way is not enough
        ([(0, 1), (2, 3)], "bd"),
    ]:
        failed: dict[int, str] = {}
        _leave_out(
            {i: ready(n) for i, n in enumerate("abcd")}, {p: "timed out" for p in pairs}, failed
        )
        assert "".join("abcd"[p] for p in sorted(failed)) == left_out
        assert all("timed out" in why for why in failed.values())


# --- the file ---


def test_a_curve_comes_back_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "curve.json"
    assert read_curve(file) is None
    write_curve(file, CURVE)
    assert read_curve(file) == CURVE
    document = json.loads(file.read_text())
    assert (
        document["schema_version"] == "deepvm.scaling/1" and document["points"][0]["speedup"] == 1.0
    )
    assert document["runs"][0] == {
        "n": 4,
        "repeat": 1,
        "seconds_per_step": [],
        "images_per_s": None,
        "failed": "b: gone",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("{", "damaged .JSONDecodeError"),
        ("[]", "damaged"),
        ('{"schema_version": "deepvm.scaling/2"}', "deepvm.scaling/2"),
        ("{}", "missing key schema_version .expected a JSON file of `deepvm profile scaling`"),
        ('{"schema_version": "deepvm.scaling/1"}', "missing key runs"),
    ],
)
def test_files_that_hold_no_curve(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "curve.json"
    file.write_text(text)
    with pytest.raises(DataError, match=said):
        read_curve(file)


@pytest.mark.parametrize("seconds", [[], [0.0], ["x"], [float("inf")]])
def test_times_that_are_none_are_refused(tmp_path: Path, seconds: list[Any]) -> None:
    document: dict[str, Any] = CURVE.document()
    document["runs"][3]["seconds_per_step"] = seconds
    write_bytes(tmp_path / "curve.json", json.dumps(document).encode())
    with pytest.raises(DataError, match="damaged"):
        read_curve(tmp_path / "curve.json")


def test_other_measurements_are_not_mixed() -> None:
    for other, said in [
        (replace(CURVE, workload={**CURVE.workload, "batch": 64}), "batch 128 there, 64 here"),
        (replace(CURVE, plan={"sizes": [1, 2], "repeats": 2}), "sizes"),
        (replace(CURVE, local=True), "local False there, True here"),
        (replace(CURVE, machine={"processor": "q", "gpus": []}), "processor 'p' there, 'q' here"),
    ]:
        with pytest.raises(RequestError) as caught:
            check_same(Path("f"), CURVE, other)
        assert said in caught.value.allowed
        check_same(
            Path("f"), CURVE, replace(CURVE, hosts=("c", "d"))
        )  # a preempted VM has a successor


def test_without_scipy_a_measurement_lacks_only_its_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra that measuring does not need.

    The fit can be made later, of hours of measurements.
    """
    for name in [name for name in sys.modules if name.startswith("deepvm.profiling.fit.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("scipy", "scipy.optimize", "scipy.special"):
        monkeypatch.setitem(sys.modules, name, None)
    fit, why = _fit(CURVE)
    assert fit is None and why.startswith("no fit: this needs scipy") and ".[fit]" in why
    monkeypatch.setitem(sys.modules, "deepvm.profiling.fit.speedup_fit", None)
    with pytest.raises(ModuleNotFoundError):
        _fit(CURVE)


# --- real training runs here ---


@pytest.mark.slow
def test_two_processes_give_a_curve(tmp_path: Path) -> None:
    file = tmp_path / "curve.json"
    words = ("--local", 2, *TINY, *SHORT, "--out", file, "-o", "json")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    done = scaling(*words, TMPDIR=str(temporary))
    assert done.returncode == 0, done.stderr
    assert not list(temporary.glob("torchelastic*")) and not list(temporary.glob("deepvm*"))
    document = json.loads(done.stdout)
    assert [(r["n"], r["failed"], len(r["seconds_per_step"])) for r in document["runs"]] == [
        (2, None, 2),
        (1, None, 2),
    ]
    assert all(s > 0 for r in document["runs"] for s in r["seconds_per_step"])
    one, two = document["points"]
    assert two["speedup"] == pytest.approx(one["seconds"] / two["seconds"])
    for run in document["runs"]:
        middle = sum(run["seconds_per_step"]) / 2
        assert run["images_per_s"] == pytest.approx(run["n"] * 4 / middle)
    assert document["local"] and "not how VMs scale" in document["warnings"][0]
    assert document["fit"] is None and document["machine"]["torch"]
    assert json.loads(file.read_text()) == document


@pytest.mark.slow
def test_a_measurement_goes_on_where_it_ended(tmp_path: Path) -> None:
    """As if it had been killed before n = 1, which is then the only run that is made.

    Failed ones are tried again.
    """
    file = tmp_path / "curve.json"
    words = ("--local", 2, *TINY, *SHORT, "--out", file, "-o", "json")
    document = json.loads(scaling(*words).stdout)
    whole = read_curve(file)
    assert whole is not None
    write_curve(file, replace(whole, runs=(whole.runs[0], Run(1, 1, failed="somehow"))))
    again = scaling(*words)
    assert again.returncode == 0 and "goes on after 1 finished runs" in again.stderr
    assert "n = 2, repeat" not in again.stderr and "n = 1, repeat 1" in again.stderr
    assert json.loads(again.stdout)["runs"][0] == document["runs"][0]
    assert [r["failed"] for r in json.loads(again.stdout)["runs"]] == [None, None]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "--hosts-file FILE"),
        (("--local", 2, "--hosts", "a"), 2, "one of"),
        (("--hosts", "a", "--launcher", "ip netns exec"), 2, "{host} in it"),
        (("--local", 2, "--sizes", "1,x"), 2, "separated by commas"),
        (("--local", 2, "--start-timeout", "0"), 2, "1000000 seconds"),
        (("--local", 2, "--batch", 10**9), 2, "from 1 to 65536"),
        (("--local", 2, "--windows", 10**9), 2, "from 1 to 1000"),
        (("--local", 1, "--model", "vgg"), 2, "--model: 'vgg'"),
        (("--local", 2, "--save", "--instance-type", "g4dn.xlarge"), 2, "--force-local"),
        (("--local", 1, "--out", "/proc/curve.json", *TINY, *SHORT), 4, "cannot be written"),
        (("--local", 1, "--model", "no_such:model"), 1, "no_such"),
    ],
)
@pytest.mark.slow
def test_what_cannot_be_done_is_said_at_once(
    words: tuple[object, ...], code: int, said: str
) -> None:
    done = scaling(*words)
    assert done.returncode == code and said in done.stderr and "Traceback" not in done.stderr, (
        done.stderr
    )
    assert done.stdout == ""


@pytest.mark.slow
def test_a_host_that_never_answers_ends_after_the_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that refuses, as ssh does, is told with what it said."""
    with pytest.raises(MeasurementError, match="nothing was received from it for 1 s"):
        measure_scaling(
            Task("m"),
            [Host("a")],
            Launcher.parse("sh -c 'sleep 100' {host}"),
            limits=Limits(1, 5),
            say=lambda _: None,
        )
    refused = "sh -c 'echo ssh: connect to host: No route to host >&2; exit 255' {host}"
    with pytest.raises(
        MeasurementError, match="exit code 255; its last line: ssh: connect to host: No route"
    ):
        measure_scaling(Task("m"), [Host("a")], Launcher.parse(refused), limits=Limits(20, 5))


@pytest.mark.slow
def test_a_disk_that_fills_up_does_not_end_the_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    disk, said = tmp_path / "disk", list[str]()

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("n = 1, repeat 1"):
            (disk / "filler").write_bytes(
                bytes(2**20 - (disk / "curve.json").stat().st_size // 4096 * 4096 - 4096)
            )

    with small_disk(disk, "1M"):
        curve = measure_scaling(
            Task("tiny_models:build", 4, 8, "cpu", (), 2, 1, 2, 3),
            [Host("here")],
            Launcher.parse("local"),
            limits=Limits(60, 60),
            out=disk / "curve.json",
            say=say,
        )
        assert (
            "No space left" in curve.unwritten
            and [p.n for p in curve.points] == [1]
            and len(curve.runs) == 2
        )
        assert any("the measurement continues" in line for line in said)
        kept = read_curve(disk / "curve.json")
        assert kept is not None and len(kept.runs) == 1
        assert not list(disk.glob(".*.tmp"))


def test_processes_of_one_processor_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torchrun would give each of several one core only."""
    monkeypatch.setattr(scaling_host, "cores", lambda: 8)
    for given, processes, found in (
        (None, 1, None),
        (None, 2, "4"),
        (None, 16, "1"),
        ("3", 2, "3"),
    ):
        with monkeypatch.context() as patch:
            patch.delenv("OMP_NUM_THREADS", raising=False)
            if given is not None:
                patch.setenv("OMP_NUM_THREADS", given)
            scaling_host._share_cores(processes)
            assert os.environ.get("OMP_NUM_THREADS") == found
            os.environ.pop("OMP_NUM_THREADS", None)
