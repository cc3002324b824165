"""In which order ``--help`` shows the options of commands that plan, and which it leaves to ``help COMMAND --all``."""

from __future__ import annotations

from collections.abc import Sequence

GROUPS: dict[str, Sequence[str]] = {
    "Budget": ("pw", "objective", "deadline", "total_budget"),
    "What you train": (
        "model",
        "params",
        "seq",
        "method",
        "precision",
        "batch_per_gpu",
        "global_batch",
        "activation_checkpointing",
        "tokens",
        "samples",
        "job_file",
        "work",
        "checkpoint_size",
        "mttp",
    ),
    "What may be rented": (
        "gpu",
        "gpu_memory_min",
        "instance_type",
        "exclude",
        "architecture",
        "memory_node",
        "max_nodes",
        "quota",
        "placement_group",
    ),
    "Prices": ("cloud", "catalog", "region", "zone", "prices", "offline", "price_basis"),
    "Output": ("output", "top", "why", "explain", "simulate", "plot"),
}
"""Titles, and the parameters below each."""


def grouped(names: Sequence[str]) -> dict[str, list[str]]:
    """The parameters of a command by title, in the order to show them.

    Those of no group under an empty title.
    """
    found = {title: [n for n in group if n in names] for title, group in GROUPS.items()}
    shown = {name for group in found.values() for name in group}
    return {title: group for title, group in found.items() if group} | {
        "": [n for n in names if n not in shown]
    }
