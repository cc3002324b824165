"""torchrun: host files to fill in and a script that starts the training on each VM."""

from collections.abc import Iterator

from deepvm.core.cluster.instances import Market
from deepvm.core.cluster.plan import MEMORY
from deepvm.exporters.base import TRAINING_OPTIONS, Exporter, ExportFile


class Torchrun(Exporter):
    """``hostfile``, ``memory-hosts`` for memory nodes, and ``launch.sh``."""

    FOLDER = "torchrun"
    OPTIONS = TRAINING_OPTIONS | {"command"}
    RENTS = False
    SENDS_FILES = True

    def files(self) -> Iterator[ExportFile]:
        # The VM on which all meet comes first.
        groups = sorted(self.plan.groups, key=lambda g: g.market is not Market.ON_DEMAND)
        training = [group for group in groups if group.role != MEMORY]
        memory = [group for group in groups if group.role == MEMORY]
        yield self.file("hostfile", groups=training, slots=self.plan.training.gpus_per_vm)
        if memory:
            yield self.file("memory-hosts", "hostfile", groups=memory, slots=None)
        yield self.file("launch.sh")
        yield from self.wheels
