"""The README tells the truth: its outputs are what its commands print, its Python runs, its commands exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from deepvm.catalog.store import load_catalog
from deepvm.cli.main import main

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"```console\n\$ (deepvm [^\n]*)\n(.*?)```", re.DOTALL)


def settled(text: str) -> str:
    return re.sub(r"\d+(\.\d+)? (years|days) old", "<age> old", text)


def printed(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        main(shlex.split(command)[1:])
    out, _ = capsys.readouterr()
    assert end.value.code == 0, command
    return out


def test_outputs_are_what_the_commands_print(capsys: pytest.CaptureFixture[str]) -> None:
    """``WRITE_GOLDEN=1`` writes the outputs anew."""
    text = README.read_text()
    fresh = BLOCK.sub(lambda m: f"```console\n$ {m[1]}\n{printed(m[1], capsys)}```", text)
    if os.environ.get("WRITE_GOLDEN"):
        README.write_text(fresh)
        text = fresh
    assert settled(fresh) == settled(text)
    assert len(BLOCK.findall(text)) >= 3


def test_python_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("17 x g4dn.xlarge (spot) + 1 x c5.xlarge (on-demand) 2.8526 1477.92")


def test_shell_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every line ``deepvm ...`` of the shell blocks, in the order of the page, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    lines = [
        line.split("  #")[0].split("     #")[0].strip()
        for block in re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL)
        for line in block.splitlines()
        if line.startswith("deepvm ")
    ]
    assert len(lines) >= 6
    for line in lines:
        command, _, target = line.partition(" > ")
        out = printed(command, capsys)
        if target and target != "/dev/null":
            (tmp_path / target).write_text(out)
    assert {"my.json", "my.csv", "sweep.csv", "figure7.svg"} <= {p.name for p in tmp_path.iterdir()}


def test_the_example_quota_file_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = re.findall(r"```json\n(.*?)```", README.read_text(), re.DOTALL)[0]
    file = tmp_path / "my-quotas.json"
    file.write_text(example)
    out = printed(f"deepvm recommend --pw 30 --quota {file} --architecture tiering --top 1 -o csv", capsys)
    assert int(out.splitlines()[1].split(",")[3]) == 16  # 64 spot vCPUs


def test_the_example_job_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example, _ = re.findall(r"```yaml\n(name: .*?)```", README.read_text(), re.DOTALL)
    (tmp_path / "job.yaml").write_text(example)
    out = printed(f"deepvm simulate --job {tmp_path / 'job.yaml'} --policy adaptive --runs 10", capsys)
    assert out.startswith("my-model: 100000 steps on 1 VM, spot; 10 runs, seed 1")


def test_what_a_memory_node_is_said_to_save(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = README.read_text()
    _, example = re.findall(r"```yaml\n(name: .*?)```", text, re.DOTALL)
    bucket = example.replace("memory_node_s: 17", "backup_s: [120, 160]")
    for job, said in ((example, 4.9), (bucket, 12.5)):
        assert f"{said} %" in text
        (tmp_path / "job.yaml").write_text(job)
        out = printed(f"deepvm simulate --job {tmp_path / 'job.yaml'} --policy thesis --runs 400 -o json", capsys)
        found = json.loads(out)["total_s"]["mean"] / (100_000 * 19.75029) - 1
        assert 100 * found == pytest.approx(said, abs=0.1)


def test_the_two_example_catalogs_are_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = README.read_text()
    for ending, example in (
        ("json", re.findall(r"```json\n(.*?)```", text, re.DOTALL)[1]),
        ("csv", re.findall(r"```csv\n(.*?)```", text, re.DOTALL)[0]),
    ):
        (tmp_path / f"mine.{ending}").write_text(example)
    assert load_catalog(tmp_path / "mine.json") == load_catalog(tmp_path / "mine.csv")
    assert "g6.xlarge" in printed(f"deepvm recommend --pw 3 --catalog {tmp_path / 'mine.csv'}", capsys)


def test_the_training_example_trains_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (example,) = re.findall(r"```python training\n(.*?)```", README.read_text(), re.DOTALL)
    code = example.replace("tcp://10.0.0.7:7070", (tmp_path / "kept").as_uri())
    assert "10_000" in code and code.count("file:///") == 2  # the one of the comment is left
    usual = signal.getsignal(signal.SIGTERM)
    for steps in (3, 5):
        names: dict[str, Any] = {}
        exec(compile(code.replace("10_000", str(steps)), "README.md", "exec"), names)
        assert names["ck"].version == names["scheduler"].last_epoch == steps
        signal.signal(signal.SIGTERM, usual)
    assert sorted(p.name for p in (tmp_path / "kept").glob("*.pt")) == ["job-000000000003.pt", "job-000000000005.pt"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_example_with_dcp_saves_and_loads(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    (example,) = re.findall(r"```python dcp\n(.*?)```", README.read_text(), re.DOTALL)
    state = {"weights": torch.arange(4.0), "step": 7}
    save, _, load = example.replace("/mnt/ckpt", str(tmp_path)).rpartition("dcp.load")
    exec(compile(save, "README.md", "exec"), names := {"state": state})
    state["weights"].zero_()
    exec(compile("dcp.load" + load, "README.md", "exec"), names)
    assert state["weights"].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_commands_that_need_a_cluster_have_these_options(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        line.split("  #")[0]
        for block in re.findall(r"```sh node\n(.*?)```", README.read_text(), re.DOTALL)
        for line in block.splitlines()
        if line.startswith("deepvm ")
    ]
    assert len(lines) >= 5
    for line in lines:
        group, command, *words = shlex.split(line)[1:]
        text = printed(f"deepvm {group} {command} --help", capsys)
        for option in (w for w in words if w.startswith("-")):
            assert re.search(rf"(?<![\w-]){option}(?![\w-])", text), line


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (README.parent / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", README.read_text(), re.MULTILINE))
    assert len(named) >= 4
    assert named <= targets


def test_ci_runs_the_test_command_of_the_readme() -> None:
    assert "make test" in (README.parent / ".ci" / "run").read_text()
