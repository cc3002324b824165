"""What a user gets from ``pip install .``: the data, the types, the licence and a command that
works anywhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from deepvm import load_catalog, recommend, workload

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run(
        [*command, "--wheel-dir", str(folder), str(ROOT)],
        check=True,
        capture_output=True,
        timeout=300,
    )
    (found,) = folder.glob("deepvm-*.whl")
    return found


def test_the_wheel_holds_data_types_and_licence(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    data = {
        f"deepvm/_data/{p.relative_to(ROOT / 'data')}"
        for p in (ROOT / "data").rglob("*")
        if p.is_file()
    }
    pages = ROOT / "deepvm/reports/templates"
    page = {str(p.relative_to(ROOT)) for kind in ("css", "js") for p in pages.glob(f"*.{kind}")}
    templates = {str(p.relative_to(ROOT)) for p in (ROOT / "deepvm").rglob("*.j2")}
    assert "deepvm/exporters/templates/torchrun/launch.sh.j2" in templates
    assert data | page | templates | {"deepvm/py.typed", "deepvm/cli/main.py"} <= names
    assert any(n.endswith("LICENSE") for n in names)
    assert not any(n.startswith(("tests/", "notebooks/")) for n in names)


def test_the_installed_command_works_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    script = (
        "import deepvm, sys; assert 'site' in deepvm.__file__; from deepvm.cli.main import main;"
        " main(sys.argv[1:])"
    )
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            script,
            "recommend",
            "--pw",
            "3",
            "-o",
            "json",
            "--prices",
            "snapshot",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr
    best = recommend(
        load_catalog("aws-us-east-1", prices="snapshot"), 3, training=workload(model="resnet50")
    )[0]
    assert json.loads(found.stdout)["configurations"][0]["usd_per_hour"] == float(best.usd_per_hour)


@pytest.mark.slow
def test_the_wheel_in_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    """As ``pipx install`` has it: nothing of this checkout, nothing of the test tools, the base
    libraries alone.
    """
    home = tmp_path / "home"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, timeout=120)
    install = [
        str(home / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        str(wheel),
    ]
    done = subprocess.run(install, capture_output=True, text=True, timeout=900)
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip("no package index")
    assert done.returncode == 0, done.stderr
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(home / "bin" / "deepvm"), *words]
        return subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120
        )

    found = run("recommend", "--pw", "3", "-o", "json", "--prices", "snapshot")
    assert found.returncode == 0 and json.loads(found.stdout)["configurations"], found.stderr
    assert run("simulate", "--preset", "gpt-117m", "--runs", "10").returncode == 0
    here = subprocess.run(
        [
            str(home / "bin" / "python"),
            "-c",
            "import importlib.util as u; print(*map(u.find_spec, ['pandas', 'scipy']))",
        ],
        capture_output=True,
        text=True,
    )
    assert here.stdout == "None None\n"
    missing = run("recommend", "--pw", "3", "--catalog", "paper", "--speedup", "measured")
    assert missing.returncode == 2 and ".[fit]" in missing.stderr
