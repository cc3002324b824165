"""Keys and failures that only jobs of ``deepvm run`` accept, and those they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from support.lab_jobs import matrix_of

from deepvm.errors import DeepVMError
from deepvm.lab.faults.fault import MachineFault
from deepvm.lab.matrix import FORMAT, runs_of
from deepvm.lab.registry import FAULTS, find_fault

MACHINE_FAULTS = [name for name in FAULTS if isinstance(find_fault(name), MachineFault)]


def refused(failures: dict[str, Any], **more: Any) -> str:
    with pytest.raises(DeepVMError) as caught:
        matrix_of(failures, **more)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_machines_are_preempted_in_jobs_only() -> None:
    for fault in MACHINE_FAULTS:
        for launcher in ["forkserver", "torchrun"]:
            said = refused({fault: [70]}, launcher=launcher)
            assert (
                f"failures.planned.{fault}: only with launcher: deepvm-run" in said
                and "matrix.yaml:" in said
            )
            matrix_of({fault: [70]})


def test_what_cannot_be() -> None:
    for more, words in [
        ({"launcher": "forkserver", "min_world": 1}, "min_world: only with launcher: deepvm-run"),
        (
            {"world": None, "elastic": [[0, 2], [60, 1]]},
            "elastic: expected world and min_world with launcher: deepvm-run",
        ),
        ({"min_world": 3}, "min_world: 3 is more than world, 2"),
        ({"world": 4, "min_world": 2}, "min_world: 3 ranks do not divide the virtual shards"),
        ({"min_world": 0}, "min_world"),
    ]:
        said = refused({"exit": [70]}, **more)
        assert words in said and "matrix.yaml:" in said


def test_a_fault_has_only_its_own_options() -> None:
    assert "loss has no seconds" in refused({"loss": {"at": [70], "seconds": 2}})
    assert "there is no rank 1: there are 1" in refused(
        {"loss": {"at": [70], "rank": 1}}, min_world=1
    )


def test_sizes_that_differ_are_computed_in_virtual_shards() -> None:
    assert matrix_of({"loss": [70]}).shards == 0
    found = matrix_of({"loss": [70]}, min_world=1)
    assert (found.shards, found.least) == (2, 1)
    assert matrix_of({"loss": [70]}, min_world=1, virtual_shards=4).shards == 4


def test_random_losses_hit_ranks_that_each_generation_has() -> None:
    (run,) = runs_of(matrix_of({"loss": {"count": 20, "seed": 3}}, min_world=1))
    assert {strike.rank for strike in run.strikes} == {0}
    (run,) = runs_of(matrix_of({"loss": {"count": 20, "seed": 3}}))
    assert {strike.rank for strike in run.strikes} == {0, 1}


def test_the_matrix_that_comes_with_deepvm_can_be_read() -> None:
    from deepvm.io.user_dirs import data_folder

    for name in ("orchestrated", "orchestrated-elastic"):
        file = data_folder() / "lab" / f"{name}.yaml"
        found = FORMAT.read(file)
        assert found.launcher == "deepvm-run" and found.name == name
        used = {
            key
            for faults in yaml.safe_load(file.read_text())["failures"].values()
            for key in faults
        }
        assert used & set(MACHINE_FAULTS)
