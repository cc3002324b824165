"""What people see on terminals of 80, 100 and 140 columns; ``WRITE_GOLDEN=1`` writes it anew."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command import Run
from support.effort import THOROUGH, sampled
from support.places import GOLDEN_FOLDER

from deepvm.reports.terminal import pieces
from deepvm.services import recommend

MODEL = ["--pw", "30", "--model", "llama-8b", "--method", "fsdp", "--tokens", "2B"]
COMMANDS = {
    "recommend": ["recommend", "--pw", "3"],
    "recommend-model": ["recommend", *MODEL],
    "recommend-why": ["recommend", *MODEL, "--why"],
    "recommend-paper": ["recommend", "--pw", "3", "--catalog", "paper"],
    "recommend-infeasible": ["recommend", "--pw", "0.05"],
    "gpus": ["gpus", "--model", "llama-8b", "--method", "lora"],
    "predict": [
        "performance",
        "predict",
        "--model",
        "llama-8b",
        "--method",
        "fsdp",
        "--gpu",
        "H100",
        "--gpus",
        "64",
    ],
    "sweep": ["sweep", "--pw", "1:3:1"],
    "catalog-status": ["catalog", "status"],
}
WIDTHS = (80, 100, 140)
AGE = re.compile(r"\d(?=\d* (?:days|d)\b|\d*\s+days old|[\d.]* years old)")
"""Digits of an age: it grows with every day, its length seldom does."""


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEEPVM_CACHE_DIR", "/no/cache")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "dumb")


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request is answered once: what changes with the width is how it is shown."""
    answers: dict[str, Any] = {}
    real: Callable[..., Any] = recommend.recommend_in

    def remembered(catalogs: Any, request: Any, **options: Any) -> Any:
        key = f"{[catalog.name for catalog in catalogs]} {request}"
        if key not in answers:
            answers[key] = real(catalogs, request, **options)
        return answers[key]

    monkeypatch.setattr(recommend, "recommend_in", remembered)


def shown(run: Run, words: list[str], width: int) -> str:
    """Both streams of a command on a terminal of this width."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        for stream in (sys.stdout, sys.stderr):
            patch.setattr(stream, "isatty", lambda: True, raising=False)
        code, out, err = run(*words)
    assert code in (0, 3)
    return out + err


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_shown(name: str, run: Run, planned: None) -> None:
    parts = [f"--- {width} columns ---\n{shown(run, COMMANDS[name], width)}" for width in WIDTHS]
    found = f"$ deepvm {' '.join(COMMANDS[name])}\n\n" + "\n".join(
        AGE.sub("N", part) for part in parts
    )
    path = GOLDEN_FOLDER / "terminals" / f"{name}.txt"
    if os.environ.get("WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(found)
    assert found == path.read_text()


@pytest.mark.parametrize("name", sampled(COMMANDS))
def test_no_line_is_too_wide_and_nothing_is_cut(name: str, run: Run, planned: None) -> None:
    whole = pieces(shown(run, COMMANDS[name], 100_000))
    for width in range(60, 161, 1 if THOROUGH else 10):
        lines = shown(run, COMMANDS[name], width).splitlines()
        for line in lines:
            whole_command = line.startswith("  deepvm ")  # to be copied
            assert len(line) <= width or len(pieces(line)) == 1 or whole_command, (width, line)
        text = re.sub(r"Left out at (?s:.)*?'\.", "", "\n".join(lines))
        if re.search(r"^(#|cluster|GPU|policy|region): ", text, re.MULTILINE):
            assert width < 80, "a list, no table"
        else:
            assert not [piece for piece in pieces(text) if piece not in whole], width


def test_the_answer_is_one_screen(run: Run, planned: None) -> None:
    for name in ("recommend", "recommend-model"):
        *lines, _note = shown(run, COMMANDS[name], 100).splitlines()
        assert len(lines) <= 15 and max(map(len, lines)) <= 78


def test_the_help_is_one_page(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    lines = run("recommend", "--help")[1].splitlines()
    assert len(lines) <= 60 and max(map(len, lines)) <= 100


def test_notes_are_one_short_line_unless_asked_for(run: Run) -> None:
    for name in ("recommend", "recommend-model", "gpus", "sweep"):
        (note, *others) = [
            t for t in run(*COMMANDS[name])[2].splitlines() if not t.startswith("Note: Prices")
        ]
        assert not others and len(note) <= 100
        assert note.startswith("Note: no AWS credentials: us-east-1 prices are of 20")
        assert note.endswith("; see 'deepvm doctor'")
    err = run(*COMMANDS["recommend-why"])[2]
    assert "the default: no --region" in err and "the snapshot of 2026-08-10 are used" in " ".join(
        err.split()
    )
    assert run(*COMMANDS["recommend"], "--offline")[2].startswith(
        "Note: offline: us-east-1 prices are of 20"
    )
    assert (
        run(*COMMANDS["recommend"], "--prices", "snapshot")[2]
        == "Note: region us-east-1 (the default)\n"
    )
    assert run(*COMMANDS["recommend"], "--prices", "snapshot", "-r", "us-east-1")[2] == ""


def test_errors_keep_to_the_width_and_commands_stay_whole(run: Run) -> None:
    for words, kept in (
        (["recommend", "--pw", "3", "--gpu", "a100-80gb"], "--gpu A100 --gpu-memory-min 80GB?"),
        (["recomend", "--pw", "3"], "'recommend'?"),
        (["recommend", "--pw", "3", "--quota", "64"], '{"schema_version"'),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", "60")
            patch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
            code, _, err = run(*words)
        assert code == 2 and kept in err
        assert all(len(line) <= 60 or len(pieces(line)) == 1 for line in err.splitlines())


@pytest.mark.parametrize(
    ("environ", "color"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, True),
        ({"TERM": "xterm", "FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
    ids=lambda e: "-".join(f"{k}={v}" for k, v in e.items()) if isinstance(e, dict) else "",
)
def test_colour_marks_the_first_row_warnings_and_errors(
    environ: dict[str, str], color: bool, run: Run, planned: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = shown(run, COMMANDS["recommend"], 100)
    painted = [line for line in found.splitlines() if "\x1b[" in line]
    if not color:
        assert painted == []
        return
    (first,) = painted
    assert first.startswith("\x1b[1;32mfastest") and first.endswith("\x1b[0m")
    late = shown(run, [*COMMANDS["recommend"], "--time-limit", "0.000001"], 100).splitlines()
    warned = [line for line in late if "\x1b[33m" in line]
    assert warned and all(line.startswith("\x1b[33m! ") for line in warned)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert (
        run("recommend", "--price", "3")[2]
        .rpartition("\n\n")[2]
        .startswith("\x1b[1;31mError:\x1b[0m No such")
    )


def test_a_pipe_has_no_colour_unless_it_is_forced(
    run: Run, planned: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b" not in run(*COMMANDS["recommend"])[1]
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[1;32mfastest" in run(*COMMANDS["recommend"])[1]
    assert "\x1b" not in run(*COMMANDS["recommend"], "-o", "json")[1]
