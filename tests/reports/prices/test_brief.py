"""The one line about prices that are as usual."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

from deepvm.catalog.store import load_catalog
from deepvm.core.cluster.instances import Catalog
from deepvm.core.cluster.provenance import Origin, Provenance
from deepvm.reports.plans.sources import brief_line


def catalog(
    region: str, days: list[int], why: str = "", usual: tuple[str, ...] = ("missing",)
) -> Catalog:
    origins = (
        *(Origin("spot", "cache", datetime(2026, 8, day, tzinfo=timezone.utc)) for day in days),
        Origin("specs", "cache", datetime(2020, 1, 1, tzinfo=timezone.utc)),
    )
    about = Provenance(origins=origins, usual=usual, not_asked=why)
    return replace(load_catalog("paper"), region=region, provenance=about)


NOBODY = "no AWS credentials were found"


def test_the_line() -> None:
    for catalogs, line in [
        (
            [catalog("us-east-1", [3, 1, 2], NOBODY)],
            (
                "no AWS credentials: us-east-1 prices are of 2026-08-01 to 2026-08-03; see 'deepvm"
                " doctor'"
            ),
        ),
        ([catalog("us-east-1", [3], "offline")], "offline: us-east-1 prices are of 2026-08-03"),
        (
            [catalog(r, [3], NOBODY if r == "b" else "", ()) for r in "abcde"],
            "no AWS credentials: a, b, c and 2 more prices are of 2026-08-03; see 'deepvm doctor'",
        ),
        (
            [catalog("x", [1], usual=("region x (the default: no --region)",))],
            "region x (the default)",
        ),
        (
            [catalog("x", [1], usual=()), catalog("y", [1], usual=("region y (mine)",))],
            "region y (mine)",
        ),
    ]:
        assert brief_line(catalogs) == line
