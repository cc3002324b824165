"""Whether what was measured ran on the GPUs that the catalog gives a type: a wrong type is easily typed."""

from __future__ import annotations

import re

from deepvm.catalog.measured.entries import Entry, Told
from deepvm.core.cluster.instances import Gpu


def another_gpu(entry: Entry, gpu: Gpu) -> list[str]:
    """A doubt where the machine names its GPUs and none of them is the type's; providers' drivers add words to names.

    Args:
        entry: of kind ``eflops`` or ``scaling``.
        gpu: of its type, as the catalog has it.
    """
    model = re.compile(rf"(?<![a-z0-9]){re.escape(gpu.name.lower())}(?![a-z0-9])")
    if not entry.gpus or any(model.search(n.lower()) for n in entry.gpus):
        return []
    return [
        f"{entry.instance_type} has {gpu.name} GPUs, but {_what(entry)} measured on {entry.gpus[0]}: if that was "
        f"another type, 'deepvm tables remove {entry.name}' and save it under its name"
    ]


def without_gpu(entry: Entry) -> list[Told]:
    """A note where the machine names GPUs and the type has none: then the type is wrong."""
    if not entry.gpus:
        return []
    why = (
        f"{entry.instance_type} has no GPU, but {_what(entry)} measured on {entry.gpus[0]}: not used; "
        f"'deepvm tables remove {entry.name}' and save it under the name of its type"
    )
    return [Told(why, (entry.name,))]


def _what(entry: Entry) -> str:
    return "its eFLOPS were" if entry.kind == "eflops" else "its curve was"
