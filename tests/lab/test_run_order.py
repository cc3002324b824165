"""The order of runs: those that are compared with one another are made side by side."""

from __future__ import annotations

from pathlib import Path

from support.lab.small_matrix import MATRIX

from deepvm.lab.matrix import FORMAT, runs_of
from deepvm.lab.matrix_runner import side_by_side


def test_seed_by_seed_and_every_second_one_in_reverse(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(f"{MATRIX}seeds: [3, 0, 8]\n")
    runs = runs_of(FORMAT.read(file))
    made = [[(run.seed, run.variant) for run in batch] for batch in side_by_side(runs)]
    assert made == [
        [(3, "none")],
        [(3, "blk"), (3, "ovl")],
        [(0, "none")],
        [(0, "ovl"), (0, "blk")],
        [(8, "none")],
        [(8, "blk"), (8, "ovl")],
    ]
    assert sorted(run.name for batch in side_by_side(runs) for run in batch) == sorted(
        run.name for run in runs
    )
