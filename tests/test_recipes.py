"""The diffs of CONTRIBUTING.md: applied to a copy of the package, the command line shows them."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from support.command import Run
from support.places import ROOT

_PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
RECIPES: dict[str, str] = dict(
    re.findall(r"^### Add an? ([^\n]+)\n(?:(?!###).)*?```diff\n(.*?)```", _PAGE, re.DOTALL | re.M)
)
_FILE = re.compile(r"^ ((?:data|deepvm)/\S+)\n", re.MULTILINE)
PRICES = b"""name,location,usd,vcpus,memory_gib,gpu,gpus
gpu_8x_a100,us-east-1,10.32,124,1800,A100,8
gpu_1x_a10,us-east-1,0.60,30,200,A10,1
"""


def files_of(recipe: str) -> dict[str, str]:
    """What a recipe does to each file."""
    _, *parts = _FILE.split(RECIPES[recipe])
    return dict(zip(parts[::2], parts[1::2], strict=True))


def apply(changes: str, file: Path) -> None:
    """Make a file, or put each run of new lines below the lines before it; ``-``: part of one."""
    lines = changes.strip("\n").splitlines()
    if all(line.startswith("+") for line in lines):
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f"{line[1:]}\n" for line in lines), encoding="utf-8")
        return
    text = file.read_text(encoding="utf-8")
    parts = re.findall(r"((?:^ .*\n)*)((?:^-.*\n)*)((?:^\+.*\n)+)", changes, re.MULTILINE)
    for known, old, new in parts:
        before, after = (re.sub(r"^.", "", part, flags=re.M) for part in (known + old, known + new))
        if old:
            before, after = before.rstrip("\n"), after.rstrip("\n")
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    file.write_text(text, encoding="utf-8")


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """``deepvm`` as a contributor's copy of the package, with all recipes."""
    shutil.copytree(ROOT / "deepvm", tmp_path / "deepvm")
    shutil.copytree(ROOT / "data", tmp_path / "data")
    for recipe in RECIPES:
        for name, changes in files_of(recipe).items():
            apply(changes, tmp_path / name)
    ours = [name for name in sys.modules if name.partition(".")[0] == "deepvm"]
    for name in ours:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("DEEPVM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "250")

    def call(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            import_module("deepvm.cli.main").main([str(word) for word in words])
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    yield call
    for name in [name for name in sys.modules if name.partition(".")[0] == "deepvm"]:
        del sys.modules[name]


def test_none_changes_more_than_three_files() -> None:
    assert {recipe: len(files_of(recipe)) for recipe in RECIPES} == {
        "public price source": 2,
        "exporter": 3,
        "option to `recommend`": 3,
        "value to a document": 3,
    }


@pytest.mark.system
def test_they_work(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tmp_path / "plan.json"
    recommend = ("recommend", "--pw", 3, "--catalog", "aws-us-east-1", "--offline")

    _an_option_and_a_value(run, recommend, plan)
    code, out, _ = run("export", plan, "--to", "slurm", "--command", "train.py")
    assert code == 0 and out.endswith("srun torchrun train.py\n"), out
    assert "\n# Spot prices move, and nothing here limits them.\n" in out
    assert "Write a plan for Slurm, SkyPilot" in _joined(run("export", "--help"))

    download: Any = import_module("deepvm.catalog.public.download")
    file = download.DownloadedFile(PRICES)
    monkeypatch.setattr(download, "download", lambda about: file)
    named = ("--cloud", "lambda", "--source", "pricelist")
    assert "the price list" in run("catalog", "refresh", *named)[1]
    assert "gpu_1x_a10" in run("recommend", "--pw", 3, *named)[1]
    assert "skypilot, gpuhunt or pricelist" in _joined(run("help", "catalog", "refresh", "--all"))
    monkeypatch.setenv("DEEPVM_PRICELIST_URL", "none")
    assert "DEEPVM_PRICELIST_URL" in run("catalog", "refresh", *named)[2]


def _an_option_and_a_value(run: Run, recommend: tuple[object, ...], plan: Path) -> None:
    recommend = (*recommend, "--vcpus-min", 16)
    _, out, _ = run(*recommend, "-o", "json")
    plan.write_text(out)
    answer = json.loads(out)
    assert answer["request"]["vcpus"] == {"min": 16, "max": None}
    best = answer["configurations"][0]
    gpus = best["gpu"]["vm_count"] * best["gpu"]["gpus_per_vm"]
    assert best["usd_per_gpu"] == best["usd_per_hour"] / gpus
    header, first, *_ = run(*recommend, "-o", "csv")[1].splitlines()
    row = dict(zip(header.split(","), first.split(","), strict=False))
    assert float(row["usd_per_gpu"]) == best["usd_per_gpu"]
    assert "$/h per GPU" in run(*recommend, "-o", "wide")[1]
    schema = json.loads(run("schema", "recommend")[1])["$defs"]
    about = schema["Configuration"]["properties"]["usd_per_gpu"]
    assert about["description"] == "price of all VMs for each GPU, US dollars an hour"
    assert "vcpus" in schema["Request"]["required"]

    why = "it has 4 vCPUs, wanted at least 16"
    assert why in run("explain", "g4dn.xlarge", *recommend[1:])[1]
    code, _, err = run(*recommend[:-1], "few")
    assert code == 2 and "--vcpus-min" in err
    assert "Minimum vCPUs per VM." in run("help", "recommend", "--all")[1]
    deepvm: Any = import_module("deepvm")
    catalog = deepvm.load_catalog("aws-us-east-1", offline=True)
    assert deepvm.recommend(catalog, 9, vcpus_min=16, estimates=True)[0].cluster.gpu.vcpus >= 16


def _joined(answer: tuple[int, str, str]) -> str:
    return " ".join(answer[1].split())
