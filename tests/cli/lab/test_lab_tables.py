"""What ``deepvm lab`` prints, of a small folder that is written by hand.

Kept in ``tests/golden/lab-*.txt``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command import Run
from support.golden import check_golden
from support.lab.made_folder import make, publish

WRONG, UNFINISHED = "tokens-gpt-tiny-late-ovl-s1", "tokens-gpt-tiny-base-deepvm-s2"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("bad", "code"), [(False, 0), (True, 1)])
def test_check(run: Run, folder: Path, bad: bool, code: int) -> None:
    make(folder / "lab", wrong={WRONG} if bad else (), unfinished={UNFINISHED} if bad else ())
    publish(folder / "lab")
    found, out, err = run("lab", "check", "lab")
    assert (found, err) == (code, "")
    check_golden(f"lab-check{'-bad' if bad else ''}.txt", out)


def test_report(run: Run, folder: Path) -> None:
    make(folder / "lab", wrong={WRONG}, unfinished={UNFINISHED})
    code, out, err = run("lab", "report", "lab")
    assert (code, err) == (0, "Note: full report: lab/report.html\n")
    check_golden("lab-report.txt", out)


def test_list(run: Run) -> None:
    code, out, err = run("lab", "list")
    assert (code, err) == (0, "")
    check_golden("lab-list.txt", out)
