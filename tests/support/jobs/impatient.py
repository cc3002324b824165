"""``deepvm`` with a controller that soon gives a history up that it cannot write."""

from __future__ import annotations

from deepvm.cli.main import main
from deepvm.jobs.controller import controller

if __name__ == "__main__":
    controller._UNWRITTEN_S = 5.0
    main()
