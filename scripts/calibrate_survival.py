"""Learn spot losses from public traces, test forecasts on held-out ones, plot reliability.

    git clone https://github.com/skypilot-org/spot-traces
    python scripts/calibrate_survival.py spot-traces [--picture FILE] [--write]

prints the tables of ``docs/internals/explain/survive.md``. ``--write`` also replaces
``data/survival/public_traces.json``, with which ``deepvm survive`` begins.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from survival_calibration import judge, judged_lines, reliability_figure
from survival_prior import fit_prior, to_text

from deepvm.io.atomic_write import write_bytes
from deepvm.io.user_dirs import data_folder
from deepvm.reports.pictures import save_picture
from deepvm.simulator.survival.evidence import PRIOR
from deepvm.simulator.traces.trace import read_traces

SOURCE = "https://github.com/skypilot-org/spot-traces: AWS and Google, 2022 and 2023"


def main() -> None:
    """Read the options, and do it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "traces",
        nargs="+",
        type=Path,
        help="trace files, or folders of them; one folder, one campaign",
    )
    parser.add_argument(
        "--picture", type=Path, help="where to draw the reliability curve, as .png or .svg"
    )
    parser.add_argument(
        "--write", action="store_true", help="replace the prior that comes with deepvm"
    )
    options = parser.parse_args()
    traces = read_traces(options.traces, lambda text: print(text, file=sys.stderr))
    today = datetime.now(timezone.utc).date().isoformat()
    prior = replace(fit_prior(traces), source=SOURCE, as_of=today)
    judged = judge(traces)
    print("\n".join(judged_lines(judged, prior)))
    if options.picture:
        save_picture(reliability_figure(judged), options.picture)
    if options.write:
        write_bytes(data_folder() / PRIOR, to_text(prior).encode())


if __name__ == "__main__":
    main()
