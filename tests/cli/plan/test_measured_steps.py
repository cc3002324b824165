"""The loop that a user goes through: recommend, measure what it says, save it, and recommend by
what was measured.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.command import Run
from support.profiling.scaling_runs import environment
from support.profiling.step_runs import LAW, scaling_runs, seconds

from deepvm import load_catalog
from deepvm.core.training.steptime import StepTimeLaw

ASK = ("recommend", "--pw", "3", "--model", "resnet50", "--offline", "--quota", "none")
Ask = Callable[..., Any]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEEPVM_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
def ask(run: Run) -> Ask:
    """The JSON of a command that has to succeed."""

    def call(*words: str) -> Any:
        code, out, err = run(*words, "-o", "json")
        assert code == 0, err
        return json.loads(out)

    return call


def save(run: Run, document: dict[str, Any], kind: str = "g4dn.xlarge", *words: str) -> str:
    """Through the path of a measurement that is brought home; what it says."""
    Path("brought.json").write_text(json.dumps(document))
    code, _, err = run("tables", "import", "brought.json", "--instance-type", kind, *words)
    assert code == 0, err
    return err


def rows(answer: Any, kind: str) -> list[Any]:
    return [c for c in answer["configurations"] if c["gpu"]["instance_type"] == kind]


def test_a_measurement_changes_source_interval_and_speed(run: Run, ask: Ask) -> None:
    words = (*ASK, "--instance-type", "g4dn.xlarge")
    (before, *_), err = ask(*words)["configurations"], save(run, scaling_runs())
    assert "'deepvm recommend' uses " in err
    answer = ask(*words)
    own = answer["configurations"][0]
    assert (before["training"]["source"], own["training"]["source"]) == ("derived", "measured")

    def width(row: Any) -> float:
        return float(row["training"]["throughput"]["high"] / row["training"]["throughput"]["low"])

    assert width(own) < 1.3 < width(before)
    n = own["gpu"]["count"]
    assert own["training"]["checked_up_to_vms"] == 8 and n <= 12
    (measured,) = answer["source"]["measured"]
    assert (measured["kind"], measured["subject"], measured["runs"]) == ("steps", "g4dn.xlarge", 30)
    assert ask(*words, "--tables", "paper")["configurations"][0]["training"] == before["training"]


def test_a_measurement_that_contradicts_what_is_published_wins_and_may_change_the_plan(
    run: Run, ask: Ask
) -> None:
    """A first plan that turns out ten times slower is first no more."""
    first = ask(*ASK)["configurations"][0]
    kind = first["gpu"]["instance_type"]
    slow = replace(LAW, grad_fixed=0.2, grad_per_sample=0.04)
    dtype = {"bf16": "bfloat16", "fp16": "float16"}[first["training"]["precision"]]
    save(run, scaling_runs(slow, dtype=dtype) | {"machine": {}}, kind)
    after = ask(*ASK)
    assert after["configurations"][0]["gpu"]["instance_type"] != kind
    slower = ask(*ASK, "--instance-type", kind)["configurations"][0]
    assert slower["training"]["source"] == "measured"
    assert slower["throughput"] < first["throughput"] / 3


def test_gpus_lists_what_was_measured(run: Run, ask: Ask) -> None:
    save(run, scaling_runs())
    words = ("gpus", "--model", "resnet50", "--gpu", "T4", "--offline")
    own, ignored = ask(*words), ask(*words, "--tables", "paper")
    assert {g["source"] for g in own["gpus"] if g["gpus_per_vm"] == 1} == {"measured"}
    assert "measured" not in {g["source"] for g in ignored["gpus"]}


def test_the_report_names_source_date_and_runs(run: Run) -> None:
    save(run, scaling_runs())
    code, out, _ = run(*ASK, "--instance-type", "g4dn.xlarge", "--why")
    assert code == 0 and " measured\n" in out
    (line,) = [line for line in " ".join(out.split()).split(". ") if "Measured here" in line]
    assert (
        "step times of g4dn.xlarge" in line
        and "with resnet50/224px/b128/float16/adam (30 runs)" in line
    )
    assert "no published run of" not in out


def test_beyond_one_and_a_half_times_the_measured_size_no_plan_is_first(run: Run, ask: Ask) -> None:
    """Four VMs were measured, the budget buys nine: six are first, nine only with --extrapolate."""
    save(run, scaling_runs(sizes=(1, 2, 4)))
    words = (*ASK, "--instance-type", "g4dn.xlarge")
    first = ask(*words)["configurations"][0]
    assert any(
        "may be faster, but 4 were measured and no more than 6 are trusted" in w
        for w in first["warnings"]
    )
    assert first["gpu"]["count"] == 6 and first["training"]["checked_up_to_vms"] == 4
    bold = ask(*words, "--extrapolate")["configurations"][0]
    assert bold["gpu"]["count"] > 6
    assert any(
        "more than 1.5 times the 4 that were measured on g4dn.xlarge" in w for w in bold["warnings"]
    )


def test_what_was_measured_is_not_proposed_again(run: Run, ask: Ask) -> None:
    """The loop: do what it proposes, on as many VMs, as often as it proposes something."""
    seen = set[str]()
    for _ in range(6):
        found = ask(*ASK)["next_measurement"]
        if found is None:
            break
        assert found["instance_type"] not in seen
        seen.add(found["instance_type"])
        options = options_of(found["command"])
        assert options["--instance-type"] == found["instance_type"]
        batches = [int(b) for b in options["--batch"].split(",")]
        sizes = sorted({n for n in (1, 2, 4, 8, found["vm_count"]) if n <= found["vm_count"]})
        gpu = load_catalog("aws", offline=True)[found["instance_type"]].gpu
        assert gpu is not None
        document = scaling_runs(
            replace(LAW, local_fixed=0.01),
            sizes,
            batches,
            per_vm=gpu.count,
            dtype=options["--dtype"],
        )
        save(run, document | {"machine": {}}, found["instance_type"])
    assert seen


def options_of(command: str) -> dict[str, str]:
    """The options of a proposed command, which must be one of this program, and complete."""
    program, *words = shlex.split(command)
    assert program == "deepvm" and words[:2] == ["profile", "scaling"] and "--save" in words
    pairs = [w for w in words[2:] if w != "--save"]
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


@pytest.mark.slow
def test_what_recommend_proposes_runs_and_is_picked_up(run: Run, ask: Ask) -> None:
    """Real training here: the proposed command, on processes of this machine instead of VMs, and a
    small model.

    Its document then goes home as that of GPUs would, with no figure changed.
    """
    found = ask(*ASK)["next_measurement"]
    options = options_of(found["command"])
    assert (
        options.pop("--hosts-file") == "hosts"
        and options.pop("--instance-type") == found["instance_type"]
    )
    assert (options.pop("--model"), options.pop("--resolution")) == ("resnet50", "224")
    options |= {
        "--batch": "8,4",
        "--steps": "2",
        "--warmup": "1",
        "--windows": "2",
        "--dtype": "float32",
    }
    words = [word for pair in options.items() for word in pair]
    command = [
        "profile",
        "scaling",
        "--local",
        "2",
        "--model",
        "tiny_models:build",
        "--trains",
        "resnet50",
    ]
    command += ["--resolution", "8", "--device", "cpu", *words, "-o", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "deepvm.cli.main", *command],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert {(c["n"], c["gpus"], c["batch"], c["runs"]) for c in document["cells"]} == {
        (n, n, b, 2) for n in (1, 2) for b in (8, 4)
    }
    assert all(c["step_s"] > 0 and c["spread"] >= 0 for c in document["cells"])
    work = document["workload"] | {"device": "cuda", "resolution": 224, "dtype": "float16"}
    save(run, document | {"workload": work, "local": False, "machine": {}}, "g4dn.xlarge")
    answer = ask(*ASK, "--instance-type", "g4dn.xlarge")
    assert answer["configurations"][0]["training"]["source"] == "measured"


def test_a_law_of_ones_own_training_is_saved_and_used(run: Run, ask: Ask) -> None:
    steps = ["nodes,gpus,local_batch,step_time_s"]
    law = StepTimeLaw(0.3, 0.4, local_fixed=0.1, local_per_gpu=0.01, network_fixed=0.2, overlap=2.0)
    for n in (1, 2, 4):
        for batch in (2, 4, 8):
            steps += [f"{n},{8 * n},{batch},{seconds(law, n, 8 * n, batch):.6f}"] * 2
    Path("steps.csv").write_text("\n".join(steps) + "\n")
    what = ("--model", "llama-8b", "--method", "fsdp")
    code, out, err = run(
        *(
            "profile",
            "fit",
            "steps.csv",
            "--law",
            "step-time",
            "--save",
            "--instance-type",
            "p4d.24xlarge",
            *what,
        ),
        *("--predict", "nodes=4,gpus=32,batch=8", "-o", "json"),
    )
    assert (
        code == 0 and "saved: steptime:p4d.24xlarge:llama-8b/2048tok/bf16/fsdp, 18 steps, " in err
    )
    predicted = json.loads(out)["predictions"][0]["step_s"]
    shown = json.loads(run("tables", "show", "p4d.24xlarge", "-o", "json")[1])["entries"][0]
    assert len(shown["document"]["steps"]) == 18 and shown["document"]["fit"]["law"]
    assert "'deepvm recommend' uses " in err
    answer = ask(
        "recommend",
        "--pw",
        "60",
        *what,
        "--offline",
        "--quota",
        "none",
        "--instance-type",
        "p4d.24xlarge",
    )
    assert answer["configurations"][0]["training"]["source"] == "measured"
    found = ask(
        "performance",
        "predict",
        *what,
        "--gpu",
        "A100",
        "--gpu-memory",
        "40GB",
        "--gpus",
        "32",
        "--nodes",
        "4",
    )
    assert found["source"] == "measured" and found["step_s"] == pytest.approx(predicted, rel=1e-3)
    assert found["measured"].startswith("p4d.24xlarge, ") and found["measured"].endswith(
        ", 18 runs"
    )
    ignored = ask(
        *(
            "performance",
            "predict",
            *what,
            "--gpu",
            "A100",
            "--gpu-memory",
            "40GB",
            "--gpus",
            "32",
            "--nodes",
            "4",
        ),
        *("--tables", "paper"),
    )
    assert ignored["source"] != "measured" and ignored["measured"] is None


def test_a_file_of_profile_scaling_is_fitted_and_saved_as_well(run: Run) -> None:
    Path("curve.json").write_text(json.dumps(scaling_runs()))
    words = ("profile", "fit", "curve.json", "--law", "step-time")
    code, out, _ = run(*words, "--predict", "nodes=8,gpus=8,batch=128", "-o", "json")
    found = json.loads(out)
    assert code == 0 and found["row_count"] == 30
    assert found["predictions"][0]["step_s"]["value"] == pytest.approx(
        seconds(LAW, 8, 8, 128), rel=0.02
    )
    Path("here.json").write_text(json.dumps(scaling_runs(sizes=(2, 4)) | {"local": True}))
    code, _, err = run("profile", "fit", "here.json", "--law", "step-time")
    assert code == 4 and "processes of one machine, which say nothing of several VMs" in err
    code, _, err = run("profile", "fit", "none.json", "--law", "step-time")
    assert code == 4 and "none.json: does not exist" in err


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (1000, "times as long as published runs"),
        (1 / 1000, "0.0013 times as long as published runs"),
    ],
)
def test_milliseconds_are_doubted(run: Run, factor: float, said: str) -> None:
    rows = [
        f"{n},{n},{b},{factor * seconds(LAW, n, n, b)}"
        for n in (1, 2)
        for b in (64, 128)
        for _ in range(2)
    ]
    Path("steps.csv").write_text("\n".join(["nodes,gpus,local_batch,step_time_s", *rows]))
    words = ("--save", "--instance-type", "g4dn.xlarge", "--model", "resnet50")
    code, _, err = run("profile", "fit", "steps.csv", "--law", "step-time", *words)
    assert code == 0 and said in err and "is step_time_s in seconds" in err


TEXT = {
    "float16 in shards": (
        ("--model", "gpt2", "--method", "fsdp", "--dtype", "float16"),
        "--dtype: 'float16'",
    ),
    "images in shards": (("--method", "fsdp"), "Error: --method fsdp needs a language model"),
    "a name of a preset": (
        ("--model", "gpt2", "--trains", "mine"),
        "recommend knows gpt2 by its name",
    ),
    "no numbers": (
        ("--batch", "64;32"),
        "--batch: '64;32' (expected whole numbers separated by commas",
    ),
    "too many": (("--batch", "64,99999"), "--batch: 99999"),
}


@pytest.mark.system
def test_what_profile_scaling_cannot_train(run: Run) -> None:
    for case in TEXT:
        words, said = TEXT[case]
        code, out, err = run("profile", "scaling", "--local", "2", *words)
        assert (code, out) == (2, "") and said in err, (case, code, err)


def test_a_language_model_is_proposed_as_it_would_be_trained(ask: Ask, run: Run) -> None:
    """And what ``profile scaling`` does not train is timed by the user."""
    ask_llama = ("recommend", "--pw", "30", "--offline", "--quota", "none", "--model", "llama-8b")
    sharded = ask(*ask_llama, "--method", "fsdp")["next_measurement"]["command"]
    assert (
        "--model llama-8b --seq 2048 --method fsdp --dtype bfloat16 --activation-checkpointing"
        in sharded
    )
    adapters = ask(*ask_llama, "--method", "lora")["next_measurement"]
    if adapters is not None:
        assert adapters["command"].startswith(
            "deepvm profile fit steps.csv --law step-time --save --instance-type "
        )
        assert adapters["command"].endswith(
            "--model llama-8b --seq 2048 --method lora --precision bf16"
        )
    code, out, _ = run(*ask_llama, "--method", "fsdp", "--why")
    assert code == 0 and " ".join(sharded.split()) in " ".join(out.split())


BAD = {
    "no type": (
        ("--model", "resnet50"),
        "--instance-type: not given or empty (expected the provider's name",
    ),
    "no model": (
        ("--instance-type", "g4dn.xlarge"),
        "--model: not given or empty (expected with --save, what was trained",
    ),
    "an unknown model": (
        ("--instance-type", "g4dn.xlarge", "--model", "resnett50"),
        "did you mean",
    ),
    "two models": (
        ("--instance-type", "a.b", "--model", "gpt2", "--params", "7B"),
        "--model does not go with --params",
    ),
}


def test_a_law_is_not_saved_without_knowing_of_what(run: Run) -> None:
    for case in BAD:
        Path("steps.csv").write_text(
            "nodes,gpus,local_batch,step_time_s\n" + "1,1,8,0.5\n1,1,16,0.9\n" * 2
        )
        words, said = BAD[case]
        code, out, err = run("profile", "fit", "steps.csv", "--law", "step-time", "--save", *words)
        assert (code, out) == (2, "") and said in err, (case, code, err)
        assert not (Path("data") / "measured.json").exists()


def test_what_says_what_was_measured_needs_save(run: Run) -> None:
    Path("steps.csv").write_text(
        "nodes,gpus,local_batch,step_time_s\n" + "1,1,8,0.5\n1,1,16,0.9\n" * 2
    )
    code, _, err = run("profile", "fit", "steps.csv", "--law", "step-time", "--model", "gpt2")
    assert code == 2 and "Error: --model needs --save" in err
    code, _, err = run("profile", "fit", "steps.csv", "--save")
    assert code == 2 and "Error: --save needs --law step-time" in err


def test_other_precisions_are_named_and_published_ones_used(run: Run, ask: Ask) -> None:
    save(run, scaling_runs(dtype="float32"))
    code, out, err = run(*ASK, "--instance-type", "g4dn.xlarge", "-o", "json")
    assert code == 0 and json.loads(out)["configurations"][0]["training"]["source"] == "derived"
    assert "steps of g4dn.xlarge are not used: measured with fp32, and fp16 is trained" in err
    exact = ask(*ASK, "--instance-type", "g4dn.xlarge", "--precision", "fp32")
    assert exact["configurations"][0]["training"]["source"] == "measured"


def test_without_a_named_model_steps_of_the_usual_one_count_and_eflops_as_before(
    run: Run, ask: Ask
) -> None:
    bare = ("recommend", "--pw", "3", "--offline", "--instance-type", "g4dn.xlarge")
    save(run, scaling_runs())
    assert ask(*bare)["configurations"][0]["training"]["source"] == "measured"
    run("tables", "remove", "scaling")
    save(run, scaling_runs(resolution=32))
    # A curve of what nobody asked for ranks eFLOPS
    assert "training" not in ask(*bare)["configurations"][0]
    assert ask(*bare, "--model", "none")["source"]["measured"][0]["kind"] == "scaling"


def test_damaged_tables_stop_and_say_the_way_out(run: Run) -> None:
    save(run, scaling_runs())
    file = Path("data") / "measured.json"
    file.write_text(
        file.read_text().replace('"seconds_per_step": [', '"seconds_per_step": [-1,', 1)
    )
    for words in (ASK, ("performance", "predict", "--model", "resnet50", "--gpu", "T4")):
        code, out, err = run(*words)
        assert (
            (code, out) == (4, "")
            and "runs[0].seconds_per_step" in err
            and "deepvm tables restore" in err
        )
        assert run(*words, "--tables", "paper")[0] == 0


def test_tables_of_a_file_are_named(run: Run, ask: Ask) -> None:
    save(run, scaling_runs())
    run("tables", "export", "mine.json")
    run("tables", "remove", "scaling")
    words = (*ASK, "--instance-type", "g4dn.xlarge")
    assert ask(*words)["configurations"][0]["training"]["source"] == "derived"
    found = ask(*words, "--tables", "mine.json")
    assert found["configurations"][0]["training"]["source"] == "measured"
    assert found["source"]["measured_file"] == "mine.json"
    predict = (
        "performance",
        "predict",
        "--model",
        "resnet50",
        "--gpu",
        "T4",
        "--gpus",
        "2",
        "--nodes",
        "2",
    )
    assert ask(*predict, "--tables", "mine.json")["source"] == "measured"
    assert ask(*predict)["source"] == "derived"


def test_without_measurements_nothing_of_tables_is_loaded() -> None:
    code = "from deepvm.cli.main import main; main(['recommend', '--pw', '3', '--offline'])"
    script = (
        f"import sys\ntry:\n    {code}\nexcept SystemExit:\n   "
        " pass\nprint()\nprint(*sorted(sys.modules))"
    )
    out = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    loaded = set(out.stdout.splitlines()[-1].split())
    assert not {m for m in loaded if m.startswith("deepvm.catalog.measured.")}
    assert "pydantic.main" not in loaded and "scipy" not in loaded
