"""``deepvm profile``: measure machines, and fit what was measured."""

from __future__ import annotations

import typer

from deepvm.cli.profile.all import everything
from deepvm.cli.profile.eflops import eflops
from deepvm.cli.profile.fit import fit
from deepvm.cli.profile.saturation import saturation
from deepvm.cli.profile.scaling import scaling

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure eFLOPS, speed-up curves and network saturation on your own machines.",
)

# Lines of their own for the list of commands: the first sentences of the docstrings do not fit and would be cut.
app.command("eflops", short_help="Measure what this machine does in training.")(eflops)
app.command("scaling", short_help="Measure how much faster n VMs train than one.")(scaling)
app.command("saturation", short_help="Measure how many VMs may push to one memory node.")(saturation)
app.command("fit", short_help="Fit laws to measured speed-ups, with a band.")(fit)
app.command("all", short_help="Measure all of it, into one file to bring home.")(everything)
