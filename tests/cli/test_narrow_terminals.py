"""Every table on terminals of 80, 60 and 40 columns: columns are left out and named, nothing is
cut.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.command import Run
from support.effort import sampled
from support.lab.made_folder import make, publish
from support.places import GOLDEN_FOLDER
from support.simulator.trace_files import write

from deepvm.reports import terminal
from deepvm.reports.terminal import pieces

GOLDEN = GOLDEN_FOLDER
JOB = """
name: calm
steps: 400
step_s: 3
save_s: 10
backup_s: 20
allocation_s: [60, 120]
preparation_s: 100
grace_s: 20
mttp_s: 2000
spot_usd_per_hour: 2.3
on_demand_usd_per_hour: 6.2
"""
WORK = ["--pw", "3", "--catalog", "paper", "--work", "100", "--mttp", "12h"]
COMMANDS = {
    "simulate": [
        "simulate",
        "--job",
        "job.yaml",
        "--compare",
        "static:10,adaptive",
        "--runs",
        "20",
    ],
    "simulate-sweep": [
        "simulate",
        "--job",
        "job.yaml",
        "--sweep",
        "mttp=1h:3h:1h",
        "--sweep",
        "save=5:10:5",
    ],
    "simulate-deadline": ["simulate", "--job", "job.yaml", "--deadline", "3h", "--runs", "20"],
    "sweep": ["sweep", "--pw", "0:3:1", "--catalog", "simulated"],
    "sweep-work": ["sweep", *WORK[:1], "1:3:1", *WORK[2:]],
    "recommend": ["recommend", *WORK[:4]],
    "recommend-wide": ["recommend", *WORK[:4], "-o", "wide"],
    "recommend-work": ["recommend", *WORK],
    "recommend-simulate": [
        "recommend",
        *WORK,
        "--simulate",
        "20",
        "--architecture",
        "single-anchor",
    ],
    "explain": ["explain", "g5.xlarge", *WORK],
    "catalog-list": ["catalog", "list"],
    "catalog-show": ["catalog", "show", "paper"],
    "catalog-show-wide": ["catalog", "show", "paper", "-o", "wide"],
    "catalog-diff": ["catalog", "diff", "paper", "changed.csv"],
    "traces-show": ["traces", "show", "a.json", "b.json"],
    "traces-fit": ["traces", "fit", "a.json", "b.json", "--each"],
    "traces-replay": ["traces", "replay", "a.json", "--save", "2.55,19.5,60,120,240"],
    "traces-deadline": [
        "traces",
        "deadline",
        "a.json",
        "--work",
        "1h",
        "--slack",
        "0.5",
        "--starts",
        "5",
    ],
    "profile-fit": ["profile", "fit", "curve.csv"],
    "config-show": ["config", "show"],
    "reproduce": ["reproduce", "deepvm"],
    "lab-list": ["lab", "list"],
    "lab-check": ["lab", "check", "lab"],
    "lab-report": ["lab", "report", "lab"],
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("narrow") / "lab"
    make(folder)
    publish(folder)
    return folder


@pytest.fixture
def files(tmp_path: Path, lab: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    (tmp_path / "job.yaml").write_text(JOB)
    ups = [1] * 5 + ([1] * 9 + [0] + [1] * 3 + [0] * 2 + [1] * 30 + [0]) * 4
    write(tmp_path / "a.json", ups)
    write(tmp_path / "b.json", ups[::-1])
    (tmp_path / "curve.csv").write_text("n,speedup\n1,1\n2,1.8\n4,3.1\n8,4.4\n16,5.1\n32,5.2\n")
    shutil.copytree(lab, tmp_path / "lab")
    assert run("catalog", "convert", "paper", "changed.csv")[0] == 0
    text = (tmp_path / "changed.csv").read_text()
    (tmp_path / "changed.csv").write_text(
        text.replace("0.526", "0.6").replace("g5.xlarge", "g5.other")
    )
    return tmp_path


def narrow(width: int, run: Run, words: list[str]) -> str:
    """What a terminal of this width shows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        patch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        code, out, _ = run(*words)
    assert code == 0
    return out


