"""The command line for its tests."""

from __future__ import annotations

import pytest
from support.command import Run

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
