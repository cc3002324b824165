"""``deepvm profile``: measure machines, and fit what was measured."""

from __future__ import annotations

import typer

from deepvm.cli.profile_all import everything
from deepvm.cli.profile_eflops import eflops
from deepvm.cli.profile_fit import fit
from deepvm.cli.profile_saturation import saturation
from deepvm.cli.profile_scaling import scaling

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure eFLOPS, speed-up curves and network saturation on your own machines.",
)

app.command("eflops")(eflops)
app.command("scaling")(scaling)
app.command("saturation")(saturation)
app.command("fit")(fit)
app.command("all")(everything)
