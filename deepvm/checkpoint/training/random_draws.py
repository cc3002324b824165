"""How many random numbers were drawn between two generator states (torch, Python, NumPy)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from deepvm.checkpoint.format.tensor_bytes import bytes_of

_WORDS = 624
_MIDDLE = 397
_TORCH_LEFT, _TORCH_WORDS = slice(8, 12), slice(24, 24 + 8 * _WORDS)
"""Where the state of torch's generator has the number of words left in a block, and the words."""
_MAX_BLOCKS = 2000
"""Blocks of 624 numbers that are counted, which takes 0.1 s; more are unknown."""

Draws = dict[str, "int | None"]


def draws_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> Draws:
    """32-bit numbers drawn, by generator.

    Generators that drew none are left out, None where it is not known.

    ``before``, ``after``: of :func:`deepvm.checkpoint.training.state.random_state`. The generators
    of the CPU are Mersenne Twisters (MT19937), whose states show how far they are apart; a GPU's
    state counts.
    """
    old = _twisters(before)
    new = _twisters(after)
    counts: Draws = {
        name: _twister_draws(*old[name], *new[name]) for name in old.keys() & new.keys()
    }
    for number, (first, last) in enumerate(
        zip(before.get("cuda", ()), after.get("cuda", ()), strict=False)
    ):
        counts[f"cuda:{number}"] = _counter(last) - _counter(first)
    return {name: count for name, count in counts.items() if count != 0}


def _counter(state: torch.Tensor) -> int:
    """The offset in the state of a GPU's generator: it follows the seed."""
    return int.from_bytes(bytes_of(state)[8:16], "little")


def _twisters(state: Mapping[str, Any]) -> dict[str, tuple[torch.Tensor, int]]:
    """Each generator's block of words, and how many of them are used."""
    python = state["python"]
    torch_state = bytes_of(state["torch"])
    words = torch.frombuffer(bytearray(torch_state[_TORCH_WORDS]), dtype=torch.int64)
    used = _WORDS + 1 - int.from_bytes(torch_state[_TORCH_LEFT], "little")
    twisters = {"torch": (words, used), "python": (python[:_WORDS], int(python[_WORDS]))}
    if state.get("numpy", {}).get("name") == "MT19937":
        twisters["numpy"] = state["numpy"]["keys"], int(state["numpy"]["position"])
    return twisters


def _twister_draws(
    before: torch.Tensor, used_before: int, after: torch.Tensor, used_after: int
) -> int | None:
    words = before
    for blocks in range(_MAX_BLOCKS):
        if torch.equal(words, after):
            draws = blocks * _WORDS + used_after - used_before
            return draws if draws >= 0 else None
        words = _next_block(words)
    return None


def _next_block(words: torch.Tensor) -> torch.Tensor:
    """The words after a block (Matsumoto, Nishimura, "Mersenne Twister", 1998, section 2.1)."""
    ahead = _WORDS - _MIDDLE
    block = words.clone()
    # Words that a part needs from the new block must be made before it.
    for start, end in (
        (0, ahead),
        (ahead, 2 * ahead),
        (2 * ahead, _WORDS - 1),
        (_WORDS - 1, _WORDS),
    ):
        following = block[:1] if end == _WORDS else words[start + 1 : end + 1]
        mixed = (words[start:end] & 0x80000000) | (following & 0x7FFFFFFF)
        other = (
            words[start + _MIDDLE : end + _MIDDLE]
            if end <= ahead
            else block[start - ahead : end - ahead]
        )
        block[start:end] = other ^ (mixed >> 1) ^ ((mixed & 1) * 0x9908B0DF)
    return block
