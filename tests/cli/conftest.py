"""The command line for its tests."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint.memory_nodes import running
from support.command import Run
from support.document_cases import Case, make_workshop

from deepvm.cli.app import Entry, load
from deepvm.cli.main import main

_COMMANDS: dict[tuple[str, int], tuple[Any, Any]] = {}


def _load(entry: Entry) -> Any:
    """A command, made once of what its module holds now."""
    held = getattr(import_module(f"deepvm.cli.{entry.module}"), entry.attribute)
    key = entry.name, id(held)
    if key not in _COMMANDS:
        _COMMANDS[key] = held, load(entry)
    return _COMMANDS[key][1]


@pytest.fixture(autouse=True)
def _commands_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the time of a command goes into making its options."""
    monkeypatch.setattr("deepvm.cli.app.load", _load)


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


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with all that the cases of documents read; a module's tests run in it."""
    folder = tmp_path_factory.mktemp("workshop")
    with pytest.MonkeyPatch.context() as patch:
        make_workshop(folder, patch)
        yield folder


@pytest.fixture(scope="module")
def node_address(workshop: Path) -> Iterator[str]:
    """Where a memory node listens."""
    with running(persist=workshop / "kept") as node:
        yield str(node.address)  # type: ignore[attr-defined]


@pytest.fixture
def call(run: Run, workshop: Path, request: pytest.FixtureRequest) -> Any:
    """A command's stdout in one form; ``NODE`` is a memory node that runs."""

    def printed(command: str, case: Case, form: str) -> str:
        words = case.words
        if "NODE" in words:
            words = words.replace("NODE", request.getfixturevalue("node_address"))
        # Before the words of a script
        code, out, err = run(*command.split(), "-o", form, *words.split())
        assert code == case.code, err
        return out

    return printed
