"""Publishable files: one per suite, which must agree with each run's own files."""

from __future__ import annotations

import re
from collections.abc import Sequence
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
    """By run: what is missing, damaged or wrong in a file; empty if nothing is.

    Raises DataError: records are damaged.
    """
    found = {run.folder.name: ("", "") for run in runs}
    finals = {run.folder.name: _final(run) for run in runs}
    for suite in suites_of((run, False) for run in runs):
        name = publishable(suite, "json")
        names = [cost.run for costs in suite.variants.values() for cost in costs]
        try:
            document = read_document(out / name)
            published = {row["run"]: row["final_sha256"] for row in document["runs"]}
        except MissingFileError:
            found.update(
                {
                    run: (f"{name} is missing; {_AGAIN}", found[run][1])
                    for run in names
                    if not found[run][0]
                }
            )
            continue
        except (DataError, KeyError, TypeError):
            found.update(
                {
                    run: (f"{name}: damaged; {_AGAIN}", found[run][1])
                    for run in names
                    if not found[run][0]
                }
            )
            continue
        for run in names:
            if (run not in published or published[run] != finals[run]) and not found[run][1]:
                found[run] = (found[run][0], f"{name} is of other runs; {_AGAIN}")
    return found


def _final(run: Records) -> str | None:
    try:
        return run.final
    except DataError:
        return None
