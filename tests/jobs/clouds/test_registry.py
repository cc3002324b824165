"""Texts name the clouds of the registry."""

from __future__ import annotations

import re

from support.places import ROOT

from deepvm.cli.parameters import CLOUDS as NAMED
from deepvm.core.spelling import joined
from deepvm.jobs.clouds.registry import CLOUDS, clouds_that_preempt


def test_help_of_run() -> None:
    assert joined(CLOUDS, "or") == NAMED


def test_help_of_inject() -> None:
    from deepvm.cli.jobs.jobs_group import inject

    assert f"on the clouds {joined(clouds_that_preempt())}." in str(inject.__doc__)


def test_page_of_the_job_file() -> None:
    text = (ROOT / "docs/internals/reference/run-file.md").read_text(encoding="utf-8")
    assert re.findall(r"^cloud: local +# (.+)$", text, re.M) == [joined(CLOUDS, "or")]
    assert re.findall(r"^inject: .*# (.+) only$", text, re.M) == [joined(clouds_that_preempt())]
