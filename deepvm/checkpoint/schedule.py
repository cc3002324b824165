"""The argument ``every``, in words that people write."""

from __future__ import annotations

import os
import re

from deepvm.core.savepolicy import Auto, EverySeconds, EverySteps, Never, SavePolicy
from deepvm.errors import RequestError

_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|m|min|h)", re.ASCII)
_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
MTBF = "DEEPVM_MTBF"
"""Variable with the cluster's mean time between failures, such as ``2h``, for ``auto``."""


def parse_every(every: int | str | None) -> SavePolicy:
    """Read ``every``: None, steps (100), a time ("30s", "10min", "1h"), or "auto".

    Raises:
        RequestError: anything else.
    """
    allowed = 'a whole number of steps from 1, a time such as "30s", "10min" or "1h", or "auto"'
    if every is None:
        return Never()
    if isinstance(every, bool) or not isinstance(every, (int, str)):
        raise RequestError("every", every, allowed)
    text = str(every).strip()
    if text == "auto":
        mtbf = os.environ.get(MTBF, "").strip()
        return Auto(_seconds(mtbf, MTBF, "a time such as 2h")) if mtbf else Auto()
    if text.isascii() and text.isdigit() and int(text):
        return EverySteps(int(text))
    return EverySeconds(_seconds(text, "every", allowed))


def _seconds(text: str, option: str, allowed: str) -> float:
    match = _TIME.fullmatch(text)
    if match is None or not float(match[1]):
        raise RequestError(option, text, allowed)
    return float(match[1]) * _UNITS[match[2]]
