"""``python -m deepvm`` is the command ``deepvm``."""

from __future__ import annotations

from deepvm.cli.main import main

if __name__ == "__main__":
    main()
