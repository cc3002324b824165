"""How fast types of VMs train a workload.

By the user's own steps where there are some, else by what is published.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from deepvm.catalog.measured.steps import StepTimes
from deepvm.catalog.published.performance import PublishedPerformance
from deepvm.core.arrays import FloatArray
from deepvm.core.cluster.instances import InstanceType
from deepvm.core.training.measured_speed import of_alike, of_measured
from deepvm.core.training.roofline import Machine
from deepvm.core.training.speed import TrainingSpeed
from deepvm.core.training.workload import Workload


@dataclass(frozen=True)
class MeasuredPerformance(PublishedPerformance):
    """As :class:`PublishedPerformance`, with the user's own steps.

    Measured beats published beats derived. A type that was measured goes by its law. Other types
    with its GPU take its gradients; the rest is as published.
    """

    own: tuple[StepTimes, ...] = ()

    @classmethod
    def over(
        cls, published: PublishedPerformance, own: tuple[StepTimes, ...]
    ) -> MeasuredPerformance:
        return cls(published.software, published.placement_group, own)

    def speed(
        self, instance: InstanceType, workload: Workload, vms: FloatArray
    ) -> TrainingSpeed | str:
        """The speed of clusters of these sizes of a type, or why there is none."""
        machine = self.machine(instance)
        if isinstance(machine, str):
            return machine
        return self._with_own(machine, workload, vms, instance.type_name)

    def of_machine(
        self, machine: Machine, workload: Workload, vms: FloatArray
    ) -> TrainingSpeed | str:
        """The speed of clusters of a machine of no named type.

        A VM with as many GPUs as were measured counts as that type.
        """
        return self._with_own(machine, workload, vms, "")

    def _with_own(
        self, machine: Machine, workload: Workload, vms: FloatArray, name: str
    ) -> TrainingSpeed | str:
        base = super().of_machine(machine, workload, vms)
        if isinstance(base, str):
            return base
        gpu = machine.accelerator
        fitting = [o for o in self.own if not o.trained.differs(workload, gpu, self.software)]
        same = [
            o for o in fitting if o.instance_type == name or (not name and _is_machine(o, machine))
        ]
        alike = [o for o in fitting if o.gpu == gpu]
        if not (same or alike):
            return base
        chosen = _nearest(same or alike, machine)
        reference = self.parts(
            _alone(chosen, machine), workload, np.array([float(chosen.own.alone[0])])
        )
        return (of_measured if same else of_alike)(chosen.own, base, reference)


def _is_machine(own: StepTimes, machine: Machine) -> bool:
    return own.gpu == machine.accelerator and own.own.measured.most_per_vm == machine.gpus


def _alone(own: StepTimes, machine: Machine) -> Machine:
    """The smallest measured cluster's VM, in the network of another type if its own is unknown."""
    vms, gpus = own.own.alone
    return replace(machine, gpus=gpus / vms)


def _nearest(found: list[StepTimes], machine: Machine) -> StepTimes:
    """The steps of VMs of the nearest size; of several the latest."""
    return min(
        found,
        key=lambda o: (
            abs(np.log(o.own.measured.most_per_vm / machine.gpus)),
            -o.entries[-1].measured_at.timestamp(),
        ),
    )
