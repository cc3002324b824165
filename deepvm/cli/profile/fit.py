"""``deepvm profile fit``: what measured speed-ups say, and how far it may be trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepvm.cli.output import TableJson, check_plot, print_document


def fit(
    points: Annotated[
        str,
        typer.Argument(
            metavar="POINTS",
            help="CSV with the columns n,speedup or n,seconds, repeats allowed; or what `deepvm profile scaling -o "
            "json` printed.",
        ),
    ],
    up_to: Annotated[
        int | None,
        typer.Option(metavar="N", help="The largest n to use the curve for.  [default: the largest measured]"),
    ] = None,
    plot: Annotated[str, typer.Option(metavar="FILE", help="Draw points, laws and band as well: a .png or .svg.")] = "",
    output: TableJson = "table",
) -> None:
    """Fit speed-ups: logistic, Amdahl, USL and alpha-beta (ring), which is best, with a band and what to measure next.

    Seconds are those of the same work on n VMs.

    Example: deepvm profile fit points.csv --up-to 32 --plot fit.png
    """
    check_plot(plot)
    from deepvm.profiling.fit.speedup_fit import fit_curve
    from deepvm.profiling.fit.speedup_points import read_points

    found = fit_curve(read_points(points), up_to=up_to)
    if output == "json":
        print_document(found.document())
    else:
        from deepvm.reports.profiling.fits import print_fit

        print_fit(found, Path(points).name)
    if plot:
        from deepvm.reports.pictures import save_picture
        from deepvm.reports.profiling.fits import fit_figure

        save_picture(fit_figure(found, name=Path(points).name), Path(plot))
