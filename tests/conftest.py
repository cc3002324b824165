"""Settings that all tests share."""

from __future__ import annotations

import os

from hypothesis import settings

# Times differ between machines, so no deadline; in CI the examples are the same in every run, so that a red build
# means a change in the code. `print_blob` shows how to repeat a failing example elsewhere.
settings.register_profile("local", deadline=None, print_blob=True)
settings.register_profile("repeatable", deadline=None, print_blob=True, derandomize=True)
settings.load_profile("repeatable" if os.environ.get("CI") == "true" else "local")
