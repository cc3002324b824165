"""All jobs as a page for a browser, live from ``deepvm jobs serve``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from deepvm.jobs.standing import JobLine
from deepvm.reports.pages import render, render_blocks

TEMPLATE = "jobs_page.html.j2"


@dataclass(frozen=True)
class JobsPage:
    """The page of all jobs, the newest first. ``version``: of deepvm."""

    jobs: Sequence[JobLine]
    version: str = ""
    last_event: int = 0
    """This page shows no events."""

    def render(self, *, nonce: str) -> str:
        """The whole page, which keeps itself up to date."""
        return render(TEMPLATE, nonce=nonce, version=self.version, jobs=self.jobs)

    @cached_property
    def parts(self) -> dict[str, str]:
        """What may change."""
        return render_blocks(TEMPLATE, ["jobs"], jobs=self.jobs)

    def event_rows(self, after: int) -> str:
        """See :meth:`RunPage.event_rows`."""
        return ""
