"""The command line for its tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint.memory_nodes import running
from support.command import Run
from support.document_cases import Case, make_workshop

from deepvm.cli.main import main


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """``deepvm WORDS`` in this process: its exit code, stdout and stderr; never a traceback."""

    def call(*words: object) -> tuple[int, str, str]:
        before = capsys.readouterr()  # by the test itself: no part of what the command says
        with pytest.raises(SystemExit) as end:
            main([str(w) for w in words])
        out, err = capsys.readouterr()
        for text in (*before, out, err):
            assert "Traceback" not in text and "internal error" not in text
        return int(end.value.code or 0), out, err

    return call


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all that the cases of documents read; tests run in it."""
    make_workshop(tmp_path, monkeypatch)
    return tmp_path


@pytest.fixture
def call(run: Run, workshop: Path) -> Iterator[Any]:
    """A command's stdout in one form; ``NODE`` is a memory node that runs."""
    with running(persist=workshop / "kept") as node:

        def printed(command: str, case: Case, form: str) -> str:
            words = case.words.replace("NODE", str(node.address)).split()  # type: ignore[attr-defined]
            # Before the words of a script
            code, out, err = run(*command.split(), "-o", form, *words)
            assert code == case.code, err
            return out

        yield printed
