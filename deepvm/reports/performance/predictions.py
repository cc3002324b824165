"""A predicted speed, and how good predictions are, for programs."""

from collections.abc import Iterator

from deepvm.catalog.published.rows import PublishedCheck
from deepvm.core.json_types import JsonDict
from deepvm.core.training.speed import NO_FIT, TrainingSpeed
from deepvm.core.units import format_short
from deepvm.documents.build import With, document_of
from deepvm.reports.text import print_text
from deepvm.services.schemas import Table, rows_as

_ROUGH = 0.3  # Half width of an interval from where on a prediction is called rough


def document(speed: TrainingSpeed) -> JsonDict:
    """The object of ``performance predict -o json`` for the first size of a speed."""
    return document_of("performance.Prediction", With(speed, doubts=list(doubts(speed))))


def doubts(speed: TrainingSpeed) -> Iterator[str]:
    """Warnings, the most important first."""
    yield from speed.doubts(0)
    interval = speed.interval
    if interval.relative > _ROUGH:
        ends = f"{format_short(interval.low)} and {format_short(interval.high)}"
        yield f"rough: four runs in five lie between {ends}"


def print_prediction(speed: TrainingSpeed) -> None:
    """A few lines on stdout; that a model does not fit comes first."""
    # Left out: the template has it above the figures, which mean little then
    others = [text for text in doubts(speed) if not text.startswith(NO_FIT)]
    print_text("performance_predict", speed=speed, doubts=others)


def check_rows(check: PublishedCheck) -> Table:
    """Header and a row for each group of published runs."""
    sets = {
        "gpu": check.gpus,
        "model": check.models,
        "source": check.sources,
        "unseen model": check.unseen,
        "": (check.total,),
    }
    rows = [
        {"by": by, **document_of("performance.Errors", g)}
        for by, groups in sets.items()
        for g in groups
    ]
    return rows_as("performance.Errors", rows, "by")
