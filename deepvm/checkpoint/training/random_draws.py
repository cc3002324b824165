"""Which random generators were drawn from between two states (torch, Python, NumPy), and how far.

The generators of the CPU are Mersenne Twisters (MT19937): they make a block of 624 words and count
how many of them are used. A GPU's generator counts all numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepvm.checkpoint.format.tensor_bytes import bytes_of

_WORDS = 624


def draws_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, int]:
    """32-bit numbers drawn modulo 624, by generator; those that drew none are left out.

    ``before``, ``after``: of :func:`deepvm.checkpoint.training.state.random_state`.
    """
    old = _positions(before)
    return {
        name: (position - old[name][1]) % _WORDS
        for name, (state, position) in _positions(after).items()
        if name in old and old[name][0] != state
    }


def _positions(random: Mapping[str, Any]) -> dict[str, tuple[bytes, int]]:
    """The state of each generator, and the words used of its block."""
    torch_state = bytes_of(random["torch"])
    left = int.from_bytes(torch_state[8:12], "little")
    found = {
        "torch": (torch_state, -left),
        "python": (bytes_of(random["python"]), int(random["python"][_WORDS])),
    }
    numpy = random.get("numpy")
    if numpy is not None:
        position = int(numpy["position"])
        found["numpy"] = bytes_of(numpy["keys"]) + bytes(str(position), "ascii"), position
    for number, state in enumerate(random.get("cuda", ())):
        data = bytes_of(state)
        found[f"cuda:{number}"] = data, int.from_bytes(data[8:16], "little")  # behind the seed
    return found
