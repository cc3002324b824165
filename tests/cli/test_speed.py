"""Start-up stays small against what any such program must load; ratios within one run, with slack."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "scripts" / "bench.py"


def fastest(command: list[str], environment: dict[str, str], runs: int = 5) -> float:
    """The minimum: what others do on the machine only ever adds."""
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


@pytest.mark.parametrize(("words", "most"), [(["--offline"], 3.2), (["--prices", "snapshot"], 3.0)])
def test_a_warm_recommendation_against_the_import_floor(words: list[str], most: float, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("bench", BENCH)
    assert spec is not None and spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    sys.modules["bench"] = bench
    spec.loader.exec_module(bench)
    assert bench.fill_cache(tmp_path, 10) == 1490
    environment = {**os.environ, "DEEPVM_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "deepvm.cli.main", "recommend", "--pw", "3", *words]
    fastest(command, environment, 1)  # fills the disk cache
    ratio = fastest(command, environment) / fastest([sys.executable, "-c", bench.FLOOR], environment)
    assert ratio <= most


def test_both_tables_of_the_thesis_against_the_import_floor() -> None:
    """Measured: 2.6 times the floor."""
    presets = ["--preset", "gpt-117m", "--preset", "gpt-1.3b"]
    words = ["simulate", *presets, "--compare", "static:10,static:33,static:100,thesis,adaptive"]
    command = [sys.executable, "-m", "deepvm.cli.main", *words, "--runs", "100"]
    floor = [sys.executable, "-c", "import typer, rich.table, numpy, pulp, highspy"]
    assert fastest(command, dict(os.environ)) / fastest(floor, dict(os.environ)) <= 5.0


def test_simulate_loads_nothing_heavy() -> None:
    words = [sys.executable, "-X", "importtime", "-m", "deepvm.cli.main", "simulate", "--preset", "gpt-117m"]
    done = subprocess.run([*words, "--runs", "2"], capture_output=True, text=True, check=True, timeout=60)
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "numpy" in loaded and not loaded & {"scipy", "pandas", "matplotlib", "pydantic", "pulp", "boto3", "torch"}
