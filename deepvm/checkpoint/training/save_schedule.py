"""The argument ``every``, in words that people write."""

from __future__ import annotations

import os

from deepvm.core.preemption.savepolicy import POLICIES, Auto, EverySeconds, EverySteps, Never, SavePolicy, parse_policy
from deepvm.core.units import parse_seconds
from deepvm.errors import RequestError

MTBF = "DEEPVM_MTBF"
"""Variable with the cluster's mean time between failures, such as ``2h``, for the policies that weigh saves."""
MTBF_S = 3600.0
"""Where it is not set."""


def parse_every(every: int | str | None) -> SavePolicy:
    """Read ``every``: None, steps (100), a time ("30s", "10min", "1h"), "auto", or a policy as the simulator names it.

    Raises:
        RequestError: anything else.
    """
    names = ", ".join(f'"{name}"' for name in (*POLICIES, "static:100", "every:10min") if name != "none")
    allowed = f'a whole number of steps from 1, a time such as "30s", "10min" or "1h", or one of {names}'
    if every is None:
        return Never()
    if isinstance(every, bool) or not isinstance(every, (int, str)):
        raise RequestError("every", every, allowed)
    text = str(every).strip()
    if text == "auto":
        return Auto(mtbf_s())
    if text.isascii() and text.isdigit():
        text = f"static:{text}"
    if text in POLICIES or ":" in text:
        try:
            return parse_policy(text)
        except RequestError:
            raise RequestError("every", every, allowed) from None
    return EverySeconds(parse_seconds(text, "every", allowed=allowed))


def mtbf_of(policy: SavePolicy) -> float:
    """The mean time between failures that a policy counts with; not looked up for those that need none.

    Raises:
        RequestError: the variable holds no time.
    """
    return MTBF_S if isinstance(policy, (Never, EverySteps, EverySeconds)) else mtbf_s()


def mtbf_s() -> float:
    """The cluster's mean time between failures, as :data:`MTBF` says, seconds.

    Raises:
        RequestError: the variable holds no time.
    """
    said = os.environ.get(MTBF, "").strip()
    return parse_seconds(said, MTBF, allowed="a time such as 2h") if said else MTBF_S
