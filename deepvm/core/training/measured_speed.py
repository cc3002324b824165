"""Speed of VMs with measured steps: the law fitted to them, completed by data sheets."""

from collections.abc import Callable, Iterator

import numpy as np

from deepvm.core.arrays import BoolArray, FloatArray
from deepvm.core.training.roofline import OVERLAP, REACH, joined
from deepvm.core.training.speed import Parts, Source, SpeedUncertainty, TrainingSpeed, timing_of
from deepvm.core.training.steptime import MeasuredRange, StepTimeFit
from deepvm.core.units import counted
from deepvm.records import dataclass, replace

# Standard deviation of log T between VM sizes with the same GPU: other processors, power, cooling.
# An assumption: half of the difference between two sites on one GPU (``another site`` in
# :mod:`deepvm.core.training.evidence`).
_OTHER_VM_SD = 0.1
# The same if synchronization must be subtracted from a measured step to get its gradients
_SUBTRACTED_SYNC_SD = 0.4
# The same where more GPUs train than were measured, and their synchronization was not. Chosen with
# the published steps of three models on up to 8 x 4 T4: of these, 75 to 87 % are within the 80 %
# intervals of laws of single GPUs, and 53 to 70 % would be without it; of laws of single VMs 74 to
# 85 %, and 50 to 62 %.
_NO_SYNC_SD = 0.1


@dataclass(frozen=True)
class OwnSteps:
    """A law of steps that were measured on clusters of one type of VM, ``where``."""

    where: str
    fit: StepTimeFit
    reads: bool = False  # they include waiting for input, as a real job's do
    about: str = ""  # where, when and how often

    @property
    def measured(self) -> MeasuredRange:
        return self.fit.measured

    @property
    def smallest(self) -> tuple[int, int]:
        """VMs and GPUs of the measured cluster that says most about gradients: the smallest."""
        return self.measured.nodes[0], self.measured.gpus[0]

    @property
    def cause(self) -> str:
        return f"measured on {self.where}"

    def batch_doubts(self, batch: float) -> Iterator[str]:
        low, high = self.measured.batch
        if not low / REACH <= batch <= REACH * high:
            known = f"{low:g} to {high:g}" if high > low else f"{low:g}"
            yield (
                f"a batch of {batch:g} is more than 1.5 times off what was measured on"
                f" {self.where}, {known} a GPU"
            )


def of_measured(own: OwnSteps, base: TrainingSpeed, reference: Parts) -> TrainingSpeed:
    """The speed of the type that was measured, on as many VMs as ``base``.

    By the law alone, but of several VMs where only single ones were measured: then with the network
    of data sheets and published runs. ``reference``: these on :attr:`OwnSteps.smallest`.
    """
    measured = own.measured
    steps = base.parts.steps
    # It has run there: a measurement beats the estimate of its memory.
    ran = (
        (steps.batch <= measured.batch[1])
        & (steps.gpus >= measured.gpus[0])
        & (steps.vms >= measured.nodes[0])
    )
    # A sample for each GPU, whatever the memory
    enough = base.workload.samples_of_step(steps.gpus) >= steps.gpus
    law = _of_law(own, replace(base, fits=base.fits | (ran & enough)))
    if measured.several or not (base.vms > 1).any():
        return law
    apart = _with_network(own, base, reference, other=False)
    alone = base.vms <= 1

    def doubts(place: int) -> Iterator[str]:
        yield from base.network_doubts(
            place, f"derived, because only single VMs of {own.where} were measured; "
        )
        yield from own.batch_doubts(float(base.batch[place]))

    return replace(
        apart,
        fits=law.fits,
        step_s=np.where(alone, law.step_s, apart.step_s),
        throughput=np.where(alone, law.throughput, apart.throughput),
        doubt_of=lambda: _either(alone, law.doubt, apart.doubt),
        source=Source.MEASURED,
        covered=alone,
        warnings_of=doubts,
    )


