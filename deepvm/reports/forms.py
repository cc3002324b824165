"""Answers of the Python API in other forms: documents, data frames, tables of HTML."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from deepvm.core.answer import Answer
from deepvm.core.json_types import JsonDict
from deepvm.core.training.speed import TrainingSpeed
from deepvm.documents.build import document_of
from deepvm.errors import MissingExtraError
from deepvm.planner.explain import WhyNot
from deepvm.planner.recommend import Recommendations
from deepvm.planner.regions import Comparison, compare
from deepvm.planner.sweep import Sweep
from deepvm.records import dataclass, replace
from deepvm.reports.pages import render
from deepvm.reports.performance import predictions
from deepvm.reports.plans import recommendation_documents as plans
from deepvm.reports.plans import sweeps
from deepvm.reports.simulation.simulations import csv_rows
from deepvm.services.gpus import Gpus
from deepvm.services.schemas import Table, rows_of
from deepvm.simulator.results import Results

if TYPE_CHECKING:
    import pandas

_MAX_ROWS = 50  # rows of a table of HTML; a data frame has all
_MAX_COLUMNS = 8
# Of wider tables, those that come first
_PREFERRED = (
    "rank",
    "pw_usd_per_hour",
    "policy",
    "region",
    "instance_type",
    "vm_count",
    "spot_count",
    "usd_per_hour",
    "throughput",
    "makespan_s",
    "total_cost_usd",
)


@dataclass(frozen=True)
class Views:
    """An answer's document, and its rows with their header, or the ``reason`` for none."""

    document: Callable[[], JsonDict]
    rows: Callable[[], Table]
    reason: str = ""

    def frame(self) -> "pandas.DataFrame":
        """The rows as a data frame. Raises MissingExtraError: pandas is not installed."""
        try:
            import pandas
        except ImportError:
            raise MissingExtraError("", "pandas", "pandas") from None
        header, rows = self.rows()
        return pandas.DataFrame(rows, columns=header)

    def html(self) -> str:
        """At most eight columns."""
        header, rows = ([], []) if self.reason else self.rows()
        kept = list(range(len(header)))
        if len(header) > _MAX_COLUMNS:
            first = [header.index(name) for name in _PREFERRED if name in header]
            kept = list(dict.fromkeys([*first, *kept]))[:_MAX_COLUMNS]
        return render(
            "answer.html.j2",
            reason=self.reason,
            header=[header[i] for i in kept],
            rows=[[row[i] for i in kept] for row in rows],
            limit=_MAX_ROWS,
            left_out=len(header) - len(kept),
        )


def to_frame(found: Answer) -> "pandas.DataFrame":
    """An answer as a data frame: ``found.to_frame()``.

    Raises MissingExtraError: pandas is not installed.
    """
    return found.to_frame()


# Functions of an answer: its document, and its rows if they are not those of the document
_FORMS: dict[type, tuple[Callable[..., JsonDict], Callable[..., Table] | None]] = {
    Comparison: (plans.document, plans.csv_rows),
    WhyNot: (plans.why_document, plans.why_rows),
    Sweep: (sweeps.document, partial(sweeps.rows_of, budget=float)),
    TrainingSpeed: (predictions.document, None),
    Gpus: (partial(document_of, "performance.Gpus"), None),
    Results: (partial(document_of, "simulation.SimulationRow"), lambda found: csv_rows([found])),
}


def forms_of(answer: Answer) -> Views:
    """The forms of an answer."""
    if isinstance(answer, Recommendations):
        views = forms_of(compare([answer]))
        if answer.infeasible:
            return replace(views, reason=answer.infeasible.reason)
        return views
    document, rows = next(forms for kind, forms in _FORMS.items() if isinstance(answer, kind))
    if rows is None:
        return Views(partial(document, answer), lambda: rows_of(document(answer)))
    return Views(partial(document, answer), partial(rows, answer))
