"""Machine-readable output: JSON, YAML and CSV of plain data; pandas data frames of answers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from deepvm.errors import MissingExtraError

if TYPE_CHECKING:
    import pandas

    from deepvm.planner.recommend import Recommendations
    from deepvm.planner.regions import Comparison
    from deepvm.planner.sweep import SweepRow


def to_json(document: Any) -> str:
    """Indented JSON with a newline at the end; NaN and infinities are refused, because JSON has no such numbers."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_yaml(document: Any) -> str:
    """Block-style YAML with the keys in the order of the document."""
    import yaml

    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, default_flow_style=False)
    return text


def to_csv(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """RFC 4180 rows with plain newlines; None becomes an empty field, floats keep every digit."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


def to_frame(found: Recommendations | Comparison | Sequence[SweepRow]) -> pandas.DataFrame:
    """What :func:`deepvm.recommend` or :func:`deepvm.sweep` returns, as the rows of ``-o csv``; unknown is missing.

    Raises:
        MissingExtraError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise MissingExtraError("", "pandas", "pandas") from None
    from deepvm.planner.recommend import Recommendations
    from deepvm.planner.regions import Comparison, compare

    if isinstance(found, (Recommendations, Comparison)):
        from deepvm.reports.plans.recommendation_documents import csv_rows

        header, rows = csv_rows(found if isinstance(found, Comparison) else compare([found]))
        return pandas.DataFrame(rows, columns=header).assign(estimated=lambda frame: frame["estimated"] == "true")
    from deepvm.reports.plans import sweeps

    frame = pandas.DataFrame(sweeps.csv_rows(found), columns=list(sweeps.header(found)))
    return frame.assign(pw=frame["pw"].astype(float))
