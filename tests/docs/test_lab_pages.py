"""The pages of the recovery lab: their matrices, Python and tables are those of the code."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.lab.made_folder import make
from support.pages import ROOT, blocks, pages_with, text_of
from support.schemas import check as check_schema

from deepvm.documents.declared import properties
from deepvm.lab.audit.gates import GATES
from deepvm.lab.faults.fault import DiskFault
from deepvm.lab.matrix import FORMAT, VARIANTS, runs_of
from deepvm.lab.registry import FAULTS, find_fault

GUIDE, FILE, EXPLAIN = (
    "docs/internals/guide/lab.md",
    "docs/internals/reference/matrix-file.md",
    "docs/internals/explain/lab.md",
)


def rows(page: str, heading: str) -> list[list[str]]:
    """The table behind a heading, without its head."""
    part = text_of(page).partition(f"{heading}\n")[2]
    lines = part[part.index("|") :].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def named(cell: str) -> list[str]:
    return re.findall(r"`([a-z-_]+)`", cell)


@pytest.mark.parametrize(
    ("page", "info"), [(GUIDE, "yaml lab"), (FILE, "yaml"), (FILE, "yaml run")]
)
def test_matrices_are_read(page: str, info: str, tmp_path: Path) -> None:
    (text,) = blocks(page, info)
    (tmp_path / "m.yaml").write_text(text)
    assert runs_of(FORMAT.read(tmp_path / "m.yaml"))


def test_the_example_has_every_key(tmp_path: Path) -> None:
    (text,) = blocks(FILE, "yaml")
    keys = {
        key
        for kind in ("MatrixFile", "Dataset", "Model", "FaultSchedule")
        for key in properties(f"matrix.{kind}")
    }
    for key in keys - {"at", "min_world", "virtual_shards", "share", "mbps"}:
        assert re.search(rf"\b{key}:", text), key
    assert {
        key for row in rows(FILE, "which `deepvm lab list` names.") for key in named(row[0])
    } == (set(properties("matrix.MatrixFile")) - {"name"})


def test_all_faults_and_their_options_are_on_the_page() -> None:
    found = {named(row[0])[0]: set(named(row[2])) for row in rows(FILE, "## Faults")}
    assert found == {name: set(find_fault(name).options) - {"seed"} for name in FAULTS}
    at_steps = [name for name in FAULTS if not isinstance(find_fault(name), DiskFault)]
    assert set(list(found)[:-3]) == set(at_steps) and "All but the last three have `at`" in text_of(
        FILE
    )
    for name in ("stop", "node", "notice", "controller"):
        assert f"`seconds` ({find_fault(name).seconds:g})" in text_of(FILE)


def test_all_variants_are_on_the_page() -> None:
    assert [name for row in rows(FILE, "## Variants") for name in named(row[0])] == [
        *("none", "ref-blk", "ref-ovl", "blk", "ovl"),
        *(name for name in VARIANTS if name not in ("none", "ref-blk", "ref-ovl", "blk", "ovl")),
    ]


def test_all_gates_and_controls_are_on_the_page() -> None:
    from deepvm.lab.selftest import CONTROLS

    assert [named(row[0])[0] for row in rows(EXPLAIN, "## The gates")] == list(GATES)
    controls = {named(row[0])[0]: named(row[2])[0] for row in rows(EXPLAIN, "**and no other**:")}
    assert controls == {name: control.gate for name, control in CONTROLS.items()}


def test_the_fault_that_is_shown_is_the_one_in_the_file() -> None:
    (shown,) = blocks(GUIDE, "python fault")
    assert shown in (ROOT / "deepvm" / "lab" / "faults" / "rank_faults.py").read_text()


def test_all_python_of_the_lab_is_run() -> None:
    assert pages_with("python lab") == [EXPLAIN, GUIDE] and len(blocks(EXPLAIN, "python lab")) == 2


def test_the_sampler_resumes_in_ones_own_training(tmp_path: Path) -> None:
    """Trained at one go, and in two parts: the same samples, and the same weights."""
    torch = pytest.importorskip("torch")
    (example,) = blocks(GUIDE, "python lab")
    assert example.count("10_000") == 1 and "file:///mnt/ckpt" in example

    def trained(place: str, steps: int) -> tuple[Any, list[list[int]]]:
        seen: list[list[int]] = []
        torch.manual_seed(0)
        code = example.replace("10_000", str(steps)).replace(
            "file:///mnt/ckpt", (tmp_path / place).as_uri()
        )
        code = code.replace("optimizer.zero_grad()", "seen.append(ids); optimizer.zero_grad()")
        names: dict[str, Any] = {"seen": seen}
        exec(compile(code, GUIDE, "exec"), names)
        assert names["sampler"].global_step == steps
        return names["model"].state_dict(), seen

    whole, samples = trained("whole", 40)
    _, first = trained("parts", 18)
    parts, second = trained("parts", 40)
    assert first + second == samples and len(first) == 18 and sum(map(len, samples[:15])) == 960
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_a_data_loader_draws_from_the_global_generator() -> None:
    pytest.importorskip("torch")
    exec(compile(blocks(EXPLAIN, "python lab")[0], EXPLAIN, "exec"), {})


def test_the_audit_of_the_page_agrees(tmp_path: Path) -> None:
    make(tmp_path, seeds=(1,))
    names: dict[str, Any] = {}
    exec(compile(blocks(EXPLAIN, "python lab")[1], EXPLAIN, "exec"), names)
    checked = 0
    for folder in (tmp_path / "runs").iterdir():
        config = json.loads((folder / "config.json").read_text())
        for rank in range(config["world"]):
            for line in (folder / f"rank_{rank}.jsonl").read_text().splitlines():
                row = json.loads(line)
                assert (
                    names["expected_hash"](config, row["global_step"], rank)
                    == row["sample_ids_hash"]
                )
                checked += 1
    assert checked > 200


def test_files_of_a_run_are_on_the_page(tmp_path: Path) -> None:
    make(tmp_path, seeds=(0,), variants=("none", "blk"))
    listed = {
        name
        for row in rows(EXPLAIN, "## Audit it yourself")
        for name in re.findall(r"`([\w.]+)`", row[0])
    }
    there = {
        re.sub(r"_\d\.", "_R.", path.name)
        for path in (tmp_path / "runs" / "tokens-gpt-tiny-base-blk-s0").iterdir()
    }
    assert there == listed


@pytest.mark.slow
def test_the_small_matrix_runs(tmp_path: Path) -> None:
    from deepvm.lab.checked import check
    from deepvm.lab.matrix_runner import MatrixRunner

    pytest.importorskip("torch")
    (text,) = blocks(FILE, "yaml run")
    (tmp_path / "m.yaml").write_text(text)
    MatrixRunner(FORMAT.read(tmp_path / "m.yaml"), tmp_path / "out").run()
    found, _ = check(tmp_path / "out")
    assert found.passed == len(found.runs) == 3
    listed = {
        name
        for row in rows(EXPLAIN, "## Audit it yourself")
        for name in re.findall(r"`([\w.]+)`", row[0])
    }
    for folder in (tmp_path / "out" / "runs").iterdir():
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        there = {re.sub(r"_\d\.", "_R.", path.name) for path in folder.iterdir()}
        assert there - {"workers.log"} <= listed
        for name, schema in (
            ("config", "lab-run"),
            ("supervisor", "lab-supervisor"),
            ("audit", "lab-audit"),
        ):
            check_schema(json.loads((folder / f"{name}.json").read_text()), schema)
