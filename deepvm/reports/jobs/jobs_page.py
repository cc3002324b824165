"""All jobs as a page for a browser, live from ``deepvm jobs serve``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from deepvm.jobs.decisions.states import Job
from deepvm.jobs.standing import JobLine
from deepvm.reports.jobs.listing import state_words
from deepvm.reports.jobs.run_page import BADGES, money, number
from deepvm.reports.markup import Html, table, tag, visible
from deepvm.reports.page_frame import PageTemplate, beside
from deepvm.reports.plans.page_parts import wide

_ENDED = (Job.DONE.value, Job.FAILED.value, Job.STOPPED.value)


@dataclass(frozen=True)
class JobsPage:
    """The page of all jobs, the newest first. ``version``: of deepvm."""

    jobs: Sequence[JobLine]
    version: str = ""

    def render(self, *, nonce: str) -> str:
        """The whole page, which keeps itself up to date."""
        frame = PageTemplate(
            beside(__file__, "run_page.css"), beside(__file__, "run_page.js"), nonce, True
        )
        status = tag("span", "connecting ...", id="connection", role="status", class_="badge")
        content = [
            tag("nav", tag("span", "deepvm"), status, id="live", data_stream="/events"),
            tag("header", tag("h1", "Jobs")),
            tag("main", tag("div", self.parts["jobs"], id="part-jobs")),
            tag("div", id="tip", hidden=True),
            tag("footer", tag("p", f"deepvm {self.version}; all times are UTC.")),
        ]
        return frame.page("Jobs - deepvm", content)

    @cached_property
    def parts(self) -> dict[str, Html]:
        """What may change."""
        if not self.jobs:
            return {"jobs": tag("p", "No jobs yet; deepvm run job.yaml starts one.")}
        running = sum(job.state not in _ENDED for job in self.jobs)
        header = ["job", "state", "submitted", "steps", "preemptions", "machines", "paid"]
        made = table(
            f"{len(self.jobs)} jobs, {running} of them not over",
            header,
            [self._row(job) for job in self.jobs],
        )
        return {"jobs": wide(made, "Jobs")}

    @staticmethod
    def _row(job: JobLine) -> list[str]:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(job.created_s))
        return [
            tag("a", visible(job.name), href=f"/jobs/{job.name}"),
            tag("span", state_words(job), class_=f"badge {BADGES.get(job.state, 'busy')}"),
            stamp,
            number(job.steps),
            number(job.preemptions),
            number(job.machines),
            money(job.cost_usd),
        ]
