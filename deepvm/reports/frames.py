"""Answers as pandas data frames, for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deepvm.errors import MissingExtraError
from deepvm.planner.recommend import Recommendations
from deepvm.planner.regions import Comparison, compare
from deepvm.planner.sweep import SweepRow

if TYPE_CHECKING:
    import pandas


def to_frame(found: Recommendations | Comparison | Sequence[SweepRow]) -> pandas.DataFrame:
    """The rows that ``-o csv`` prints, as a data frame; what is unknown is missing.

    Args:
        found: what :func:`deepvm.recommend` or :func:`deepvm.sweep` returns.

    Raises:
        MissingExtraError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise MissingExtraError("", "pandas", "pandas") from None
    if isinstance(found, (Recommendations, Comparison)):
        from deepvm.reports.plans.recommendation_documents import csv_rows

        header, rows = csv_rows(found if isinstance(found, Comparison) else compare([found]))
        return pandas.DataFrame(rows, columns=header).assign(estimated=lambda frame: frame["estimated"] == "true")
    from deepvm.reports.plans import sweeps

    frame = pandas.DataFrame(sweeps.csv_rows(found), columns=list(sweeps.header(found)))
    return frame.assign(pw=frame["pw"].astype(float))