def _of_law(own: OwnSteps, base: TrainingSpeed) -> TrainingSpeed:
    steps = base.parts.steps
    measured = own.measured
    sd = measured.deviation(base.vms, steps.gpus, steps.batch)
    fitted = max(1, int(min(measured.nodes[-1], measured.gpus[1] / base.machine.gpus)))
    nothing = np.zeros((len(sd), len(base.parts.evidence.names)))

    def doubts(place: int) -> Iterator[str]:
        vms = int(base.vms[place])
        if vms > int(REACH * fitted):
            yield (
                f"{vms} VMs are more than 1.5 times the {fitted} that were measured on {own.where}"
            )
        elif vms == 1 and base.machine.gpus > 1 and not measured.local:
            yield (
                f"no single VM of {own.where} was measured with several GPUs: what they"
                " synchronize is not known"
            )
        yield from own.batch_doubts(float(base.batch[place]))

    return replace(
        _timed(
            own,
            base,
            own.fit.law.step_s(base.vms, steps.gpus, steps.batch),
            lambda: SpeedUncertainty(nothing, {own.cause: sd}, np.zeros(len(sd))),
        ),
        source=Source.MEASURED,
        fitted_vms=fitted,
        covered=(base.vms <= int(REACH * fitted)) & ((base.vms <= 1) | (measured.several > 0)),
        warnings_of=doubts,
    )


def of_alike(own: OwnSteps, base: TrainingSpeed, reference: Parts) -> TrainingSpeed:
    """Speed of another type with the measured GPU: its gradients, with the data sheet's network."""

    def doubts(place: int) -> Iterator[str]:
        vms, gpus = own.smallest
        yield (
            f"gradients are those measured on {own.where} ({counted(vms, 'VM')},"
            f" {counted(gpus, 'GPU')}), which has the same GPU; what another size of VM adds is"
            " derived, and the interval is wider"
        )
        yield from base.network_doubts(place)
        yield from own.batch_doubts(float(base.batch[place]))

    return replace(
        _with_network(own, base, reference, other=True),
        covered=np.zeros(len(base.vms), dtype=np.bool_),
        warnings_of=doubts,
    )


def _with_network(
    own: OwnSteps, base: TrainingSpeed, reference: Parts, *, other: bool
) -> TrainingSpeed:
    """Measured gradients plus synchronization by data sheets; ``other``: another type of VM."""
    parts = base.parts
    cluster = own.smallest
    batch = parts.steps.batch
    nodes, gpus = (np.full(len(batch), float(value)) for value in cluster)
    step = own.fit.law.step_s(nodes, gpus, batch)
    # A step of several GPUs includes synchronization, which is subtracted: at most nine tenths,
    # since data sheets may predict more than the whole step took.
    took = np.minimum(reference.sync_s[0] if cluster[1] > 1 else 0.0, 0.9 * step)
    grad = (step**OVERLAP - took**OVERLAP) ** (1 / OVERLAP)
    grad = grad * np.exp(parts.straggling - reference.straggling[0])
    share = parts.share(grad)
    hidden = (took / step) ** OVERLAP
    sd = np.sqrt(
        own.measured.deviation(nodes, gpus, batch) ** 2 + (_SUBTRACTED_SYNC_SD * hidden) ** 2
    )

    def doubt() -> SpeedUncertainty:
        rest = parts.doubt(share, gradients=False)
        named = {
            **rest.named,
            own.cause: sd * (1 - share),
            f"{own.cause}, without synchronization": np.where(
                parts.steps.gpus > cluster[1], _NO_SYNC_SD, 0.0
            ),
        }
        if other:
            vm = base.machine.interconnect.machine
            named[f"{own.cause}, on {vm}"] = _OTHER_VM_SD * (1 - share)
        return replace(rest, named=named)

    return _timed(own, base, joined(grad, parts.sync_s, OVERLAP), doubt)


def _timed(
    own: OwnSteps, base: TrainingSpeed, step_s: FloatArray, doubt: Callable[[], SpeedUncertainty]
) -> TrainingSpeed:
    timing = timing_of(
        base.workload, base.machine, base.parts.steps, step_s, doubt, reads=not own.reads
    )
    return replace(base, **timing._asdict(), measured=own.about)


def _either(first: BoolArray, one: SpeedUncertainty, other: SpeedUncertainty) -> SpeedUncertainty:
    shared = np.where(first[:, None], one.shared, other.shared)
    nothing = np.zeros(len(first))
    names = dict.fromkeys((*one.named, *other.named))
    named = {
        n: np.where(first, one.named.get(n, nothing), other.named.get(n, nothing)) for n in names
    }
    return SpeedUncertainty(shared, named, np.where(first, one.own, other.own))
