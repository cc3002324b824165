"""Publishable files: one per suite, which must agree with each run's own files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from deepvm.errors import DataError
from deepvm.lab.records import MissingFileError, Records, read_document
from deepvm.lab.results import SuiteResult, suites_of

_AGAIN = "'deepvm lab report' writes it again"


def publishable(suite: SuiteResult, form: str) -> str:
    """The name of a suite's file."""
    name = re.sub(r"[^a-z0-9-]+", "-", f"{suite.dataset}-{suite.model}-{suite.failure}")
    return f"{name}_publishable.{form}"


def published_verdicts(out: Path, runs: Sequence[Records]) -> dict[str, tuple[str, str]]:
    """By run: what is missing or damaged, and what is wrong in a file; empty if nothing is.

    Raises DataError: records are damaged.
    """
    verdicts = {run.folder.name: ("", "") for run in runs}
    finals = {run.folder.name: _final(run) for run in runs}
    for suite in suites_of((run, False) for run in runs):
        name = publishable(suite, "json")
        missing, published = _published(out / name)
        for cost in suite.costs:
            wrong = ""
            if not missing and published.get(cost.run, "") != finals[cost.run]:
                wrong = f"{name} is of other runs; {_AGAIN}"
            if not any(verdicts[cost.run]):
                verdicts[cost.run] = missing, wrong
    return verdicts


def _published(path: Path) -> tuple[str, Mapping[str, str | None]]:
    """What is missing, and the final parameters of each run."""
    try:
        return "", {row["run"]: row["final_sha256"] for row in read_document(path)["runs"]}
    except MissingFileError:
        return f"{path.name} is missing; {_AGAIN}", {}
    except (DataError, KeyError, TypeError):
        return f"{path.name}: damaged; {_AGAIN}", {}


def _final(run: Records) -> str | None:
    try:
        return run.final
    except DataError:
        return None
