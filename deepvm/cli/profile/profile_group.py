"""``deepvm profile``: measure machines, and fit what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from deepvm.cli.output import TableJson, check_plot, print_as
from deepvm.cli.parameters import arg, group, opt
from deepvm.cli.profile.all import everything
from deepvm.cli.profile.measure import eflops, saturation, scaling

app = group("Measure eFLOPS, speed-up curves and network saturation on your own machines.")

# Lines of their own for the list of commands: the first sentences of the docstrings do not fit and would be cut.
app.command("eflops", short_help="Measure the training speed of this machine.")(eflops)
app.command("scaling", short_help="Measure how much faster n VMs train than one.")(scaling)
app.command("saturation", short_help="Measure how many VMs may push to one memory node.")(saturation)


@app.command(short_help="Fit speed-up models to measurements, with a band.")
def fit(
    points: Annotated[str, arg("POINTS", "CSV with n,speedup or n,seconds, or JSON of 'profile scaling'.")],
    up_to: Annotated[int | None, opt("Largest n to extrapolate to; default: the largest measured.", "N")] = None,
    plot: Annotated[str, opt("Also draw points, fits and band, as .png or .svg.", "FILE")] = "",
    output: TableJson = "table",
) -> None:
    """Fit speed-ups: logistic, Amdahl, USL and alpha-beta (ring), which is best, with a band and what to measure next.

    An n may be measured several times; seconds are those of the same work on n VMs.

    Example: deepvm profile fit points.csv --up-to 32 --plot fit.png
    """
    check_plot(plot)
    from deepvm.profiling.fit.speedup_fit import fit_curve
    from deepvm.profiling.fit.speedup_points import read_points
    from deepvm.reports.profiling.fits import print_fit

    found, name = fit_curve(read_points(points), up_to=up_to), Path(points).name
    print_as(output, lambda: print_fit(found, name), found.document)
    if plot:
        from deepvm.reports.profiling.profile_pictures import draw_fit

        draw_fit(found, Path(plot), name=name)


app.command("all", short_help="Measure all of it, into one file to bring home.")(everything)
