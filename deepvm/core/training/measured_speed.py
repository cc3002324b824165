"""Speed of VMs with measured steps: the law fitted to them, completed by data sheets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from deepvm.core.arrays import BoolArray, FloatArray
from deepvm.core.training.evidence import COMPUTE, PARTS
from deepvm.core.training.roofline import OVERLAP, REACH, joined
from deepvm.core.training.speed import (
    Parts,
    Source,
    SpeedUncertainty,
    TrainingSpeed,
    reading_s,
    waiting,
)
from deepvm.core.training.steptime import MeasuredRange, StepTimeFit
from deepvm.core.units import counted

_OTHER_VM = 0.1
"""Standard deviation of log T between VM sizes with the same GPU: other processors, power, cooling.
An assumption: half of the difference between two sites on one GPU (``another site`` in
:mod:`deepvm.core.training.evidence`).
"""
_TOLD_APART = 0.4
"""The same if synchronization must be subtracted from a measured step to get its gradients."""
_NO_SYNC = 0.1
"""The same where more GPUs train than were measured, and their synchronisation was not.

Chosen with the published steps of three models on up to 8 x 4 T4: of these, 75 to 87 % are within
the 80 % intervals of laws of single GPUs, and 53 to 70 % would be without it; of laws of single VMs
74 to 85 %, and 50 to 62 %.
"""


@dataclass(frozen=True)
class OwnSteps:
    """A law of steps that were measured on clusters of one type of VM.

    Attributes:
        where: the type. reads: whether these steps wait for their samples to be read, as a real
            job's do.
        about: where, when and how often it was measured, in words.
    """

    where: str
    fit: StepTimeFit
    reads: bool = False
    about: str = ""

    @property
    def measured(self) -> MeasuredRange:
        """What the law was fitted to."""
        assert self.fit.measured is not None  # laws without it are not saved
        return self.fit.measured

    @property
    def alone(self) -> tuple[int, int]:
        """VMs and GPUs of the measured cluster that says most about gradients: the smallest."""
        return self.measured.nodes[0], self.measured.gpus[0]


def of_measured(own: OwnSteps, base: TrainingSpeed, reference: Parts) -> TrainingSpeed:
    """The speed of the type that was measured, on as many VMs as ``base``.

    Of one VM, and of several where several were measured, by the law alone. Else what single VMs
    say, with the network that data sheets and published runs promise. ``reference``: what these
    promise of :attr:`OwnSteps.alone`.
    """
    assert base.parts is not None
    measured = own.measured
    steps = base.parts.steps
    # It has run there: no estimate of its memory says otherwise.
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
    return replace(
        apart,
        fits=law.fits,
        step_s=np.where(alone, law.step_s, apart.step_s),
        throughput=np.where(alone, law.throughput, apart.throughput),
        doubt_of=lambda: _either(alone, law.doubt, apart.doubt),
        source=Source.MEASURED,
        covered=alone,
        said=lambda place: _of_single(own, base, place),
    )


def _of_law(own: OwnSteps, base: TrainingSpeed) -> TrainingSpeed:
    assert base.parts is not None
    gpus = base.parts.steps.gpus
    batch = base.parts.steps.batch
    measured = own.measured
    sd = own.fit.deviation(base.vms, gpus, batch)

    nothing = np.zeros((len(sd), len(base.parts.evidence.names)))

    def doubt() -> SpeedUncertainty:
        return SpeedUncertainty(nothing, {_cause(own): sd}, np.zeros(len(sd)))

    found = _timed(own, base, own.fit.law.step_s(base.vms, gpus, batch), doubt)
    fitted = max(1, int(min(own.fit.most_nodes, own.fit.most_gpus / base.machine.gpus)))
    return replace(
        found,
        source=Source.MEASURED,
        fitted_vms=fitted,
        covered=(base.vms <= int(REACH * fitted)) & ((base.vms <= 1) | (measured.several > 0)),
        said=lambda place: _of_extent(own, found, fitted, place),
    )


def of_alike(own: OwnSteps, base: TrainingSpeed, reference: Parts) -> TrainingSpeed:
    """Speed of another type with the measured GPU: its gradients, with the data sheet's network.

    ``reference``: as for :func:`of_measured`.
    """
    return replace(
        _with_network(own, base, reference, other=True),
        covered=np.zeros(len(base.vms), dtype=np.bool_),
        said=lambda place: _of_alike(own, base, place),
    )


def _with_network(
    own: OwnSteps, base: TrainingSpeed, reference: Parts, *, other: bool
) -> TrainingSpeed:
    """Measured gradients plus synchronization by data sheets; ``other``: another type of VM."""
    assert base.parts is not None
    parts = base.parts
    batch = base.parts.steps.batch
    cluster = own.alone
    nodes, gpus = (np.full(len(batch), float(value)) for value in cluster)
    step = own.fit.law.step_s(nodes, gpus, batch)
    # A step of several GPUs has synchronised; what that took is taken away, most of it at most.
    took = np.minimum(reference.sync_s[0] if cluster[1] > 1 else 0.0, 0.9 * step)
    grad = (step**OVERLAP - took**OVERLAP) ** (1 / OVERLAP)
    grad = grad * np.exp(parts.straggling - reference.straggling[0])
    share = parts.share(grad)
    hidden = (took / step) ** OVERLAP
    known = np.sqrt(own.fit.deviation(nodes, gpus, batch) ** 2 + (_TOLD_APART * hidden) ** 2) * (
        1 - share
    )

    def doubt() -> SpeedUncertainty:
        rest = parts.doubt(share, [part != COMPUTE for part in range(PARTS)])
        more = np.where(parts.steps.gpus > cluster[1], _NO_SYNC, 0.0)
        named = {**rest.named, _cause(own): known, f"{_cause(own)}, without synchronisation": more}
        if other:
            named[f"{_cause(own)}, on {base.machine.interconnect.machine}"] = _OTHER_VM * (
                1 - share
            )
        return replace(rest, named=named)

    return _timed(own, base, joined(grad, parts.sync_s, OVERLAP), doubt)


def _timed(
    own: OwnSteps, base: TrainingSpeed, step_s: FloatArray, doubt: Callable[[], SpeedUncertainty]
) -> TrainingSpeed:
    """The speed with these steps, which wait for input unless measured ones did."""
    assert base.parts is not None
    steps = base.parts.steps
    workload = base.workload
    if own.reads:
        reading = np.zeros_like(step_s)
    else:
        reading = reading_s(workload, base.machine, steps.batch)
    if reading.any():
        computed = doubt()
        waits = waiting(step_s, computed.sd, reading)
        step_s = waits.step_s
        doubt = partial(computed.where_reading, waits)
    throughput = workload.samples_of_step(steps.gpus) * workload.model.units_per_sample / step_s
    return replace(base, step_s=step_s, throughput=throughput, measured=own.about, doubt_of=doubt)


def _cause(own: OwnSteps) -> str:
    return f"measured on {own.where}"


def _either(first: BoolArray, one: SpeedUncertainty, other: SpeedUncertainty) -> SpeedUncertainty:
    """The doubt of one speed in some places, of another elsewhere."""
    shared = np.where(first[:, None], one.shared, other.shared)
    nothing = np.zeros(len(first))
    names = dict.fromkeys((*one.named, *other.named))
    named = {
        n: np.where(first, one.named.get(n, nothing), other.named.get(n, nothing)) for n in names
    }
    return SpeedUncertainty(shared, named, np.where(first, one.own, other.own))


def _of_extent(own: OwnSteps, speed: TrainingSpeed, fitted: int, place: int) -> Iterator[str]:
    """How far a size lies outside what was measured."""
    measured = own.measured
    vms = int(speed.vms[place])
    gpus = vms * speed.machine.gpus
    if vms > int(REACH * fitted):
        yield f"{vms} VMs are more than 1.5 times the {fitted} that were measured on {own.where}"
    elif gpus > 1 and vms == 1 and not measured.local:
        yield (
            f"no single VM of {own.where} was measured with several GPUs: what they synchronise is"
            " not known"
        )
    yield from _of_batch(own, speed, place)


def _of_batch(own: OwnSteps, speed: TrainingSpeed, place: int) -> Iterator[str]:
    (low, high) = own.measured.batch
    batch = float(speed.batch[place])
    if not low / REACH <= batch <= REACH * high:
        if high > low:
            known = f"{low:g} to {high:g}"
        else:
            known = f"{low:g}"
        yield (
            f"a batch of {batch:g} is more than 1.5 times off what was measured on {own.where},"
            f" {known} a GPU"
        )


def _of_single(own: OwnSteps, base: TrainingSpeed, place: int) -> Iterator[str]:
    yield from _of_network(
        base,
        int(base.vms[place]),
        f"derived, because only single VMs of {own.where} were measured; ",
    )
    yield from _of_batch(own, base, place)


def _of_alike(own: OwnSteps, base: TrainingSpeed, place: int) -> Iterator[str]:
    vms, gpus = own.alone
    yield (
        f"gradients are those measured on {own.where} ({counted(vms, 'VM')},"
        f" {counted(gpus, 'GPU')}), which has the same GPU; what another size of VM adds is"
        " derived, and the interval is wider"
    )
    yield from _of_network(base, int(base.vms[place]), "")
    yield from _of_batch(own, base, place)


def _of_network(base: TrainingSpeed, vms: int, why: str) -> Iterator[str]:
    if vms > base.trusted_vms:
        yield (
            f"{vms} VMs are more than 1.5 times the {base.fitted_vms} that such networks were"
            " checked with"
        )
    if vms > 1:
        yield f"network: {why}{base.machine.interconnect.basis}"
