"""Answers of the Python API in other forms: documents, data frames, tables of HTML."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from deepvm.core.answer import Answer
from deepvm.errors import MissingExtraError
from deepvm.reports.pages import render

if TYPE_CHECKING:
    import pandas

    from deepvm.core.training.speed import TrainingSpeed
    from deepvm.planner.explain import WhyNot
    from deepvm.planner.recommend import Recommendations
    from deepvm.planner.regions import Comparison
    from deepvm.planner.sweep import Sweep
    from deepvm.services.gpus import Gpus
    from deepvm.simulator.results import Results

Table = tuple[list[str], list[list[Any]]]
_MAX_ROWS = 50  # rows of a table of HTML; a data frame has all


@dataclass(frozen=True)
class Views:
    """An answer's document, and its rows with their header, made on each call.

    ``reason``: why there are no rows, if so.
    """

    document: Callable[[], dict[str, Any]]
    rows: Callable[[], Table]
    reason: str = ""

    def frame(self) -> pandas.DataFrame:
        """The rows as a data frame. Raises MissingExtraError: pandas is not installed."""
        try:
            import pandas
        except ImportError:
            raise MissingExtraError("", "pandas", "pandas") from None
        header, rows = self.rows()
        return pandas.DataFrame(rows, columns=header)

    def html(self) -> str:
        """The first rows as a plain table; cells are escaped, as text of users is in them."""
        header, rows = ([], []) if self.reason else self.rows()
        return render(
            "answer.html.j2", reason=self.reason, header=header, rows=rows, limit=_MAX_ROWS
        )


def to_frame(found: Answer) -> pandas.DataFrame:
    """An answer as a data frame: ``found.to_frame()``.

    Raises MissingExtraError: pandas is not installed.
    """
    return found.to_frame()


def forms_of(answer: Answer) -> Views:
    """The forms of an answer."""
    kind = next(c.__name__ for c in type(answer).__mro__ if c.__name__ in _KINDS)
    return _KINDS[kind](answer)


def _recommendations(found: Recommendations) -> Views:
    from deepvm.planner.regions import compare

    reason = ""
    if found.infeasible:
        reason = found.infeasible.reason
    return replace(_comparison(compare([found])), reason=reason)


def _comparison(found: Comparison) -> Views:
    from deepvm.reports.plans import recommendation_documents as report

    return Views(lambda: report.document(found), lambda: report.csv_rows(found))


def _why_not(found: WhyNot) -> Views:
    from deepvm.reports.plans import recommendation_documents as report

    return Views(lambda: report.why_document(found), lambda: report.why_rows(found))


def _sweep(found: Sweep) -> Views:
    from deepvm.reports.plans import sweeps as report

    return Views(lambda: report.document(found), lambda: report.rows_of(found, float))


def _prediction(found: TrainingSpeed) -> Views:
    from deepvm.reports.performance.predictions import document
    from deepvm.services.schemas import rows_of

    return Views(lambda: document(found), lambda: rows_of(document(found)))


def _gpus(found: Gpus) -> Views:
    from deepvm.documents.build import document_of
    from deepvm.services.schemas import rows_of

    document = partial(document_of, "performance.Gpus", found)
    return Views(document, lambda: rows_of(document()))


def _results(found: Results) -> Views:
    from deepvm.documents.build import document_of
    from deepvm.reports.simulation.simulations import csv_rows

    return Views(partial(document_of, "simulation.SimulationRow", found), lambda: csv_rows([found]))


_KINDS: dict[str, Callable[[Any], Views]] = {
    "Recommendations": _recommendations,
    "Comparison": _comparison,
    "WhyNot": _why_not,
    "Sweep": _sweep,
    "TrainingSpeed": _prediction,
    "Gpus": _gpus,
    "Results": _results,
}
"""By the name of the class: an answer's module need not be loaded to look it up."""
