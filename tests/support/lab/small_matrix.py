"""A matrix of two seconds a run, for tests that need real trainings."""

from __future__ import annotations

MATRIX = """name: small
datasets: [{name: tokens, size: 256}]
models: [{name: gpt-tiny, width: 8, dropout: 0.1}]
failures:
  base: {exit: [7]}
variants: [none, blk, ovl]
world: 2
global_batch: 16
steps: 12
checkpoint_every: 5
"""
RUNS = (
    "tokens-gpt-tiny-calm-none-s0",
    "tokens-gpt-tiny-base-blk-s0",
    "tokens-gpt-tiny-base-ovl-s0",
)
