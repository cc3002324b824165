"""The examples of the pages do what the text around them says: Python, files that users write,
training runs.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint.memory_nodes import TOKEN, running
from support.pages import ROOT, blocks, commands, pages_with, printed, text_of

from deepvm.catalog.store import load_catalog
from deepvm.io.host_info import free_port

CATALOG, JOB, SIMULATE = (
    "docs/internals/reference/catalog-file.md",
    "docs/internals/reference/simulation-file.md",
    "docs/internals/guide/simulate.md",
)
PLAN, CHECKPOINT, SETTINGS = (
    "docs/internals/guide/plan.md",
    "docs/internals/guide/checkpoint.md",
    "docs/internals/reference/settings.md",
)
PYTHON, SURVIVE = "docs/internals/guide/python.md", "docs/guide/survive.md"
QUICKSTART = "docs/guide/quickstart.md"
PROFILE, TRAINERS = "docs/internals/guide/profile.md", "docs/internals/guide/trainers.md"


@pytest.mark.parametrize(
    "page, shown",
    [
        (QUICKSTART, "1 x p5.4xlarge (spot) 2.62"),
        (PYTHON, "17 x g4dn.xlarge (spot) + 1 x c5.xlarge (on-demand) 2.8526 1477.92"),
    ],
)
def test_python_examples_run(page: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "to_frame" in text_of(page):
        pytest.importorskip("pandas")
    for example in blocks(page, "python"):
        exec(compile(example, page, "exec"), {})
    assert shown in capsys.readouterr().out


def test_all_python_is_run() -> None:
    assert pages_with("python") == [QUICKSTART, PYTHON]
    assert pages_with("python training") == ["README.md", SURVIVE, CHECKPOINT]
    assert (
        pages_with("python dcp")
        == pages_with("python loggers")
        == pages_with("python sharded")
        == [CHECKPOINT]
    )
    assert pages_with("python fully-sharded") == pages_with("python batches") == [CHECKPOINT]
    for kind in ("loop", "huggingface", "lightning"):
        assert pages_with(f"python {kind}") == [SURVIVE, TRAINERS]
        assert blocks(SURVIVE, f"python {kind}") == blocks(TRAINERS, f"python {kind}")
    assert pages_with("python accelerate") == [TRAINERS]


def test_the_example_quota_file_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "my-quotas.json"
    file.write_text(blocks(PLAN, "json")[0])
    out = printed(
        f"deepvm recommend --pw 30 --quota {file} --architecture tiering --top 1 --model none"
        " -o csv",
        capsys,
    )
    assert int(out.splitlines()[1].split(",")[3]) == 16  # 64 spot vCPUs


def test_the_example_settings_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deepvm.toml").write_text(blocks(SETTINGS, "toml")[0])
    rows = [
        line for line in printed("deepvm config show", capsys).splitlines() if "deepvm.toml" in line
    ]
    assert {"region", "checkpoint-size", "objective"} <= {row.split()[0] for row in rows}


def test_all_variables_are_on_the_page_of_settings() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "deepvm").rglob("*.py"))
    named = set(re.findall(r'"(DEEPVM_[A-Z_]+[A-Z])"', sources)) - {
        "DEEPVM_CHECKPOINT_KILL_AT",
        "DEEPVM_KILL_POINTS",
    }  # of the tests
    assert len(named) >= 9
    assert not {name for name in named if f"`{name}`" not in text_of(SETTINGS)}


def test_all_extras_are_on_the_page_of_settings() -> None:
    (extras,) = re.findall(
        r"\[project.optional-dependencies\]\n(.*?)\n\[",
        (ROOT / "pyproject.toml").read_text(),
        re.DOTALL,
    )
    names = re.findall(r"^(\w+) = \[", extras, re.MULTILINE)
    assert {"fit", "plot", "train"} <= set(names)
    assert not [name for name in names if f"| `{name}` |" not in text_of(SETTINGS)]


def test_the_example_job_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.yaml").write_text(blocks(JOB, "yaml")[0])
    out = printed(
        f"deepvm simulate --job {tmp_path / 'job.yaml'} --policy adaptive --runs 10", capsys
    )
    assert out.startswith("my-model: 100000 steps on 1 VM, spot; 10 runs, seed 1")


def test_what_a_memory_node_is_said_to_save(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = blocks(SIMULATE, "yaml")
    bucket = example.replace("memory_node_s: 17", "backup_s: [120, 160]")
    for job, said in ((example, 4.9), (bucket, 12.5)):
        assert f"{said} %" in text_of(SIMULATE)
        (tmp_path / "job.yaml").write_text(job)
        out = printed(
            f"deepvm simulate --job {tmp_path / 'job.yaml'} --policy thesis --runs 400 -o json",
            capsys,
        )
        found = json.loads(out)["total_s"]["mean"] / (100_000 * 19.75029) - 1
        assert 100 * found == pytest.approx(said, abs=0.1)


def test_the_two_example_catalogs_are_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for ending in ("json", "csv"):
        (tmp_path / f"mine.{ending}").write_text(blocks(CATALOG, ending)[0])
    assert load_catalog(tmp_path / "mine.json") == load_catalog(tmp_path / "mine.csv")
    assert "g6.xlarge" in printed(
        f"deepvm recommend --pw 3 --catalog {tmp_path / 'mine.csv'}", capsys
    )


def test_the_steps_of_ones_own_training_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEEPVM_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "steps.csv").write_text(blocks(PROFILE, "csv")[0])
    fit, recommend, own, published, show = (
        printed(line, capsys) for line in commands(PROFILE, "sh steps")
    )
    assert "half of the measured steps" in fit or "law" in fit
    assert " measured" in recommend and "step times of p4d.24xlarge" in " ".join(recommend.split())
    assert "source      measured" in own and "12 runs; --tables paper ignores it" in own
    assert "source      measured" not in published
    assert "steptime:p4d.24xlarge:llama-8b/2048tok/bf16/fsdp" in show


@pytest.mark.parametrize("page", ["README.md", SURVIVE, CHECKPOINT])
def test_the_training_example_trains_and_goes_on(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (example,) = blocks(page, "python training")
    kept = f'tiers=["{(tmp_path / "kept").as_uri()}"'
    code, found = re.subn(r'tiers=\["(tcp://10.0.0.7:7070|file:///mnt/ckpt)"', kept, example)
    assert found == 1 and "10_000" in code
    usual = signal.getsignal(signal.SIGTERM)
    for steps in (3, 5):
        names: dict[str, Any] = {}
        exec(compile(code.replace("10_000", str(steps)), page, "exec"), names)
        assert names["ck"].version == steps
        assert "scheduler" not in names or names["scheduler"].last_epoch == steps
        signal.signal(signal.SIGTERM, usual)
    assert sorted(p.name[-16:] for p in (tmp_path / "kept").glob("*.pt")) == [
        "-000000000003.pt",
        "-000000000005.pt",
    ]
    assert ("scheduler" in names) == (page == CHECKPOINT)


def test_the_loop_over_a_loader_resumes_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    (example,) = blocks(CHECKPOINT, "python batches")

    def weights(place: str, steps: int) -> Any:
        torch.manual_seed(0)
        code = example.replace("10_000", str(steps)).replace(
            "file:///mnt/ckpt", (tmp_path / place).as_uri()
        )
        exec(compile(code, CHECKPOINT, "exec"), names := {"__name__": "train"})
        assert names["ck"].version == steps
        return names["model"].weight

    whole = weights("whole", 21)
    for steps in (8, 13, 21):  # an epoch has 8
        resumed = weights("parts", steps)
    assert torch.equal(resumed, whole)


def trained(kind: str, kept: Path, names: dict[str, Any]) -> dict[str, Any]:
    """The example of a trainer, run in a folder of versions."""
    (example,) = blocks(TRAINERS, f"python {kind}")
    code = example.replace(
        'tiers=["tcp://10.0.0.7:7070"]', f'tiers=["{kept.as_uri()}"], job="{kind}"'
    )
    assert code != example
    exec(compile(code, TRAINERS, "exec"), names)
    return names


def test_the_loop_trains_and_is_done(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    usual = signal.getsignal(signal.SIGTERM)
    names = trained("loop", tmp_path, {})
    assert (names["run"].step, names["run"].epoch) == (160, 20)
    assert (tmp_path / "loop-000000000160.pt").is_file() and signal.getsignal(
        signal.SIGTERM
    ) == usual
    again = trained("loop", tmp_path, {})
    assert again["run"].step == 160 and "epoch" not in again
    assert all(
        (a == b).all()
        for a, b in zip(again["model"].parameters(), names["model"].parameters(), strict=True)
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", ["huggingface", "lightning", "accelerate"])
def test_the_examples_of_trainers_train(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    library = pytest.importorskip(
        {"huggingface": "transformers"}.get(kind, kind), reason="pip install deepvm[trainers]"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = torch.nn.Linear(3, 1)
    rows = torch.utils.data.TensorDataset(torch.rand(12, 3))
    names: dict[str, Any] = {"loader": torch.utils.data.DataLoader(rows, 4, shuffle=True)}
    if kind == "huggingface":
        config = library.GPT2Config(vocab_size=8, n_positions=4, n_embd=8, n_layer=1, n_head=1)
        ids = [{"input_ids": torch.tensor([1, 2, 3]), "labels": torch.tensor([1, 2, 3])}] * 12
        arguments = library.TrainingArguments(
            output_dir=str(tmp_path),
            num_train_epochs=2,
            per_device_train_batch_size=4,
            use_cpu=True,
            save_strategy="no",
        )
        names |= {"model": library.GPT2LMHeadModel(config), "arguments": arguments, "data": ids}
    elif kind == "lightning":
        # It looks for MPI, and fails where that is half installed.
        monkeypatch.setattr(
            "lightning.fabric.plugins.environments.MPIEnvironment.detect", lambda: False
        )

        class Module(library.LightningModule):  # type: ignore[name-defined,misc]
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def training_step(self, batch: Any, number: int) -> Any:
                return self.model(batch[0]).square().mean()

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), 0.1)

        names["module"] = Module()
    else:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        names |= {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        names["accelerator"] = library.Accelerator(cpu=True)
    trained(kind, tmp_path / "kept", names)
    assert [p.name for p in (tmp_path / "kept").glob("*.pt")] == [f"{kind}-000000000006.pt"]


def test_the_commands_for_versions_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    from deepvm.checkpoint import Checkpointer

    monkeypatch.chdir(tmp_path)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Checkpointer(
        model=model, optimizer=optimizer, tiers=[tmp_path / "ckpt"], job="mine"
    ) as saver:
        saver.save(block=True)
    lines = [line for line in commands(CHECKPOINT, "sh node") if "/mnt/ckpt" in line]
    assert [line.split()[2] for line in lines] == ["ls", "verify", "restore", "gc"]
    out = {
        line.split()[2]: printed(line.replace("/mnt/ckpt", str(tmp_path / "ckpt")), capsys)
        for line in lines
    }
    assert "mine" in out["ls"] and list((tmp_path / "ckpt").glob("mine-*.pt"))
    assert torch.equal(
        torch.load(tmp_path / "model.pt", weights_only=True)["model"]["weight"], model.weight
    )


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_example_with_dcp_saves_and_loads(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    (example,) = blocks(CHECKPOINT, "python dcp")
    state = {"weights": torch.arange(4.0), "step": 7}
    save, _, load = example.replace("/mnt/ckpt", str(tmp_path)).rpartition("dcp.load")
    exec(compile(save, CHECKPOINT, "exec"), names := {"state": state})
    state["weights"].zero_()
    exec(compile("dcp.load" + load, CHECKPOINT, "exec"), names)
    assert state["weights"].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_the_example_with_loggers_tells_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (example,) = blocks(CHECKPOINT, "python loggers")
    exec(compile(example, CHECKPOINT, "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert "durable 1" in lines and any(
        line.startswith("checkpoint/durable/seconds 0.") for line in lines
    )


def test_the_example_of_a_model_that_changes_continues_after_the_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (example,) = blocks(CHECKPOINT, "python changing")
    for start, end, groups in ((0, 8, 1), (8, 13, 2), (13, 20, 2)):
        names: dict[str, Any] = {}
        exec(compile(example.replace("steps(20)", f"steps({end})"), CHECKPOINT, "exec"), names)
        saved = names["saved"]
        assert (0 if saved is None else saved["version"], names["ck"].version) == (start, end)
        assert len(names["optimizer"].param_groups) == groups


def test_the_example_with_a_fully_sharded_model_trains_on_two_ranks(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    (example,) = blocks(CHECKPOINT, "python fully-sharded")
    kept = tmp_path / "kept"
    for of, by in {
        "tcp://10.0.0.7:7070": kept.as_uri(),
        "10_000": "6",
        "every=100": "every=2",
    }.items():
        assert of in example
        example = example.replace(of, by)
    (tmp_path / "train.py").write_text(example)
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "WORLD_SIZE": "2"}
    # As torchrun does, which takes longer.
    environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port("127.0.0.1"))}
    words = [sys.executable, str(tmp_path / "train.py")]
    ranks = [subprocess.Popen(words, env={**environ, "RANK": rank}) for rank in "01"]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    tree = torch.load(next(kept.glob("train-*-000000000006.pt")), weights_only=True)
    assert tree["model"]["0.weight"].shape == (64, 32)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_example_with_sharded_states_saves_and_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "token").write_bytes(TOKEN)
    (tmp_path / "token").chmod(0o600)
    monkeypatch.setenv("DEEPVM_TOKEN_FILE", str(tmp_path / "token"))
    (example,) = blocks(CHECKPOINT, "python sharded")
    save, _, load = example.rpartition("\nparts = ")
    model = torch.nn.Linear(32, 1)
    names = {"torch": torch, "model": model, "optimizer": torch.optim.Adam(model.parameters())}
    with running() as node:
        exec(compile(save, CHECKPOINT, "exec"), {**names, "place": node.url})  # type: ignore[attr-defined]
        wanted = model.weight.detach().clone()
        with torch.no_grad():
            model.weight.zero_()
        imports = "\n".join(
            line for line in save.splitlines() if line.startswith(("import ", "from "))
        )
        exec(
            compile(f"{imports}\nparts = {load}", CHECKPOINT, "exec"), {**names, "place": node.url}
        )  # type: ignore[attr-defined]
        assert sorted(node.registry.complete("job"))[-1] == 3
    assert torch.equal(model.weight, wanted)
