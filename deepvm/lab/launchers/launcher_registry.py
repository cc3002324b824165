"""The launchers by their names in matrix files: a new one is a file here and a line below."""

import pkgutil
from typing import cast

from deepvm.lab.running.launcher import Launcher

# Name -> ``module:class``, imported when first used
LAUNCHERS = {
    "forkserver": "deepvm.lab.launchers.forkserver:Forkserver",
    "torchrun": "deepvm.lab.launchers.torchrun:Torchrun",
    "deepvm-run": "deepvm.lab.launchers.deepvm_run:DeepvmRun",
}


def find_launcher(name: str) -> type[Launcher]:
    """The class of a launcher."""
    return cast("type[Launcher]", pkgutil.resolve_name(LAUNCHERS[name]))