@pytest.mark.parametrize("name", sampled(COMMANDS))
def test_a_table_stays_a_table(name: str, run: Run, files: Path) -> None:
    """No line is wider than the terminal, no cell is cut, and what is left out is said."""
    whole = run(*COMMANDS[name])[1]
    words = set(whole.split())
    for width in (80, 60, 40):
        shown = narrow(width, run, COMMANDS[name])
        for line in shown.splitlines():
            assert len(line) <= width or len(pieces(line)) == 1, line
        for word in re.sub(r"Left out at (?s:.)*?'\.", "", shown).split():
            assert word in words, (width, word)
        assert not re.search(r"^(type|#|policy|law|trace|setting|name): ", shown, re.MULTILINE), (
            shown
        )
    assert "Left out" not in whole and "Left out" not in narrow(400, run, COMMANDS[name])


SNAPSHOT = ["recommend", "--pw", "3", "--prices", "snapshot", "--model", "none", "-o", "wide"]
SIMULATED = ["sweep", "--pw", "3", *WORK[2:], "--simulate", "20", "--policy", "deepvm"]


@pytest.mark.parametrize(
    ("words", "pairs"),
    [
        (SNAPSHOT, [("VM interrupted", "cluster interrupted")]),
        (SIMULATED, [("VM type", "VMs"), ("time 95 %", "VMs"), ("cost 95 %", "$/h")]),
        (COMMANDS["sweep-work"], [("VM type", "VMs")]),
        (COMMANDS["sweep"], [("VM type", "VMs")]),
    ],
)
def test_what_is_misread_alone_is_never_shown_alone(
    words: list[str],
    pairs: list[tuple[str, str]],
    run: Run,
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A share of one VM without that of the cluster, a type without the number of VMs ..., whatever
    the width.
    """
    asked: list[Sequence[terminal.Column]] = []
    real = terminal.fitting

    def fitting(columns: Sequence[terminal.Column], width: int) -> list[terminal.Column]:
        asked.append(columns)
        return real(columns, width)

    monkeypatch.setattr(terminal, "fitting", fitting)
    narrow(80, run, words)
    for first, then in pairs:
        assert seen_alone(asked[0], first, then, real) == {True, False}


def seen_alone(
    columns: Sequence[terminal.Column], first: str, then: str, fitting: Callable[..., Any]
) -> set[bool]:
    """Whether the first of two columns is shown, at all widths; never without the other."""
    seen = set()
    for width in range(40, 201):
        kept = fitting(columns, width)
        assert kept
        heads = [column.header for column in kept]
        alone, other = (
            next((h for h in heads if h.startswith(name)), "") for name in (first, then)
        )
        assert other or not alone, (width, heads)
        seen.add(bool(alone))
        if other.startswith("cluster"):
            place = heads.index(other)
            widths = terminal.widths_of(kept, width)
            assert widths is not None
            assert widths[place] >= max(map(len, kept[place].cells))
    return seen


def test_at_80_columns(run: Run, files: Path) -> None:
    """``WRITE_GOLDEN=1`` writes it anew."""
    shown = [
        "simulate",
        "simulate-sweep",
        "sweep",
        "sweep-work",
        "recommend-wide",
        "recommend-work",
        "catalog-show-wide",
    ]
    parts = ((" ".join(COMMANDS[name]), narrow(80, run, COMMANDS[name])) for name in shown)
    # How old prices are changes from day to day, and with it where lines end.
    found = "\n".join(f"$ deepvm {words}\n{text.partition('Prices:')[0]}" for words, text in parts)
    path = GOLDEN / "narrow-80.txt"
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(found)
    assert found == path.read_text()
