"""An orchestrator that breaks a promise on purpose fails that promise's gate, and no other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.jobs.kills import MUTATIONS
from support.lab_jobs import matrix_of, run_job

from deepvm.lab.launchers.forkserver import Forkserver

pytestmark = pytest.mark.slow  # whole jobs


@pytest.mark.parametrize(
    ("mutation", "failures", "more", "gates", "why"),
    [
        ("older-version", {"loss": [70]}, {}, {"stories"}, "attempt 1 "),
        (
            "no-notice",
            {"notice": {"at": [70], "seconds": 2}},
            {"steps": 600},
            {"stories"},
            "was announced in time",
        ),
        (
            "two-generations",
            {"loss": [70]},
            {"min_world": 1, "steps": 1200},
            {"stories", "leftovers"},
            "alongside attempt",
        ),
    ],
)
def test_a_broken_promise_is_noticed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mutation: str,
    failures: dict[str, Any],
    more: dict[str, Any],
    gates: set[str],
    why: str,
) -> None:
    # Multiprocessing has one for all tests: it must not be born with the mutation
    Forkserver().ready()
    monkeypatch.setenv("JOBS_MUTATION", mutation)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(MUTATIONS), os.environ.get("PYTHONPATH", "")])
    )
    found = run_job(matrix_of(failures, **more), tmp_path)
    assert set(found.failed) == gates, found.failed
    assert any(why in reason for reason in found.failed.values()), found.failed
