"""All jobs as a page for a browser, live from ``deepvm jobs serve``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from deepvm.jobs.standing import JobLine
from deepvm.reports.jobs.listing import state_words
from deepvm.reports.pages import render, render_blocks

TEMPLATE = "jobs_page.html.j2"


@dataclass(frozen=True)
class JobsPage:
    """The page of all jobs, the newest first. ``version``: of deepvm."""

    jobs: Sequence[JobLine]
    version: str = ""

    def render(self, *, nonce: str) -> str:
        """The whole page, which keeps itself up to date."""
        return render(TEMPLATE, nonce=nonce, version=self.version, **self._data)

    @cached_property
    def parts(self) -> dict[str, str]:
        """What may change."""
        return render_blocks(TEMPLATE, ["jobs"], **self._data)

    @property
    def last_event(self) -> int:
        """This page shows no events."""
        return 0

    def event_rows(self, after: int) -> str:
        """See :meth:`RunPage.event_rows`."""
        return ""

    @property
    def _data(self) -> dict[str, Any]:
        return {"jobs": self.jobs, "state_words": state_words}
