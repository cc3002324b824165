"""Labelled points in the life of a version at which the fault-injection campaigns kill the process or fail a call.

Outside a campaign a point costs one comparison.
"""

from __future__ import annotations

import os
import signal

_AT = os.environ.get("DEEPVM_CHECKPOINT_KILL_AT", "")
"""``label`` or ``label:n``: kill this process with SIGKILL when it comes by for the n-th time."""

_label, _, _count = _AT.partition(":")
_left = int(_count) if _count.isdigit() else 1


def point(label: str) -> None:
    """Say where the program is; the campaign may end it here."""
    global _left
    if label == _label:
        _left -= 1
        if _left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
