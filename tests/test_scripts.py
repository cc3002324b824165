"""The scripts of the repository run from a clean folder and print what they promise."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parent.parent / "scripts" / "bench.py"


def bench(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(BENCH), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_quick_bench(tmp_path: Path) -> None:
    """One test, because a fixture would run the bench once in each worker of pytest-xdist."""
    pytest.importorskip("matplotlib")
    page = tmp_path / "speed.md"
    page.write_text("# Speed\n\n<!-- scripts/bench.py -->\nold\n<!-- end -->\n\nMore.\n")
    done = bench(tmp_path, "--quick", "--page", str(page))
    assert done.returncode == 0 and done.stderr == ""
    written = page.read_text()
    assert "| `recommend --pw 3, snapshot` |" in written and written.endswith("\n\nMore.\n")
    assert "old" not in written
    page.unlink()
    for name in ("date:", "machine:", "versions:", "cores", "highspy", "Python"):
        assert name in done.stdout
    check_processes(done.stdout.splitlines())
    check_growth(done.stdout, tmp_path / "build" / "bench")
    found = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert found == ["build/bench/bench.json", "build/bench/growth.png"]


def check_processes(lines: list[str]) -> None:
    header = next(line for line in lines if line.startswith("process "))
    assert header.split("  ")[0] == "process" and header.rstrip().endswith("met")
    for name, goal in (
        ("recommend --pw 3, paper", "<= 1.6 x floor"),
        ("recommend --pw 3, snapshot", "<= 2.5 x floor"),
        ("recommend --pw 3, warm cache of 298 types", "<= 2.5 x floor"),
        ("sweep of 101 budgets", "<= 3 x floor"),
        ("recommend --pw 30 --solver ilp, 6 x 30 types", "<= 1.5 s"),
        ("recommend --pw 30 --solver frontier, 6 x 30 types", "<= 0.5 s"),
    ):
        line = next(line for line in lines if line.startswith(name))
        assert goal in line and line.endswith(("yes", "NO"))
    assert any(line.startswith("import floor") and " 1.00" in line for line in lines)


def check_growth(text: str, folder: Path) -> None:
    for solver in ("ilp", "frontier"):
        for axis in ("GPU types x sizes", "CPU types"):
            assert f"{solver} with {axis}: " in text
    assert (folder / "growth.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    document = json.loads((folder / "bench.json").read_text())
    assert {"date", "machine", "versions", "processes", "points", "growth"} <= set(document)
    assert all(row["seconds"] > 0 for row in document["processes"] + document["points"])
    assert len(document["growth"]) == 4


def test_bench_refuses_a_bad_option(tmp_path: Path) -> None:
    done = bench(tmp_path, "--runs", "0")
    assert done.returncode == 2 and "--runs: allowed: a whole number >= 1" in done.stderr


def test_coverage_refuses_a_mistyped_room() -> None:
    script = BENCH.with_name("coverage_rooms.py")
    done = subprocess.run(
        [sys.executable, script, "core", "chekpoint"], capture_output=True, text=True, timeout=30
    )
    assert (
        done.returncode == 2
        and "chekpoint" in done.stderr
        and "checkpoint" in done.stderr
        and not done.stdout
    )


@pytest.mark.parametrize(("seconds", "code"), [(0.9, 0), (1.1, 1)])
def test_bench_recovery_fails_where_a_limit_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, seconds: float, code: int
) -> None:
    monkeypatch.syspath_prepend(BENCH.parent)
    bench = importlib.import_module("bench_recovery")
    monkeypatch.setattr(bench.signal, "signal", lambda *_: None)
    monkeypatch.setattr(
        bench, "measure", lambda bench, *_: bench.figure("a", "1 s").add(seconds, 1.0)
    )
    assert bench.main(["--check"]) == code and bench.main([]) == 0


@pytest.fixture
def proof(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCH.parent)
    return importlib.import_module("proof_recovery")


def test_proof_recovery_names_tests_that_exist(proof: Any) -> None:
    for test in [test for part in proof.PARTS.values() for test in part.tests]:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (proof.ROOT / file).read_text(), test


@pytest.mark.system
@pytest.mark.parametrize(
    ("second", "passed"), [("pass", 2), ("pytest.skip()", 1), ("assert False", 1)]
)
def test_proof_recovery_fails_where_a_test_has_not_passed(
    proof: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    second: str,
    passed: int,
) -> None:
    script = f"import pytest\ndef test_one(): pass\ndef test_two(): {second}\n"
    (tmp_path / "test_it.py").write_text(script)
    monkeypatch.setattr(
        proof, "PARTS", {"it": proof.Part("a claim", (str(tmp_path / "test_it.py"),))}
    )
    assert proof.main([]) == int(passed < 2)
    assert f"{passed} of 2" in capsys.readouterr().out and proof.passed_of(tmp_path / "none") == (
        0,
        0,
    )


@pytest.mark.slow
def test_bench_controller_prints_both_figures_with_their_goals() -> None:
    script = BENCH.with_name("bench_controller.py")
    command = [sys.executable, str(script), "--agents", "100", "--seconds", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"100 agents, 100 in a generation: \d+\.\d% of a core \(goal: 30%\)", done.stdout
    )
    assert re.search(r"an answer takes [\d.]+ ms, p99 [\d.]+ ms \(goal: 100 ms\)", done.stdout)


@pytest.mark.slow
def test_bench_notice_measures_all_its_rows() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("moto.server")
    command = [sys.executable, str(BENCH.with_name("bench_notice.py")), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.endswith(("yes", "NO"))]
    assert len(rows) == 10 and sum(row.startswith("notice, ") for row in rows) == 4


def test_a_mutant_is_one_change_of_a_module() -> None:
    mutants = importlib.import_module("mutants")
    for mutant in mutants.mutants(["io"], 5, seed=1):
        assert mutant.before != mutant.after
        assert compile(mutant.text, str(mutant.path), "exec")
        assert mutants.tests_of(mutant.path)


def test_a_context_of_coverage_names_a_test() -> None:
    mutants = importlib.import_module("mutants")
    for context in ("tests/a.py::b[x@1 (2)]@some group|run", "tests/a.py::b[x@1 (2)] (call)"):
        assert mutants.test_of(context) == "tests/a.py::b[x@1 (2)]"
    assert mutants.test_of("tests/a.py::b@tests/a.py|setup") == "tests/a.py::b"
