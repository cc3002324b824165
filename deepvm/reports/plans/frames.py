"""Answers as pandas data frames, for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deepvm.errors import MissingExtraError
from deepvm.planner.recommend import Recommendations
from deepvm.planner.regions import Comparison, compare
from deepvm.planner.sweep import SweepRow
from deepvm.reports.plans import sweeps
from deepvm.reports.plans.recommendation_documents import csv_rows

if TYPE_CHECKING:
    import pandas


def to_frame(found: Recommendations | Comparison | Sequence[SweepRow]) -> pandas.DataFrame:
    """What :func:`deepvm.recommend` or :func:`deepvm.sweep` returns, as the rows of ``-o csv``; unknown is missing.

    Raises:
        MissingExtraError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise MissingExtraError("", "pandas", "pandas") from None
    if isinstance(found, (Recommendations, Comparison)):
        header, rows = csv_rows(found if isinstance(found, Comparison) else compare([found]))
        return pandas.DataFrame(rows, columns=header).assign(estimated=lambda frame: frame["estimated"] == "true")
    frame = pandas.DataFrame(sweeps.csv_rows(found), columns=list(sweeps.header(found)))
    return frame.assign(pw=frame["pw"].astype(float))
