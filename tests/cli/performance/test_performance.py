from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from support.command import Run
from support.places import GOLDEN_FOLDER

LLAMA = ["performance", "predict", "--model", "llama-8b", "--method", "fsdp"]
KEYS = {"schema_version", "unit", "throughput", "per_gpu", "step_s", "mfu", "source", "doubts"}


def test_a_prediction_for_people(run: Run) -> None:
    code, out, err = run(*LLAMA, "--gpu", "H100", "--gpus", "64")
    assert (code, err) == (0, "")
    assert out == (GOLDEN_FOLDER / "performance-predict.txt").read_text()


def test_a_prediction_for_programs(run: Run) -> None:
    code, out, _ = run(
        *LLAMA,
        "--gpu",
        "H100",
        "--gpus",
        "64",
        "--nodes",
        "8",
        "--batch-per-gpu",
        "8",
        "--seq",
        "2048",
        "-o",
        "json",
    )
    found = json.loads(out)
    assert code == 0 and set(found) >= KEYS
    assert (found["schema_version"], found["unit"], found["vm_count"]) == (
        "deepvm.performance/1",
        "tokens/s",
        8,
    )
    for name in ("throughput", "per_gpu", "step_s"):
        assert found[name]["low"] < found[name]["value"] < found[name]["high"]
    assert found["per_gpu"]["value"] * 64 == pytest.approx(found["throughput"]["value"])
    assert found["throughput"]["value"] * found["step_s"]["value"] == pytest.approx(64 * 8 * 2048)
    assert 0 < found["mfu"] < 1 and found["source"] == "published"


def test_a_size_in_place_of_a_name(run: Run) -> None:
    code, out, _ = run(
        "performance",
        "predict",
        "--params",
        "30B",
        "--method",
        "fsdp",
        "--gpu",
        "A100",
        "--gpus",
        "64",
        "-o",
        "json",
    )
    found = json.loads(out)
    assert (
        code == 0
        and found["source"] == "derived"
        and any("no published run of" in d for d in found["doubts"])
    )


def test_what_does_not_fit_exits_3_and_says_what_would(run: Run) -> None:
    code, out, err = run(
        "performance",
        "predict",
        "--model",
        "llama-70b",
        "--method",
        "fsdp",
        "--gpu",
        "A100",
        "--gpus",
        "8",
    )
    assert code == 3 and "fits on" in err and out
    code, out, _ = run(
        "performance",
        "predict",
        "--model",
        "llama-70b",
        "--gpu",
        "A100",
        "--gpus",
        "8",
        "-o",
        "json",
    )
    assert code == 3 and json.loads(out)["fits"] is False


def test_forty_and_eighty(run: Run) -> None:
    def throughput(memory: str) -> float:
        _, out, _ = run(
            *LLAMA, "--gpu", "A100", "--gpu-memory", memory, "--gpus", "8", "-o", "json"
        )
        value: float = json.loads(out)["throughput"]["value"]
        return value

    assert throughput("40GiB") < throughput("80GiB")


def test_bad_input_is_named(run: Run) -> None:
    for words, said in [
        (["--gpu", "H1000"], "did you mean --gpu H100?"),
        (["--gpu", "H100", "--gpus", "0"], "--gpus: '0'"),
        (["--gpu", "H100", "--gpus", "many"], "--gpus: 'many'"),
        (
            ["--gpu", "H100", "--gpus", "8", "--nodes", "3"],
            "--nodes: 3 (expected a number that divides 8",
        ),
        (
            ["--gpu", "T4", "--precision", "bf16"],
            "--precision: 'bf16' (expected one that T4 has: fp32, fp16",
        ),
        (["--gpu", "H100", "--gpu-memory", "80"], "--gpu-memory: '80'"),
        (["--gpu", "H100", "--params", "7B"], "--model does not go with --params"),
    ]:
        code, out, err = run(*LLAMA, *words)
        assert (code, out) == (2, "") and said in err


def test_a_model_file_with_a_slip(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("parameters: 1e9\nlayers: 3\n")
    code, out, err = run("performance", "predict", "--model", file, "--gpu", "L4")
    assert (code, out) == (4, "") and "layers and hidden" in err


@pytest.mark.system
def test_the_check_is_kept(run: Run) -> None:
    code, out, _ = run("performance", "check", "-o", "json")
    found = json.loads(out)
    assert code == 0 and found["kept"] is True
    assert found["promised"] == {"median_error": 0.12, "coverage": {"min": 0.75, "max": 0.90}}
    _, table, _ = run("performance", "check")
    assert "Kept." in table and "without any run of that model" in table
    _, text, _ = run("performance", "check", "-o", "csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {r["by"] for r in rows} == {"gpu", "model", "source", "unseen model", ""}


def test_the_models_can_be_named(run: Run) -> None:
    _, out, _ = run("performance", "models", "-o", "json")
    names = [m["model"] for m in json.loads(out)["models"]]
    assert {
        "resnet50",
        "llama-8b",
        "llama-70b",
        "bert-large",
        "vit-b",
        "stable-diffusion-2",
    } <= set(names)
    code, table, _ = run("performance", "models")
    assert code == 0 and all(name in table for name in names)


def test_what_does_not_fit_is_said_first_and_once(run: Run) -> None:
    code, out, err = run(
        "performance", "predict", "--model", "llama-8b", "--method", "lora", "--gpu", "T4"
    )
    needs = "needs 21.88 GB of each; it fits on 3 or more of them"
    assert code == 3 and out.count(needs) == err.count(needs) == 1
    assert out.index("It does not fit") < out.index("throughput")
