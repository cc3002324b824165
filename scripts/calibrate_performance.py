"""Refit to the published steps, after a change of ``data/performance`` or the step-time law.

    python scripts/calibrate_performance.py

writes ``data/performance/calibration.json``; ``make test`` fails until it is up to date.
"""

from __future__ import annotations

from deepvm.catalog.published.calibration import CALIBRATION, calibrate, to_text
from deepvm.io.atomic_write import write_bytes
from deepvm.io.user_dirs import data_folder

if __name__ == "__main__":
    write_bytes(data_folder() / CALIBRATION, to_text(calibrate()).encode())
