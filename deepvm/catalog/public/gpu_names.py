"""What public catalogs call GPUs, and which memory a model has."""

from __future__ import annotations

import re
from functools import lru_cache

from deepvm.catalog.published.hardware import accelerators

# Names that say more, or something else, than AWS's.
_ALIASES = {
    "RTXPRO6000": "RTX PRO Server 6000",
    "RTX-PRO-6000": "RTX PRO Server 6000",
    "RTXPRO-6000": "RTX PRO Server 6000",
    "RTXPRO6000-WK": "RTX PRO Server 6000",
    "RTX-PRO-6000-SERVER": "RTX PRO Server 6000",
    "RTXPRO6000SE": "RTX PRO Server 6000",
    "A10-24GB": "A10",
}
# How GPUs are connected and built in: one model, so one speed in the published tables.
_SUFFIX = re.compile(r"[- ]?(SXM[0-9]?|PCI-?E|NVL|MEGA|[0-9]+GB)\b", re.IGNORECASE)
_MEMORY = re.compile(r"[- ]([0-9]+)GB\b", re.IGNORECASE)

_ALSO_GIB = {
    "H100": (94.0, 96.0),
    "B200": (180.0, 192.0),
    "B300": (270.0, 288.0),
    "GH200": (96.0, 144.0),
}
"""Memory of variants that have no data sheet of their own in ``data/performance/gpus.json``."""
_GIB = {
    "A6000": (48.0,),
    "P4": (8.0,),
    "L40": (48.0,),
    "A40": (48.0,),
    "RTX4090": (24.0,),
    "RTX3090": (24.0,),
}
_SPREAD = 0.1
"""Sources round: error correction takes a sixteenth, and a GB is 7 % less than a GiB."""


@lru_cache(maxsize=1024)
def gpu_name(name: str) -> str:
    """AWS's name of a model, without how it is connected: ``A100`` of ``A100-80GB-SXM``."""
    plain = _ALIASES.get(name.upper(), "") or _SUFFIX.sub("", name).strip("- ")
    return next((a.name for a in accelerators() if a.name.casefold() == plain.casefold()), plain)


def memory_in_name(name: str) -> float | None:
    """GiB that a name says: 80 of ``A100-80GB``, None if it says nothing."""
    found = _MEMORY.search(name)
    if found:
        return float(found[1])
    return None


@lru_cache(maxsize=1024)
def memory_fits(model: str, memory_gib: float) -> bool:
    """Whether a model is made with so much memory; models that are not known have any."""
    sizes = {a.memory_gib for a in accelerators() if a.name == model}
    sizes |= {*_ALSO_GIB.get(model, ()), *_GIB.get(model, ())}
    return not sizes or any(abs(memory_gib - s) <= _SPREAD * s for s in sizes)
