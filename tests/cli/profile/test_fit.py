"""``deepvm profile fit`` as people and scripts meet it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.command import Run
from support.places import GOLDEN_FOLDER

from deepvm.profiling.fit.scaling_document import Curve, write_curve
from deepvm.profiling.fit.scaling_document import Run as TrainingRun

GOLDEN = GOLDEN_FOLDER
POINTS = {
    # Figure 5, g4dn.xlarge
    "figure-5": (
        "n,speedup\n1,1\n2,1.036\n4,1.390\n8,2.274\n12,3.065\n16,3.743\n20,4.323\n24,4.786\n28,5.490\n"
        "32,5.251\n"
    ),
    "short": "n,seconds\n# one repeat went wrong\n1,100\n1,102\n2,55\n2,71\n4,31\n8,18\n",
    "linear": "n,speedup\n1,1\n2,1.94\n4,3.88\n6,5.82\n8,7.76\n",
}


@pytest.fixture
def run(run: Run) -> Run:
    return partial(run, "profile", "fit")


@pytest.fixture
def points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in POINTS.items():
        (tmp_path / f"{name}.csv").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


GOLDENS = {
    "profile-fit.txt": ["figure-5.csv"],
    "profile-fit-up-to.txt": ["short.csv", "--up-to", "32"],
    "profile-fit-linear.txt": ["linear.csv"],
}


@pytest.mark.parametrize("name", GOLDENS)
def test_golden(name: str, points: Path, run: Run) -> None:
    code, out, err = run(*GOLDENS[name])
    found = f"$ deepvm profile fit {' '.join(GOLDENS[name])}\n# exit {code}\n{out}# stderr\n{err}"
    path = GOLDEN / name
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(found)
    assert found == path.read_text()


def test_nothing_is_recommended_that_is_called_bad(points: Path, run: Run) -> None:
    """Of four measurements AICc knows Amdahl's law alone, which is 36 % off.

    The logistic is 6 % off.
    """
    Path("steep.csv").write_text("n,speedup\n1,1\n2,2.8\n4,9\n8,20\n")
    out = run("steep.csv")[1]
    assert "Best by mean error: logistic, 6.3 % off on average; then" in out
    assert "Use: the points themselves, kind measured" in out
    assert (
        "Warning: 4 measurements are too few for an AICc of logistic, usl and alpha-beta: 6 are"
        " enough" in out
    )
    assert "curve of kind" not in out
    Path("zigzag.csv").write_text("n,speedup\n1,1\n2,1.9\n4,1.1\n8,6\n16,2\n24,9\n32,3\n")
    out = run("zigzag.csv")[1]
    assert "Use: the points themselves, kind measured" in out and "curve of kind" not in out


def test_every_golden_file_is_used() -> None:
    assert {p.name for p in GOLDEN.glob("profile-fit*")} == set(GOLDENS)


def test_json_is_one_document(points: Path, run: Run) -> None:
    code, out, err = run("figure-5.csv", "-o", "json", "--up-to", "40")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert (found["schema_version"], found["model"]) == ("deepvm.fit/1", "alpha-beta")
    assert found["ring"] == pytest.approx({"c": 1.99365, "l": 0.093553}, rel=1e-3)
    assert [row["n"] for row in found["band"]][-2:] == [32, 40]


def test_a_scaling_document_is_read(points: Path, run: Run) -> None:
    rows = [line.split(",") for line in POINTS["figure-5"].splitlines()[1:]]
    runs = [TrainingRun(int(n), 1, (int(n) / float(s),), float(s)) for n, s in rows]
    workload = {"model": "m", "batch": 1, "processes": 1}
    plan = {"sizes": [1], "repeats": 1}
    write_curve(Path("scaling.json"), Curve(workload, (), plan, local=False, runs=tuple(runs)))
    found = [json.loads(run(name, "-o", "json")[1]) for name in ("scaling.json", "figure-5.csv")]
    assert found[0]["ring"] == pytest.approx(found[1]["ring"], rel=1e-6)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["bad.csv"], 4, "bad.csv:3: invalid value for speedup: 'fast' (expected speed-up over"),
        (["few.csv"], 2, "POINTS: '2 different n (1, 2)' (expected at least 4 different n"),
        (
            ["figure-5.csv", "--up-to", "0"],
            2,
            "--up-to: 0 (expected a whole number of VMs, 1 to 4096",
        ),
        (["figure-5.csv", "--plot", "no/fit.png"], 2, "--plot: 'no/fit.png' (expected a file in"),
    ],
)
def test_errors(words: list[str], code: int, said: str, points: Path, run: Run) -> None:
    Path("bad.csv").write_text("n,speedup\n1,1\n2,fast\n")
    Path("few.csv").write_text("n,speedup\n1,1\n2,1.9\n")
    found, _, err = run(*words)
    assert found == code
    assert said in err
    assert not list(points.glob("fit.*"))


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_picture(ending: str, points: Path, run: Run) -> None:
    code, out, _ = run("figure-5.csv", "--up-to", "64", "--plot", f"fit.{ending}")
    data = Path(f"fit.{ending}").read_bytes()
    assert code == 0
    assert out.startswith("figure-5.csv: 10 measurements at 10 sizes")
    assert [p.name for p in points.iterdir() if "fit" in p.name] == [f"fit.{ending}"]
    if ending == "png":
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
    else:
        assert ElementTree.fromstring(data).tag.endswith("svg")


def test_a_pipe_gets_plain_text(points: Path) -> None:
    words = [sys.executable, "-m", "deepvm.cli.main", "profile", "fit", "figure-5.csv"]
    out = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert "\x1b" not in out.stdout
    assert re.search(r"^alpha-beta +2\.9 %", out.stdout, re.MULTILINE)
    assert out.stderr == ""


def test_help_says_what_the_file_holds_and_loads_nothing_slow() -> None:
    script = (
        "import sys\nfrom deepvm.cli.main import main\n"
        "try:\n    main(['profile', 'fit', '--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'numpy', 'scipy', 'pandas', 'torch', 'matplotlib'} & set(sys.modules)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert "n,speedup or n,seconds" in " ".join(out.split())
    assert out.splitlines()[-1] == "[]"
